"""Two deployments on one server, told apart by TOOLPOOL_KEY_PREFIX alone."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest
import redis
from pydantic import SecretStr

from tests.chaos.servers import Server
from tests.integration.fleet import call
from tests.integration.test_deadlines import worker
from toolpool import Dispatcher
from toolpool.contract.settings import Settings
from toolpool.contract.signing import generate_key

PREFIXES = ("toolpool", "toolpool.two")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path / "server")
    yield started
    started.close()


@pytest.mark.long
@pytest.mark.parametrize("same_key", [True, False])
async def test_each_deployment_gets_its_own_calls_and_nothing_else(
    server: Server, same_key: bool
) -> None:
    """The same tools, queues and session: no call of the one is run or seen by the other."""
    key = generate_key()
    each = [
        Settings(
            redis_url=server.url,
            key_prefix=prefix,
            signing_key=SecretStr(key if same_key else generate_key()),
            queue_timeout=10.0,
        )
        for prefix in PREFIXES
    ]
    with ExitStack() as workers:
        for settings in each:
            workers.enter_context(worker(settings))
        async with AsyncExitStack() as stack:
            one, two = [
                await stack.enter_async_context(Dispatcher.connect(settings=settings))
                for settings in each
            ]
            pids = [(await d.dispatch(call("whoami")))[0].data for d in (one, two)]
            assert pids[0] != pids[1]
            for _ in range(5):
                turns = await asyncio.gather(
                    *(one.dispatch(call("whoami")) for _ in range(20)),
                    *(two.dispatch(call("whoami")) for _ in range(20)),
                )
                assert [turn[0].data for turn in turns] == [pids[0]] * 20 + [pids[1]] * 20
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        left = {key for key in client.scan_iter() if "_kombu" not in key}
        assert {key for key in left if not key.startswith(PREFIXES)} == set()
        assert {key for key in left if key.startswith("toolpool.two")}

"""Each kind of tool has slots of its own, and no kind's backlog keeps another's messages out."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.fleet import environment_of
from tests.chaos.servers import Server
from tests.integration import fleet as fleets
from tests.integration.fleet import call
from tests.waiting import eventually, wait_until
from toolpool import Dispatcher
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server import connection
from toolpool.contract.settings import Settings
from toolpool.local import LocalFleet

BACKLOG = 12


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with fleets.running("tests.fleets.slow", slots_thread=2) as running:
        yield running


async def test_a_backlog_for_threads_leaves_coroutines_alone(
    fleet: LocalFleet, tmp_path: Path
) -> None:
    """Every message carries one call, and far more wait than the worker may hold."""
    gate = tmp_path / "gate"
    waiting = []
    async with AsyncExitStack() as stack:
        for _ in range(BACKLOG):  # each holds back what it sees no worker start
            one = await stack.enter_async_context(fleets.connected(fleet, queue_timeout=20.0))
            turn = one.dispatch(call("wait_in_thread", gate=str(gate)))
            waiting.append(asyncio.ensure_future(turn))
        with connection.open_sync(fleet.settings) as client:
            await eventually(
                lambda: len(client.keys(RedisKeys().call("*"))) == BACKLOG, "all are on the queue"
            )
        try:
            for _ in range(3):
                result = (await one.dispatch(call("quick"), timeout=2.0))[0]
                assert (result.data, result.code) == ("quick", None)
                assert not any(turn.done() for turn in waiting)
        finally:
            gate.touch()
        turns = await asyncio.gather(*waiting)
        assert [turn[0].data for turn in turns] == ["open"] * BACKLOG


async def test_every_kind_is_served_again_after_the_server_was_away(tmp_path: Path) -> None:
    server = Server(tmp_path / "server")
    settings = Settings(redis_url=server.url)
    command = [sys.executable, "-m", "toolpool", "worker", "--tools", "tests.fleets.slow"]
    worker = subprocess.Popen(command, env=environment_of(settings, Path(os.devnull)))
    gate = tmp_path / "gate"
    gate.touch()
    calls = [
        call("quick"), call("wait_in_thread", gate=str(gate)), call("list_much", items=1),
    ]  # fmt: skip
    try:
        with connection.open_sync(settings) as client:
            pattern = RedisKeys().worker("*")
            wait_until(lambda: list(client.scan_iter(pattern)), "the worker has its lease", 30.0)
        async with Dispatcher.connect(settings=settings) as dispatcher:
            for _ in range(2):
                for one in calls:

                    async def answers(one: list[dict[str, Any]] = one) -> bool:
                        return (await dispatcher.dispatch(one, timeout=5.0))[0].ok

                    await eventually(answers, f"{one[0]['name']} is answered", 25.0)
                server.kill()
                server.start()
    finally:
        worker.terminate()
        worker.wait(20)
        server.close()

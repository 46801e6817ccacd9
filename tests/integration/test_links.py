"""What a bad link to the server does to a worker: it heals, and the calls it runs go on.

The supervisor ends only a worker that says nothing any more.
"""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

from tests.chaos.fleet import environment_of
from tests.chaos.servers import Server
from tests.integration.fleet import call
from tests.integration.links import Link
from tests.waiting import eventually
from toolpool import Dispatcher
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server import connection
from toolpool.contract.settings import Settings
from toolpool.contract.signing import generate_key

pytestmark = pytest.mark.long

ENDED = ("worker_stalled", "worker_ended", "worker_replaced")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path / "server", listen="port", aof=False)
    yield started
    started.close()


@pytest.fixture
def settings(server: Server) -> Settings:
    return Settings(redis_url=server.url, signing_key=SecretStr(generate_key()))


@asynccontextmanager
async def worker(
    settings: Settings, log: Path, *, tools: str = "tests.fleets.slow", run_in: str = "loop"
) -> AsyncIterator[None]:
    """A supervised worker with a lease."""
    command = [sys.executable, "-m", "toolpool", "worker", "--run-in", run_in, "--tools", tools]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=environment_of(settings, log), stdout=file, stderr=file
        )
    try:
        client = connection.open_async(settings)
        async with client:
            await eventually(lambda: client.zcard(RedisKeys().workers), "it has its lease", 30.0)
        yield
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 30)


def was_ended(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if any(word in line for word in ENDED)]


@pytest.mark.timeout(120)
async def test_a_half_open_connection_costs_no_running_call(
    server: Server, settings: Settings, tmp_path: Path
) -> None:
    """Answers to what kombu takes messages with never come again there."""
    log = tmp_path / "log"
    calls = [call("crunch", f"c{n}", seconds=20)[0] for n in range(10)]
    async with Link(server.port) as link:
        async with worker(settings.model_copy(update={"redis_url": link.url}), log):
            async with Dispatcher.connect(settings=settings) as dispatcher:
                turn = asyncio.ensure_future(dispatcher.dispatch(calls, wait=60.0))
                await eventually(lambda: _running(server) == 10, "all are under way")
                assert link.deafen(b"BRPOP") == 1
                quick = (await dispatcher.dispatch(call("quick"), timeout=25.0))[0]
                assert not turn.done()
                assert [result.data for result in await turn] == ["done"] * 10
                assert quick.data == "quick"
    assert "connection_stalled" in log.read_text()
    assert was_ended(log) == []


@pytest.mark.timeout(120)
async def test_a_backlog_over_a_slow_link_is_worked_off(
    server: Server, settings: Settings, tmp_path: Path
) -> None:
    """350 ms each way: for half a minute after its lease it has not taken a first message."""
    log = tmp_path / "log"
    patient = settings.model_copy(update={"queue_timeout": 90.0})
    async with Link(server.port, delay=0.35) as link, AsyncExitStack() as stack:
        async with worker(settings, tmp_path / "first"):
            dispatchers = [
                await stack.enter_async_context(Dispatcher.connect(settings=patient))
                for _ in range(8)
            ]
        turns = [asyncio.ensure_future(one.dispatch(call("quick"))) for one in dispatchers]
        slow = settings.model_copy(update={"redis_url": link.url, "worker_stall_timeout": 5.0})
        async with worker(slow, log):
            done = await asyncio.gather(*turns)
    assert was_ended(log) == []
    assert [turn[0].data for turn in done] == ["quick"] * 8


@pytest.mark.timeout(120)
async def test_a_flood_of_junk_ends_no_worker(
    server: Server, settings: Settings, tmp_path: Path
) -> None:
    log, queue = tmp_path / "log", "toolpool.default.loop"
    short = settings.model_copy(update={"worker_stall_timeout": 1.0})
    async with worker(short, log), Dispatcher.connect(settings=settings) as dispatcher:
        with server.client() as client:
            for _ in range(10):
                client.lpush(queue, *[b"{}"] * 5_000)
            await eventually(lambda: not client.llen(queue), "it is read", 90.0)
        assert (await dispatcher.dispatch(call("quick")))[0].data == "quick"
    assert was_ended(log) == []


def _running(server: Server) -> int:
    with server.client() as client:
        keys = list(client.scan_iter(RedisKeys().call("*")))
        return [client.hget(key, "state") for key in keys].count(b"claimed")

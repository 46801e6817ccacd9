"""Every call is answered by its deadline, whatever is away, and says honestly whether it ran (R8).

The one place where durations are asserted. The deadline is timeout + queue wait + 1 s.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
import redis

from tests.chaos.fleet import environment_of
from tests.chaos.servers import Server
from tests.fleets import road
from tests.integration.fleet import call
from tests.waiting import eventually, wait_until
from toolpool import AskApproval, BrokerUnreachable, Dispatcher, Hooks
from toolpool.contract.envelope import Envelope
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.result import ToolResult
from toolpool.contract.server import connection
from toolpool.contract.settings import Settings
from toolpool.dispatcher.calls.pending import Stage
from toolpool.workers.catalog_publisher import CatalogPublisher

TIMEOUT = 0.5
QUEUE_WAIT = 0.5
DEADLINE = TIMEOUT + QUEUE_WAIT + 1.0
LATE = 1.0
"""What a busy machine may take; the chaos suite measures how late answers are."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path / "server")
    yield started
    started.close()


@pytest.fixture
def settings(server: Server) -> Settings:
    return Settings(redis_url=server.url, queue_timeout=QUEUE_WAIT, connect_timeout=2.0)


@pytest.fixture
def catalog(settings: Settings) -> None:
    """What workers leave behind when they are scaled to zero."""
    envelope = Envelope(connection.keyring(settings))
    with connection.open_sync(settings) as client:
        CatalogPublisher(
            client, [road.echo.spec, road.hold.spec], envelope=envelope, settings=settings
        ).stock(b"", time.time())


@pytest.fixture
async def dispatcher(settings: Settings, catalog: None) -> AsyncIterator[Dispatcher]:
    async with Dispatcher.connect(settings=settings) as connected:
        yield connected


@contextmanager
def worker(
    settings: Settings, tools: str = "tests.fleets.road", stderr: IO[str] | None = None
) -> Iterator[None]:
    """A worker of some tools, with its lease taken."""
    environment = environment_of(settings, Path(os.devnull))
    command = [sys.executable, "-m", "toolpool", "worker", "--run-in", "loop"]
    process = subprocess.Popen([*command, "--tools", tools], env=environment, stderr=stderr)
    try:
        with connection.open_sync(settings) as client:
            pattern = RedisKeys(settings.key_prefix).worker("*")
            wait_until(lambda: list(client.scan_iter(pattern)), "the worker has its lease", 30.0)
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def asked(
    dispatcher: Dispatcher, name: str = "echo", /, timeout: float = TIMEOUT, **arguments: Any
) -> ToolResult:
    return (await dispatcher.dispatch(call(name, **arguments), timeout=timeout))[0]


async def test_no_worker_starts_it(server: Server, dispatcher: Dispatcher) -> None:
    """Answered when the queue wait ends, for good: a worker that comes later does not run it."""
    result = await asked(dispatcher, value=1)
    assert (result.code, result.executed, result.retryable) == (
        Code.EXPIRED, Executed.NO, True,
    )  # fmt: skip
    assert QUEUE_WAIT <= result.duration < QUEUE_WAIT + LATE
    with server.client() as client:
        (record,) = client.scan_iter(RedisKeys().call("*"))
        assert client.hget(record, "state") == b"settled"


async def test_many_calls_that_no_worker_starts(dispatcher: Dispatcher) -> None:
    """Those that were published, and those that still wait in this process."""
    turns = await asyncio.gather(
        *(dispatcher.dispatch(call("echo", value=n), timeout=TIMEOUT) for n in range(200))
    )
    assert {turn[0].code for turn in turns} == {Code.EXPIRED}
    assert {turn[0].executed for turn in turns} == {Executed.NO}
    assert max(turn[0].duration for turn in turns) < QUEUE_WAIT + LATE
    assert dispatcher.in_flight() == 0


async def test_a_server_that_hangs(server: Server, dispatcher: Dispatcher) -> None:
    """Sent, and nobody knows whether it arrived: answered on this process's own clock."""
    server.freeze()
    result = await asked(dispatcher, value=1)
    assert (result.code, result.executed) == (Code.QUEUE_UNREACHABLE, Executed.UNKNOWN)
    assert result.retryable is False, "it may have been queued, and it is no read"
    assert result.duration < DEADLINE + LATE
    server.thaw()


async def test_a_server_that_hangs_while_the_call_is_queued(
    server: Server, dispatcher: Dispatcher
) -> None:
    turn = asyncio.ensure_future(asked(dispatcher, value=1))
    with server.client() as client:
        await eventually(lambda: client.keys(RedisKeys().call("*")), "the call is noted")
    server.freeze()
    result = await turn
    assert result.executed is Executed.UNKNOWN
    assert result.code is Code.QUEUE_UNREACHABLE
    assert result.duration < DEADLINE + LATE
    server.thaw()


async def test_a_server_that_hangs_while_a_call_waits_for_approval(
    server: Server, settings: Settings, catalog: None
) -> None:
    """Nobody can be asked any more: it is answered all the same, and did not run from here."""
    changed = settings.model_copy(update={"approval_expires": 0.5})
    hooks = Hooks(before_call=lambda _: AskApproval())
    async with Dispatcher.connect(settings=changed, hooks=hooks) as dispatcher:
        asking = dispatcher.dispatch(call("echo", value=1), timeout=TIMEOUT, wait=600)
        turn = asyncio.ensure_future(asking)

        async def waits() -> bool:
            return len(await dispatcher.approvals.waiting()) == 1

        await eventually(waits, "the call waits for approval")
        server.freeze()
        done, _ = await asyncio.wait({turn}, timeout=30)
        server.thaw()
        assert done, "it was not answered while the server hung"
        result = (await turn)[0]
    assert (result.code, result.executed) == (Code.QUEUE_UNREACHABLE, Executed.UNKNOWN)


async def test_a_server_that_is_gone(server: Server, dispatcher: Dispatcher) -> None:
    """Refused: not one byte left, so it certainly did not run.

    The first call may still be written to a connection whose other end is gone; nobody knows then.
    """
    server.kill()
    first = await asked(dispatcher, value=1)
    assert (first.ok, first.code) == (False, Code.QUEUE_UNREACHABLE)
    assert first.duration < DEADLINE + LATE
    result = await asked(dispatcher, value=1)
    assert (result.code, result.executed, result.retryable) == (
        Code.QUEUE_UNREACHABLE, Executed.NO, True,
    )  # fmt: skip
    assert result.duration < DEADLINE + LATE


async def test_a_server_that_hangs_while_the_call_runs(
    server: Server, settings: Settings, tmp_path: Path
) -> None:
    """Whether it timed out, nobody here knows; the same dispatcher and worker go on afterwards."""
    trace = tmp_path / "trace"
    with worker(settings):
        async with Dispatcher.connect(settings=settings) as dispatcher:
            assert (await asked(dispatcher, timeout=10, value=1)).ok
            hold = {"gate": str(tmp_path / "gate"), "trace": str(trace)}
            turn = asyncio.ensure_future(asked(dispatcher, "hold", **hold))
            calls = dispatcher._in_flight.all_open()
            await eventually(
                lambda: [pending for pending in calls if pending.stage is Stage.RUNNING],
                "the dispatcher knows that it runs",
            )
            assert trace.exists()
            server.freeze()
            result = await turn
            assert (result.code, result.executed) == (Code.QUEUE_UNREACHABLE, Executed.UNKNOWN)
            assert result.duration < DEADLINE + LATE
            server.thaw()

            async def answers() -> bool:
                return (await asked(dispatcher, timeout=5, value=2)).data == 2

            await eventually(answers, "calls are answered again", 30.0)


async def test_a_worker_that_hangs(settings: Settings, tmp_path: Path) -> None:
    """Claimed, and past its deadline: the ledger says so, and the caller need not wait for more."""
    with worker(settings):
        async with Dispatcher.connect(settings=settings) as dispatcher:
            pid = int((await asked(dispatcher, "whoami", timeout=10)).data)
            trace = tmp_path / "trace"
            hold = {"gate": str(tmp_path / "gate"), "trace": str(trace)}
            turn = asyncio.ensure_future(asked(dispatcher, "hold", **hold))
            await eventually(trace.exists, "the call runs")
            os.kill(pid, signal.SIGSTOP)
            try:
                result = await turn
            finally:
                os.kill(pid, signal.SIGCONT)
    assert (result.code, result.executed, result.retryable) == (
        Code.TIMEOUT, Executed.UNKNOWN, False,
    )  # fmt: skip
    assert DEADLINE - 0.2 < result.duration < DEADLINE + LATE


async def test_a_tool_that_runs_over_is_answered_at_its_timeout(
    settings: Settings, tmp_path: Path
) -> None:
    """By the worker, long before the deadline."""
    with worker(settings):
        async with Dispatcher.connect(settings=settings) as dispatcher:
            hold = {"gate": str(tmp_path / "gate"), "trace": str(tmp_path / "trace")}
            result = await asked(dispatcher, "hold", **hold)
    assert (result.code, result.executed) == (Code.TIMEOUT, Executed.UNKNOWN)
    assert TIMEOUT <= result.duration < DEADLINE


async def test_a_dispatcher_outlives_a_restart_of_the_server(
    server: Server, settings: Settings
) -> None:
    """The reply stream is read on, and the catalog followed, with data or without."""
    with worker(settings):
        async with Dispatcher.connect(settings=settings) as dispatcher:
            for restart in (_with_its_data, _without_its_data):
                assert (await asked(dispatcher, timeout=10, value=1)).ok
                restart(server)

                async def answers() -> bool:
                    return (await asked(dispatcher, timeout=5, value=2)).data == 2

                await eventually(answers, f"calls are answered {restart.__name__}", 40.0)
                assert {"echo", "hold"} <= {spec.name for spec in dispatcher.specs}


def _with_its_data(server: Server) -> None:
    server.kill()
    server.start()


def _without_its_data(server: Server) -> None:
    server.kill()
    for file in server.directory.glob("appendonlydir/*"):
        file.unlink()
    server.start()


@pytest.mark.parametrize("away", ["frozen", "gone"])
async def test_a_server_that_is_away_is_said_at_once(
    server: Server, settings: Settings, away: str
) -> None:
    """R9: connecting raises, and says what to do, within the connect timeout."""
    if away == "frozen":
        server.freeze()
    else:
        server.kill()
    began = asyncio.get_running_loop().time()
    impatient = settings.model_copy(update={"connect_timeout": 0.5})
    with pytest.raises(BrokerUnreachable, match="check that the server runs"):
        async with Dispatcher.connect(settings=impatient):
            pass
    assert asyncio.get_running_loop().time() - began < 0.5 * 2 + LATE
    if away == "frozen":
        server.thaw()
        with redis.Redis.from_url(server.url) as client:
            assert client.ping()

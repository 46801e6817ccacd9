"""A worker that died with its supervisor is noticed by its closed connection, not by its lease.

Leases last for a minute here, so nothing that happens is due to them.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from tests.chaos.fleet import Fleet
from tests.chaos.journal import Journal
from tests.chaos.servers import Server
from tests.integration.fleet import call
from tests.waiting import eventually
from toolpool import Code, Dispatcher, Executed, ToolResult
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.settings import Settings
from toolpool.contract.signing import generate_key
from toolpool.dispatcher.calls import lost_workers
from toolpool.fleet_reader import read_fleet

WAIT_SECONDS = 20.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path / "server", aof=False)
    yield started
    started.close()


@pytest.fixture
def settings(server: Server) -> Settings:
    return Settings(
        redis_url=server.url, signing_key=SecretStr(generate_key()), lease_ttl=60.0, drain_timeout=0
    )


@pytest.fixture
def fleet(settings: Settings, tmp_path: Path) -> Iterator[Fleet]:
    journal = Journal(tmp_path / "journal")
    started = Fleet(
        settings, tmp_path, journal, copies=2, groups=("loop",), tools="tests.fleets.held"
    )
    yield started
    started.close()


@pytest.fixture
async def dispatcher(
    fleet: Fleet, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Dispatcher]:
    monkeypatch.setattr(lost_workers, "_WATCHED_SECONDS", 0.5)
    async with Dispatcher.connect(settings=settings) as connected:
        await eventually(
            lambda: all(lease.subscribed for lease in read_fleet(settings).workers),
            "the workers are subscribed",
        )
        yield connected


class Held:
    """A call that a worker runs, until its gate is opened."""

    def __init__(self, dispatcher: Dispatcher, folder: Path, name: str) -> None:
        self.gate, self.trace = folder / f"{name}.gate", folder / f"{name}.trace"
        asked = call(name, name, gate=str(self.gate), trace=str(self.trace))
        self._turn = asyncio.ensure_future(dispatcher.dispatch(asked, session=name, wait=60))

    @property
    def starts(self) -> int:
        return len(self.trace.read_text().split()) if self.trace.exists() else 0

    async def started(self, times: int = 1) -> None:
        await eventually(lambda: self.starts == times, f"it ran {times} times", WAIT_SECONDS)

    async def result(self) -> ToolResult:
        self.gate.touch()
        return (await asyncio.wait_for(self._turn, WAIT_SECONDS))[0]


def subscribers(server: Server, settings: Settings) -> int:
    names = RedisKeys(settings.key_prefix)
    with server.client() as client:
        channels = [names.liveness(lease.id) for lease in read_fleet(settings).workers]
        return sum(count for _, count in client.pubsub_numsub(*channels))


async def test_calls_of_a_killed_group_are_recovered_while_its_lease_lasts(
    dispatcher: Dispatcher, fleet: Fleet, tmp_path: Path
) -> None:
    for worker in fleet.workers[1:]:
        os.kill(worker.supervisor.pid, signal.SIGSTOP)
        os.kill(worker.pid or 0, signal.SIGSTOP)  # the first runs both calls
    read, write, alone = (
        Held(dispatcher, tmp_path, name) for name in ("held_read", "held_write", "held_exclusive")
    )
    await read.started()
    await write.started()
    await alone.started()
    for worker in fleet.workers[1:]:
        os.kill(worker.pid or 0, signal.SIGCONT)
        os.kill(worker.supervisor.pid, signal.SIGCONT)
    fleet.workers[0].kill_with_supervisor()
    await read.started(2)
    assert (await read.result()).ok
    ended = await write.result()
    assert (ended.code, ended.executed) == (Code.WORKER_LOST, Executed.UNKNOWN)
    assert write.starts == 1
    assert alone.starts == 1, "its worker might still run it: only its lease says that it does not"


@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_closed_channel_of_a_living_worker_is_no_death(
    dispatcher: Dispatcher,
    server: Server,
    settings: Settings,
    tmp_path: Path,
    comes_back: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    held = [Held(dispatcher, tmp_path, name) for name in ("held_read", "held_write")]
    for each in held:
        await each.started()
    with server.client() as client:
        if not comes_back:
            client.execute_command("ACL", "SETUSER", "default", "-subscribe")
        for _ in range(10):
            client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            await asyncio.sleep(0.3)
    if comes_back:
        await eventually(lambda: subscribers(server, settings) == 2, "they are subscribed again")
    after = Held(dispatcher, tmp_path / "after", "held_read")
    after.gate.parent.mkdir()
    for each in (*held, after):
        await each.started()
        assert (await each.result()).ok
        assert each.starts == 1
    assert "requeued" not in caplog.text


async def test_a_server_that_restarts_says_nothing_about_workers(
    dispatcher: Dispatcher, server: Server, settings: Settings, tmp_path: Path
) -> None:
    held = Held(dispatcher, tmp_path, "held_write")
    await held.started()
    with server.client() as client:
        client.save()
    server.kill()
    server.start()
    await eventually(
        lambda: subscribers(server, settings) == 2, "they are subscribed again", WAIT_SECONDS
    )
    assert (await held.result()).ok
    assert held.starts == 1

"""A worker that died with its supervisor is noticed by its closed connection, not by its lease.

Leases last longer here than any test waits, so nothing that happens is due to them.
"""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from tests.chaos.fleet import Fleet
from tests.chaos.journal import Journal
from tests.chaos.proxy import Proxy
from tests.chaos.servers import Server
from tests.integration.fleet import call
from tests.waiting import eventually
from toolpool import Code, Dispatcher, Executed, ToolResult
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.settings import Settings
from toolpool.contract.signing import generate_key
from toolpool.fleet_reader import read_fleet

WAIT_SECONDS = 15.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path / "server", aof=False)
    yield started
    started.close()


@pytest.fixture
def settings(server: Server) -> Settings:
    return Settings(
        redis_url=server.url, signing_key=SecretStr(generate_key()), lease_ttl=20.0, drain_timeout=0
    )


@pytest.fixture
def fleet(settings: Settings, tmp_path: Path) -> Iterator[Fleet]:
    started = held_fleet(settings, tmp_path, copies=2)
    yield started
    started.close()


@pytest.fixture
async def dispatcher(fleet: Fleet, settings: Settings) -> AsyncIterator[Dispatcher]:
    async with Dispatcher.connect(settings=settings) as connected:
        before = beats(settings)
        await eventually(
            lambda: all(beat > before[worker] + 1 for worker, beat in beats(settings).items()),
            "the workers have renewed their leases",
            WAIT_SECONDS,
        )
        yield connected


def beats(settings: Settings) -> dict[str, int]:
    """How often each worker has renewed its lease."""
    return {lease.id: lease.beat for lease in read_fleet(settings).workers}


def held_fleet(settings: Settings, folder: Path, *, copies: int = 1) -> Fleet:
    """Workers whose tools wait for a gate."""
    journal = Journal(folder / "journal")
    return Fleet(
        settings, folder, journal, copies=copies, groups=("loop",), tools="tests.fleets.held"
    )


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


async def subscribed(server: Server, settings: Settings, count: int) -> None:
    """Wait until so many workers are subscribed."""

    def are_subscribed() -> bool:
        names = RedisKeys(settings.key_prefix)
        channels = [names.liveness(lease.id) for lease in read_fleet(settings).workers]
        with server.client() as client:
            return sum(each for _, each in client.pubsub_numsub(*channels)) == count

    await eventually(
        lambda: asyncio.to_thread(are_subscribed), f"{count} are subscribed", WAIT_SECONDS
    )


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
    caplog.set_level("INFO", "toolpool")
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
        await subscribed(server, settings, 2)
    after = Held(dispatcher, tmp_path / "after", "held_read")
    after.gate.parent.mkdir()
    for each in (*held, after):
        await each.started()
        assert (await each.result()).ok
        assert each.starts == 1
    assert "call_again" not in caplog.text


async def test_a_server_that_restarts_says_nothing_about_workers(
    dispatcher: Dispatcher, server: Server, settings: Settings, tmp_path: Path
) -> None:
    held = Held(dispatcher, tmp_path, "held_write")
    await held.started()
    with server.client() as client:
        client.save()
    server.kill()
    server.start()
    await subscribed(server, settings, 2)
    assert (await held.result()).ok
    assert held.starts == 1


async def test_a_worker_that_is_subscribed_at_the_old_server_is_no_death(
    settings: Settings, tmp_path: Path
) -> None:
    """A failover by an address: the old server stays up, and keeps the connections that it has."""
    old, new = Server(tmp_path / "old", listen="port"), Server(tmp_path / "new", listen="port")
    proxy = Proxy(old.port, random.Random(0))
    await proxy.start()
    # The write waits for the first lease of the new server's epoch.
    through = settings.model_copy(update={"redis_url": proxy.url, "lease_ttl": 6.0})
    fleet = await asyncio.to_thread(held_fleet, through, tmp_path)
    try:
        await subscribed(old, through, 1)
        with new.client() as client:
            client.replicaof("127.0.0.1", str(old.port))
            await eventually(
                lambda: client.info("replication")["master_link_status"] == "up", "it has the data"
            )
            client.replicaof("no", "one")
        proxy.target = new.port
        with old.client() as client:  # all but the subscription
            client.execute_command("CLIENT", "KILL", "TYPE", "normal")
        async with Dispatcher.connect(settings=through) as dispatcher:
            held = Held(dispatcher, tmp_path, "held_write")
            await held.started()
            await subscribed(new, through, 1)
            assert (await held.result()).ok
    finally:
        fleet.close()
        await proxy.close()
        old.close()
        new.close()

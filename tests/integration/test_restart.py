"""A server that dies and comes back with its data, or without its last second (R8, R18).

Declared nothing, a tool may not run twice: workers say again what they hold, and what nobody holds
after one lease goes on.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.chaos.servers import Server, free_port
from tests.fleets import road
from tests.integration.fleet import call
from tests.integration.test_deadlines import worker
from tests.waiting import eventually
from toolpool import ApprovalRefused, Dispatcher, ServerError
from toolpool.contract.envelope import Envelope
from toolpool.contract.ledger.lua_scripts import LuaScripts
from toolpool.contract.ledger.redis_ledger import RedisLedger
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server import connection
from toolpool.contract.settings import Settings
from toolpool.contract.spec import RunIn
from toolpool.workers.catalog_publisher import CatalogPublisher

pytestmark = pytest.mark.long

LEASE_GONE = 2.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path / "server")
    yield started
    started.close()


@pytest.fixture
def settings(server: Server) -> Settings:
    return Settings(redis_url=server.url, lease_ttl=LEASE_GONE)


@pytest.fixture
async def dispatcher(settings: Settings) -> AsyncIterator[Dispatcher]:
    envelope = Envelope(connection.keyring(settings))
    with connection.open_sync(settings) as client:
        CatalogPublisher(
            client, [road.count.spec, road.hold.spec], envelope=envelope, settings=settings
        ).stock(b"", time.time())
    async with Dispatcher.connect(settings=settings) as connected:
        yield connected


def ended(trace: Path) -> list[str]:
    return trace.read_text().split() if trace.exists() else []


def forget_from_now_on(server: Server) -> None:
    """What is written after this is not there after a restart."""
    with server.client() as client:
        client.config_set("appendonly", "no")


async def start_again(server: Server) -> None:
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)


def queued(server: Server) -> int:
    with server.client() as client:
        return int(client.llen(RedisKeys().queue("default", RunIn.LOOP)))  # type: ignore[arg-type]


async def test_what_waited_through_a_restart_is_run(
    dispatcher: Dispatcher, server: Server, settings: Settings, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    asked = [
        asyncio.ensure_future(dispatcher.dispatch(call("count", file=str(trace), label=str(n))))
        for n in range(5)
    ]
    await eventually(lambda: queued(server) > 0, "they are queued")
    await start_again(server)
    with worker(settings):
        results = [(await turn)[0] for turn in asked]
    assert [(result.code, result.data) for result in results] == [(None, str(n)) for n in range(5)]
    assert sorted(ended(trace)) == [str(n) for n in range(5)]


async def test_what_waited_and_was_lost_with_the_data_is_not_run(
    server: Server, settings: Settings, dispatcher: Dispatcher, tmp_path: Path
) -> None:
    """Nobody knows whether it was started: it is answered, and not as if it had not been."""
    trace = tmp_path / "trace"
    short = settings.model_copy(update={"queue_timeout": 2.0})
    async with Dispatcher.connect(settings=short) as impatient:
        forget_from_now_on(server)
        asked = asyncio.ensure_future(
            impatient.dispatch(call("count", file=str(trace)), timeout=1.0)
        )
        await eventually(lambda: queued(server) > 0, "it is queued")
        await start_again(server)
        with worker(settings):
            result = (await asked)[0]
    assert (result.ok, result.executed) == (False, Executed.UNKNOWN)
    assert result.code in (Code.EXPIRED, Code.QUEUE_UNREACHABLE)
    assert ended(trace) == []


async def test_what_runs_is_held_though_the_server_forgot_its_claim(
    dispatcher: Dispatcher, server: Server, settings: Settings, tmp_path: Path
) -> None:
    """Another worker would start it: its record says that nobody has."""
    trace, gate = tmp_path / "trace", tmp_path / "gate"
    arguments = {"gate": str(gate), "trace": str(trace)}
    asked = asyncio.ensure_future(dispatcher.dispatch(call("hold", **arguments)))
    await eventually(lambda: queued(server) > 0, "it is queued")
    forget_from_now_on(server)
    with worker(settings):
        await eventually(lambda: ended(trace), "it runs")
        await start_again(server)
        with server.client() as client:
            (key,) = client.scan_iter(RedisKeys().call("*"))
            await eventually(lambda: client.hget(key, "state") == b"claimed", "it is held again")
        with worker(settings):
            await asyncio.sleep(LEASE_GONE + 2.0)  # as long as anybody waits before it goes on
            gate.touch()
            result = (await asked)[0]
    assert result.ok, result.error
    assert ended(trace).count("start") == 1


async def test_what_ended_is_not_run_again_though_the_server_forgot_its_outcome(
    dispatcher: Dispatcher, server: Server, settings: Settings, tmp_path: Path
) -> None:
    """R18: its worker settles it once more, and whoever asks again has the first run's result."""
    trace = tmp_path / "trace"
    response = call("count", file=str(trace), label="once")
    async with Dispatcher.connect(settings=settings) as first:
        (given,) = await first.dispatch(response, session="s", turn="t", wait=0.0)
        assert given.handle
    forget_from_now_on(server)
    with worker(settings):
        await eventually(lambda: ended(trace) == ["once"], "it has run")
        await start_again(server)
        result = (await dispatcher.dispatch(response, session="s", turn="t"))[0]
    assert (result.data, result.executed) == ("once", Executed.YES)
    assert ended(trace) == ["once"]


async def test_a_server_that_is_promoted_again_is_not_the_one_it_was(tmp_path: Path) -> None:
    """R8: after a failback the old primary has its old run id, and may lack what ran meanwhile."""
    first, other = Server(tmp_path / "a", listen="port"), Server(tmp_path / "b", listen="port")
    epochs, run_ids = [], []
    try:
        for primary, replica in ((first, other), (other, first), (first, other)):
            with primary.client() as client, replica.client() as copy:
                client.replicaof("NO", "ONE")
                copy.replicaof("127.0.0.1", str(primary.port))
                await eventually(
                    lambda: copy.info("replication")["master_link_status"] == "up",
                    "the replica follows",
                )
                run_ids.append(client.info("server")["run_id"])
            async with connection.open_async(Settings(redis_url=primary.url)) as steps:
                ledger = RedisLedger(LuaScripts(steps), RedisKeys())
                epoch, _ = await ledger.open(
                    [], nonce="n", reply="r", queue="", message=b"", give_up_at=time.monotonic() + 5
                )
                epochs.append(epoch)
    finally:
        first.close()
        other.close()
    assert run_ids[0] == run_ids[2]
    assert len(set(epochs)) == 3


def replicate(server: Server, *words: str) -> None:
    with server.client() as client:
        client.execute_command("REPLICAOF", *words)


async def test_a_worker_outlives_the_demotion_of_its_server(
    dispatcher: Dispatcher, server: Server, settings: Settings, tmp_path: Path
) -> None:
    """A planned failover, and back: what runs goes on, on the same worker."""
    trace, gate = tmp_path / "trace", tmp_path / "gate"

    def workers() -> list[bytes]:
        with server.client() as client:
            return list(client.scan_iter(RedisKeys().worker("*")))

    with worker(settings):
        arguments = {"gate": str(gate), "trace": str(trace)}
        asked = asyncio.ensure_future(dispatcher.dispatch(call("hold", **arguments)))
        await eventually(lambda: ended(trace), "it runs")
        before = workers()
        for number in range(2):
            replicate(server, "127.0.0.1", str(free_port()))
            replicate(server, "NO", "ONE")
            response = call("count", f"c{number}", file=str(tmp_path / "count"), label=str(number))
            assert (await dispatcher.dispatch(response))[0].ok
        assert workers() == before
        gate.touch()
        assert (await asked)[0].ok
    assert ended(trace) == ["start"]


async def test_a_denied_call_does_not_run_although_older_data_says_that_it_waits(
    server: Server, tmp_path: Path
) -> None:
    """A person approves it again, before the dispatchers notice that the server lost the denial."""
    trace, settings = tmp_path / "trace", Settings(redis_url=server.url)
    asked = call("look_again", trace=str(trace), number=1)
    same = {"session": "s", "turn": "t", "wait": 30.0}
    with server.client() as client:
        client.config_set("appendfsync", "always")
    with worker(settings, "tests.fleets.roads"):
        async with (
            Dispatcher.connect(settings=settings) as one,
            Dispatcher.connect(settings=settings) as other,
        ):
            first = asyncio.ensure_future(one.dispatch(asked, **same))
            await eventually(lambda: queued_for_a_person(server), "it waits for a person")
            await asyncio.to_thread(server.keep_data)
            (waiting,) = await one.approvals.waiting()
            await one.approvals.deny(waiting.id, by="bob", reason="no")
            denied = (await first)[0]
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.restore_data)
            await asyncio.sleep(2.0)  # the dispatchers then survey the server later
            await asyncio.to_thread(server.start)
            again = [asyncio.ensure_future(each.dispatch(asked, **same)) for each in (one, other)]
            approved = 0
            while not all(turn.done() for turn in again):
                with suppress(ServerError, ApprovalRefused):
                    for each in await other.approvals.waiting():
                        await other.approvals.approve(each.id, by="anna", digest=each.digest)
                        approved += 1
                await asyncio.sleep(0.05)
            results = [denied] + [(await turn)[0] for turn in again]
    assert approved == 1, "the older record was approved"
    assert [(result.code, result.executed) for result in results] == [
        (Code.DENIED, Executed.NO)
    ] * 3
    assert ended(trace) == []


def queued_for_a_person(server: Server) -> bool:
    with server.client() as client:
        states = [client.hget(key, "state") for key in client.scan_iter(RedisKeys().call("*"))]
        return states == [b"waiting"]

"""Rate limits over the whole fleet (R60): real dispatchers, one real server, a real worker."""

import asyncio
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.servers import Server
from tests.fleets import limited
from tests.integration import fleet as fleets
from tests.integration.fleet import call
from tests.integration.test_deadlines import worker
from tests.integration.twins import second
from tests.waiting import eventually
from toolpool import Dispatcher, tool
from toolpool.contract.envelope import Envelope, WorkerLease
from toolpool.contract.ledger.lua_scripts import LuaScripts
from toolpool.contract.ledger.rate_counters import GRANTED, RateRequest, RedisRates
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.rate_limits import RateLimits
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.result import ToolResult
from toolpool.contract.server import connection
from toolpool.contract.settings import Settings
from toolpool.contract.spec import RunIn
from toolpool.local import LocalFleet

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with fleets.running("tests.fleets.limited", failure_loop_threshold=0) as started:
        yield started


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace"


def starts(trace: Path, *words: str) -> list[float]:
    """When the tool was started, by its worker's clock."""
    lines = [line.partition(" ") for line in trace.read_text().splitlines()]
    return sorted(float(at) for at, _, word in lines if not words or word in words)


def require_rate(starts: Sequence[float], most: int, seconds: float = 1.0) -> None:
    """In no window are more starts than the limit says."""
    spans = [last - first for first, last in zip(starts, starts[most:], strict=False)]
    assert min(spans, default=seconds) >= seconds, spans


async def ask(dispatcher: Dispatcher, name: str, id: str, session: str, **given: Any) -> ToolResult:
    turn = await dispatcher.dispatch(call(name, id, **given), session=session, turn="t")
    return turn[0]


async def test_in_no_window_more_calls_start_than_the_limit_says(
    fleet: LocalFleet, trace: Path
) -> None:
    """Two dispatchers, many sessions, and three windows' worth of calls at once."""
    async with fleets.connected(fleet) as one, fleets.connected(fleet) as other:
        asked = [
            ask(dispatcher, "hit", f"c{n}", f"s{n % 7}", trace=str(trace))
            for n, dispatcher in zip(range(140), itertools.cycle((one, other)), strict=False)
        ]
        results = await asyncio.gather(*asked)
    assert all(result.ok for result in results)
    assert len(starts(trace)) == 140
    require_rate(starts(trace), 40)


async def test_a_rate_of_each_session_holds_for_both_dispatchers(
    fleet: LocalFleet, trace: Path
) -> None:
    async with fleets.connected(fleet) as one, fleets.connected(fleet) as other:
        asked = [
            ask(dispatcher, "hit_of_session", f"c{n}", session, trace=str(trace), word=session)
            for n, dispatcher in zip(range(5), itertools.cycle((one, other)), strict=False)
            for session in ("a", "b")
        ]
        assert all(result.ok for result in await asyncio.gather(*asked))
    for session in ("a", "b"):
        found = starts(trace, session)
        assert len(found) == 5
        require_rate(found, 2)
    assert starts(trace)[3] - starts(trace)[0] < 1.0, "neither session waits for the other"


async def test_a_limit_of_the_tenant_counts_every_tool(fleet: LocalFleet) -> None:
    async with fleets.connected(
        fleet, tenant_rate="3/day", rate_limit_action="refuse"
    ) as dispatcher:
        results = [await ask(dispatcher, "free", f"c{n}", f"s{n}") for n in range(5)]
    assert [result.ok for result in results] == [True, True, True, False, False]
    assert "tool calls are limited to 3 a day in all" in (results[-1].error or "")


async def test_one_that_was_refused_is_run_when_it_is_asked_again_as_it_was_told(
    fleet: LocalFleet, trace: Path
) -> None:
    """The `no` is written: whoever asks too early hears it again, from any dispatcher."""
    where = str(trace)
    async with (
        fleets.connected(fleet, rate_limit_action="refuse") as one,
        fleets.connected(fleet, rate_limit_action="refuse") as other,
    ):
        assert (await ask(one, "slow_to_come", "c0", "r", trace=where)).ok
        refused = await ask(one, "slow_to_come", "c1", "r", trace=where)
        assert (refused.code, refused.executed) == (Code.OVERLOADED, Executed.NO)
        assert refused.retryable
        assert refused.retry_after is not None
        assert "calls of it are limited to 1 a second" in (refused.error or "")
        early = await ask(other, "slow_to_come", "c1", "r", trace=where)
        assert (early.code, early.executed) == (Code.OVERLOADED, Executed.NO)
        assert len(starts(trace)) == 1

        async def runs() -> bool:
            return (await ask(other, "slow_to_come", "c1", "r", trace=where)).ok

        await eventually(runs, "it is run when it may be")
        assert (await ask(one, "slow_to_come", "c1", "r", trace=where)).ok
    assert len(starts(trace)) == 2, "once"
    require_rate(starts(trace), 1)


async def test_asking_for_a_known_call_takes_no_place(fleet: LocalFleet, trace: Path) -> None:
    async with (
        fleets.connected(fleet, rate_limit_action="refuse") as one,
        fleets.connected(fleet, rate_limit_action="refuse") as other,
    ):

        async def first() -> bool:
            return (await ask(one, "slow_to_come", "k0", "k", trace=str(trace))).ok

        await eventually(first, "the limit has a place again")
        again = await asyncio.gather(
            *(
                ask(each, "slow_to_come", "k0", "k", trace=str(trace))
                for each in (one, other)
                for _ in range(5)
            )
        )
        assert all(result.ok for result in again)
    assert len(starts(trace)) == 1


async def test_a_session_with_many_calls_does_not_hold_up_another(
    fleet: LocalFleet, trace: Path
) -> None:
    ended: list[str] = []
    async with fleets.connected(fleet, queue_timeout=60.0) as dispatcher:

        async def one(session: str, id: str) -> None:
            await ask(dispatcher, "hit", id, session, trace=str(trace), word=session)
            ended.append(session)

        noise = [asyncio.ensure_future(one("noisy", f"n{n}")) for n in range(1000)]
        await eventually(lambda: len(ended) >= 40, "the first window is over")
        before = len(ended)
        await one("quiet", "q")
        assert ended.index("quiet") < before + 80
        await dispatcher.cancel("noisy")
        await asyncio.gather(*noise)


async def test_places_that_a_dispatcher_died_with_come_free(fleet: LocalFleet, trace: Path) -> None:
    """It sent none of the calls: the places are held as long as those could be started."""
    client = connection.open_async(fleet.settings)
    rates = RedisRates(LuaScripts(client), RedisKeys(fleet.settings.key_prefix), queue_timeout=30.0)
    limits = RateLimits(fleet.settings).of(limited.hit.spec, None, fleet.settings.tenant)
    asks = [RateRequest(f"dead{n}", f"dead{n}", 1.0, limits) for n in range(40)]

    async def taken() -> bool:
        soon = time.monotonic() + 5.0
        verdicts = await rates.take([], asks, now=time.time(), give_up_at=soon)
        return verdicts == [GRANTED] * 40

    await eventually(taken, "it has every place")
    began = time.time()
    async with fleets.connected(fleet) as dispatcher:
        assert (await ask(dispatcher, "hit", "d0", "d", trace=str(trace))).ok
    assert starts(trace)[0] >= began
    await client.aclose()


@pytest.mark.parametrize("garbage", ["text", "list", "scores"])
async def test_garbage_under_the_key_of_a_limit_stops_no_call(
    fleet: LocalFleet, trace: Path, garbage: str
) -> None:
    (limit,) = RateLimits(fleet.settings).of(limited.hit.spec, None, fleet.settings.tenant)
    key = RedisKeys(fleet.settings.key_prefix).rate(limit.name)
    with connection.open_sync(fleet.settings) as client:
        client.delete(key)
        if garbage == "text":
            client.set(key, b"\xff\0 nothing")
        elif garbage == "list":
            client.rpush(key, *range(100))
        else:
            far = {f"x{n} y": score for n, score in enumerate([1e300, float("inf"), 9e15] * 40)}
            client.zadd(key, far)
        async with fleets.connected(fleet) as dispatcher:
            assert (await ask(dispatcher, "hit", garbage, "g", trace=str(trace))).ok
        assert client.type(key) == b"zset"
        assert client.zcard(key) == 1
        assert 0 < client.pttl(key) <= 2 * 3_600_000 + 1000


async def test_limits_leave_no_key_behind(fleet: LocalFleet, trace: Path) -> None:
    async with fleets.connected(fleet, session_rate="1000/s") as dispatcher:
        limits = RateLimits(dispatcher._settings).of(limited.hit.spec, "l", fleet.settings.tenant)
        keys = [RedisKeys(fleet.settings.key_prefix).rate(limit.name) for limit in limits]
        assert (await ask(dispatcher, "hit", "l0", "l", trace=str(trace))).ok
        with connection.open_sync(fleet.settings) as client:
            assert client.exists(*keys) == 2
            assert all(0 < client.pttl(key) <= 3 * 3_600_000 for key in keys)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path / "server")
    yield started
    started.close()


@pytest.mark.parametrize("loss", ["restart", "flush"])
async def test_calls_at_the_gate_outlive_their_server(
    server: Server, trace: Path, loss: str
) -> None:
    """None is lost, and none waits for ever: with the counts, or without any data."""
    settings = Settings(redis_url=server.url, lease_ttl=2.0, queue_timeout=20.0)
    with worker(settings, "tests.fleets.limited"):
        async with Dispatcher.connect(settings=settings) as dispatcher:
            asked = [
                asyncio.ensure_future(
                    ask(dispatcher, "hit", f"c{n}", f"s{n % 3}", trace=str(trace), word=str(n))
                )
                for n in range(120)
            ]
            await eventually(lambda: sum(turn.done() for turn in asked) >= 40, "a window is over")
            if loss == "restart":
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            else:
                with server.client() as client:
                    client.flushall()
            results = await asyncio.gather(*asked)
    failed = [(result.code, result.executed) for result in results if not result.ok]
    assert not failed
    assert len(starts(trace)) >= 120
    if loss == "restart":
        require_rate(starts(trace), 40)


async def test_what_lay_on_the_queue_without_a_worker_does_not_start_all_at_once(
    server: Server, trace: Path
) -> None:
    """A place that was taken long before its call is started is not free before that."""
    settings = Settings(redis_url=server.url, lease_ttl=2.0, queue_timeout=25.0)
    with worker(settings, "tests.fleets.limited"):
        pass
    async with Dispatcher.connect(settings=settings) as dispatcher:
        asked = [
            asyncio.ensure_future(ask(dispatcher, "hit", f"c{n}", f"s{n % 9}", trace=str(trace)))
            for n in range(100)
        ]
        with server.client() as client:
            queue = RedisKeys().queue("default", RunIn.LOOP)
            await eventually(lambda: client.llen(queue), "the first are on the queue")
        late = worker(settings, "tests.fleets.limited")
        await asyncio.to_thread(late.__enter__)
        try:
            assert all(result.ok for result in await asyncio.gather(*asked))
        finally:
            await asyncio.to_thread(late.__exit__, None, None, None)
    require_rate(starts(trace), 40)


def most_at_once(trace: Path) -> int:
    """How many ran at the same time, by what each wrote at its start and its end."""
    changes = sorted(
        (float(at), int(change))
        for at, _, change in (line.partition(" ") for line in trace.read_text().splitlines())
    )
    return max(itertools.accumulate(change for _, change in changes))


async def test_so_many_run_at_once_in_the_whole_fleet(fleet: LocalFleet, trace: Path) -> None:
    """Of two dispatchers, each of which may have as many by itself."""
    async with fleets.connected(fleet) as one, fleets.connected(fleet) as other:
        asked = [
            ask(dispatcher, "few", f"f{n}", f"s{n % 3}", trace=str(trace))
            for n, dispatcher in zip(range(20), itertools.cycle((one, other)), strict=False)
        ]
        assert all(result.ok for result in await asyncio.gather(*asked))
    assert len(trace.read_text().splitlines()) == 40
    assert most_at_once(trace) == 2


async def test_a_running_call_keeps_its_place_though_its_dispatcher_is_gone(
    fleet: LocalFleet, trace: Path
) -> None:
    """Its worker goes on with it; the place comes free when it ends."""
    where = str(trace)
    async with fleets.connected(fleet) as gone:
        for n in range(2):
            (handed,) = await gone.dispatch(
                call("few", f"g{n}", trace=where, seconds=2.0), session="g", turn="t", wait=0.2
            )
            assert handed.is_running
        await eventually(lambda: trace.exists() and most_at_once(trace) == 2, "both run")
    async with fleets.connected(fleet, rate_limit_action="refuse") as other:
        assert (await ask(other, "few", "g2", "g", trace=where)).ok
    assert most_at_once(trace) == 2


async def test_places_of_a_worker_that_died_come_free(tmp_path: Path, trace: Path) -> None:
    """With its lease, and its calls' answers; what may run twice is run again."""
    settings = {"lease_ttl": 2.0, "queue_timeout": 60.0}
    with fleets.running("tests.fleets.limited", **settings) as fleet:
        async with fleets.connected(fleet) as dispatcher:
            asked = [
                asyncio.ensure_future(
                    ask(dispatcher, "few", f"w{n}", "w", trace=str(trace), seconds=1.0)
                )
                for n in range(4)
            ]
            await eventually(lambda: trace.exists() and most_at_once(trace) == 2, "two run")
            with connection.open_sync(fleet.settings) as client:
                envelope = Envelope(connection.keyring(fleet.settings))
                for lease in list(
                    client.scan_iter(RedisKeys(fleet.settings.key_prefix).worker("*"))
                ):
                    os.kill(envelope.decode(WorkerLease, client.get(lease)).pid, signal.SIGKILL)
            results = await asyncio.gather(*asked)
    assert all(result.ok for result in results)


# Over the in-memory server: what waits at the gate is as good as what waits in the pump.


@tool(rate="1/h")
async def rare() -> str:
    """Be started once an hour at most."""
    return "ran"


@tool(rate="1/h", background=True, timeout=100.0)
async def rare_job() -> str:
    """Be started once an hour at most, in the background."""
    return "ran"


@tool(rate="3/h", retries=5, effects="read")
async def failing() -> str:
    """Fail always."""
    raise ConnectionError("never")


@pytest.fixture
async def dispatcher() -> AsyncIterator[Dispatcher]:
    settings = Settings(queue_timeout=10_000.0, retry_delay=0.001, background_wait=0.01)
    tools = [rare, rare_job, failing]
    async with Dispatcher.in_memory(tools, settings=settings) as connected:
        yield connected


async def test_one_that_waits_at_the_gate_can_be_cancelled(dispatcher: Dispatcher) -> None:
    assert (await dispatcher.dispatch(call("rare"), session="a", turn="1")).ok
    waiting = asyncio.ensure_future(dispatcher.dispatch(call("rare", "w"), session="a", turn="2"))
    await eventually(lambda: dispatcher.in_flight("a") == 1, "it is open")
    assert await dispatcher.cancel("a") == 1
    (cancelled,) = await waiting
    assert (cancelled.code, cancelled.executed) == (Code.CANCELLED, Executed.NO)
    assert dispatcher._in_flight._pump.waiting == 0


async def test_one_that_waits_behind_others_learns_that_another_dispatcher_cancelled_it(
    dispatcher: Dispatcher,
) -> None:
    assert (await dispatcher.dispatch(call("rare"), session="a", turn="1")).ok
    ahead, behind = (
        asyncio.ensure_future(dispatcher.dispatch(call("rare", id), session="a", turn="2"))
        for id in ("v", "w")
    )
    await eventually(lambda: dispatcher.in_flight("a") == 2, "both wait")
    async with second(dispatcher, queue_timeout=10_000.0) as other:  # type: ignore[arg-type]
        asked = asyncio.ensure_future(other.dispatch(call("rare", "w"), session="a", turn="2"))
        await eventually(lambda: other.in_flight("a") == 1, "it is open there, too")
        assert await other.cancel("a") == 1
        results = [(await turn)[0] for turn in (asked, behind)]
    assert {(r.code, r.executed) for r in results} == {(Code.CANCELLED, Executed.NO)}
    assert not ahead.done()
    await dispatcher.cancel("a")
    assert (await ahead)[0].code is Code.CANCELLED


async def test_one_that_waits_at_the_gate_ends_with_its_dispatcher(dispatcher: Dispatcher) -> None:
    assert (await dispatcher.dispatch(call("rare"), session="a", turn="1")).ok
    waiting = [
        asyncio.ensure_future(dispatcher.dispatch(call("rare", f"w{n}"), **where))
        for n, where in enumerate([{"session": "a", "turn": "2"}, {}])
    ]
    await eventually(lambda: dispatcher.in_flight() == 2, "they are open")
    await dispatcher.close()
    found = [(await turn)[0] for turn in waiting]
    assert [result.code for result in found] == [Code.CANCELLED, Code.CANCELLED]


async def test_one_that_waits_at_the_gate_is_handed_over(dispatcher: Dispatcher) -> None:
    """It has a handle, is listed as waiting, and can be stopped."""
    assert (await dispatcher.dispatch(call("rare_job"), session="a", turn="1", wait=60.0)).ok
    (handed,) = await dispatcher.dispatch(call("rare_job", "w"), session="a", turn="2")
    assert handed.is_running
    assert handed.handle is not None
    (listed,) = await dispatcher.task_list(session="a")
    assert listed["state"] == "PENDING"
    assert await dispatcher.task_result(handed.handle, session="a") is None
    stopped = await dispatcher.task_cancel(handed.handle, session="a")
    assert (stopped.code, stopped.executed) == (Code.CANCELLED, Executed.NO)


async def test_the_kill_switch_reaches_what_waits_at_the_gate(dispatcher: Dispatcher) -> None:
    first = dispatcher.dispatch(call("rare"), session="a", turn="1")
    assert (await first).ok
    waiting = asyncio.ensure_future(dispatcher.dispatch(call("rare", "w"), session="a", turn="2"))
    await eventually(lambda: dispatcher.in_flight("a") == 1, "it is open")
    await dispatcher.deny("rare", reason="not now")
    assert (await waiting)[0].code is Code.DENIED
    assert dispatcher._in_flight._pump.waiting == 0


async def test_every_retry_by_the_pool_is_a_start(dispatcher: Dispatcher) -> None:
    """The limit is not what a tool's own retries may break."""
    failed = asyncio.ensure_future(dispatcher.dispatch(call("failing"), session="a", turn="1"))
    traffic = dispatcher._in_flight
    await eventually(
        lambda: traffic._pump.waiting == 1 and [each.retries for each in traffic.all_open()] == [3],
        "the fourth waits",
    )
    await dispatcher.cancel("a")
    assert (await failed)[0].code is Code.CANCELLED


async def test_one_that_waits_in_vain_is_refused_by_its_deadline() -> None:
    """The refused one says the limit, and when; another call of another tool is not touched."""
    settings = Settings(queue_timeout=0.3, rate_limit_action="wait")
    async with Dispatcher.in_memory([rare], settings=settings) as dispatcher:
        assert (await dispatcher.dispatch(call("rare"), session="a", turn="1")).ok
        (refused,) = await dispatcher.dispatch(call("rare", "w"), session="a", turn="2")
    assert refused.code is Code.OVERLOADED
    assert refused.payload()["retryAfter"] > 3000
    assert refused.recommendations == ("Wait before you call it again, and send fewer calls.",)


async def test_a_dispatcher_without_the_limit_starts_no_more_than_it_says(
    fleet: LocalFleet, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R67: it is old, or frozen: a worker counts a start as it claims the call."""
    async with fleets.connected(fleet) as honest, fleets.connected(fleet) as lax:
        monkeypatch.setattr(lax._in_flight._rate_gate, "submit", lax._in_flight._pump.submit)
        asked = [
            asyncio.ensure_future(ask(each, "hit", f"{name}{n}", name, trace=str(trace)))
            for n in range(60)
            for each, name in ((honest, "honest"), (lax, "lax"))
        ]
        results = await asyncio.gather(*asked)
        assert all(result.ok for result in results), {result.code for result in results}
    require_rate(starts(trace), 40)


async def test_a_limit_that_only_the_workers_know_holds_for_every_dispatcher(trace: Path) -> None:
    """R67: the setting is missing where the calls come from."""
    with fleets.running("tests.fleets.limited", tenant_rate="10/s") as fleet:
        async with fleets.connected(fleet, tenant_rate=None) as dispatcher:
            assert not dispatcher._in_flight._rate_gate._limits.hold_all
            asked = [ask(dispatcher, "hit", f"c{n}", f"s{n}", trace=str(trace)) for n in range(25)]
            results = await asyncio.gather(*asked)
    assert all(result.ok for result in results), {result.code for result in results}
    assert len(starts(trace)) == 25
    require_rate(starts(trace), 10)

"""The server's clock jumps an hour forward or back, and fleet time goes on as if it had not.

Two dispatchers and a worker on a server whose clock can be set.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.chaos.scene import Skipped
from tests.chaos.servers import Server
from tests.chaos.wall_clock import WallClock
from tests.integration.fleet import call
from tests.integration.test_deadlines import worker
from tests.waiting import eventually, wait_until
from toolpool import Dispatcher
from toolpool.contract.approval_messages import (
    ApprovalDecision,
    ApprovalReader,
    ApprovalRequest,
)
from toolpool.contract.envelope import CallMessage, Envelope
from toolpool.contract.fleet_clock import fleet_time
from toolpool.contract.ledger.approval_steps import DecisionStep, WaitStep
from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.contract.ledger.protocols import (
    NEW,
    OTHERS,
    RAN,
    Claim,
    CloseReason,
    Closing,
    Opening,
    Settlement,
)
from toolpool.contract.ledger.rate_counters import RateRelease, RateRequest, start_of
from toolpool.contract.outcome import Code, Executed, failure
from toolpool.contract.rates import AT_ONCE, Limit, Rate, rate_of
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server import connection
from toolpool.contract.settings import Settings
from toolpool.contract.signing import Keyring
from toolpool.dispatcher.admission.breaker import Breaker
from toolpool.dispatcher.calls.fleet_circuits import FleetCircuits
from toolpool.dispatcher.calls.services import Services
from toolpool.dispatcher.observer import Observers
from toolpool.dispatcher.transports.base import NoteBatch, Survey, TurnNote
from toolpool.dispatcher.transports.redis import RedisTransport
from toolpool.fleet_reader import describe, read_fleet
from toolpool.fleet_state import described_dispatchers

HOUR = 3600.0
ENVELOPE = Envelope(Keyring.local())
NEAR = 2.0


def one_time(dispatcher: Dispatcher) -> float:
    """Fleet time as a dispatcher has it."""
    return dispatcher._parts.in_flight._transport.server_time()


@dataclass
class Jumping:
    """A server whose clock can be set, and what talks to it."""

    clock: WallClock
    server: Server
    settings: Settings

    def time(self) -> float:
        """Fleet time as the server has it now."""
        with connection.open_sync(self.settings) as client:
            return fleet_time(client, self.settings)

    def jump(self, seconds: float) -> None:
        """Set the server's clock, and wait until it reads it again."""
        self.clock.offset += seconds
        with self.server.client() as client:
            wait_until(
                lambda: abs(client.time()[0] - time.time() - self.clock.offset) < NEAR,
                "the server has read its clock",
            )

    def forget(self) -> None:
        """Lose all data."""
        with self.server.client() as client:
            client.flushall()


@pytest.fixture
def jumping(tmp_path: Path) -> Iterator[Jumping]:
    try:
        clock = WallClock(tmp_path, "server")
    except Skipped as reason:
        pytest.skip(str(reason))
    server = Server(tmp_path / "server", aof=False, environment=clock.environment)
    yield Jumping(clock, server, Settings(redis_url=server.url, lease_ttl=4.0))
    server.close()


@pytest.fixture
async def transports(jumping: Jumping) -> AsyncIterator[list[RedisTransport]]:
    """Two that have read the clock."""
    async with AsyncExitStack() as stack:
        found = [RedisTransport(jumping.settings) for _ in range(2)]
        for transport in found:
            await transport.open()
            stack.push_async_callback(transport.close)
            await transport.survey([])
            transport._clock._read_since -= 10.0  # they vouch for the time, as after some seconds
        yield found


async def surveys(transports: list[RedisTransport]) -> list[Survey]:
    return [await transport.survey([]) for transport in transports]


@pytest.mark.parametrize("jump", [HOUR, -HOUR, 60.0])
async def test_the_first_process_that_checks_corrects_the_clock_and_all_are_notified(
    jumping: Jumping, transports: list[RedisTransport], jump: float
) -> None:
    epochs = {survey.epoch for survey in await surveys(transports)}
    before = transports[0].server_time()
    jumping.jump(jump)
    told = [survey.clock_jumped for survey in await surveys(transports)]
    assert told == [True, True]
    assert abs(jumping.time() - before) < NEAR
    assert all(abs(transport.server_time() - before) < NEAR for transport in transports)
    after = await surveys(transports)
    assert [survey.clock_jumped for survey in after] == [False, False]
    assert {survey.epoch for survey in after} == epochs


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_a_process_that_starts_before_a_jump_is_corrected_takes_the_corrected_time(
    jumping: Jumping, transports: list[RedisTransport], jump: float
) -> None:
    """And does not correct it back: a worker refused what was approved, for an hour."""
    await surveys(transports)  # those that start agree from their second look on
    before = transports[0].server_time()
    jumping.jump(jump)
    fresh = RedisTransport(jumping.settings)
    await fresh.open()
    first = asyncio.ensure_future(fresh.survey([]))

    async def has_looked() -> bool:
        with jumping.server.client() as client:
            return bool(client.exists(RedisKeys().dispatcher(fresh.id)))

    await eventually(has_looked, "it has read the clock that jumped")
    assert all(survey.clock_jumped for survey in await surveys(transports))
    await first
    await fresh.survey([])
    assert not any(survey.clock_jumped for survey in await surveys(transports))
    assert abs(fresh.server_time() - before) < NEAR
    assert abs(jumping.time() - before) < NEAR
    await fresh.close()


async def test_a_jump_there_and_back_leaves_fleet_time_as_it_was(
    jumping: Jumping, transports: list[RedisTransport]
) -> None:
    before = transports[0].server_time()
    for jump in (HOUR, -HOUR, -HOUR, HOUR):
        jumping.jump(jump)
        await surveys(transports)
        assert abs(jumping.time() - before) < NEAR


async def test_the_offset_is_restored_after_a_loss_of_data(
    jumping: Jumping, transports: list[RedisTransport]
) -> None:
    before = transports[0].server_time()
    jumping.jump(HOUR)
    (epoch, _) = [survey.epoch for survey in await surveys(transports)]
    jumping.forget()
    after = await surveys(transports)
    assert epoch not in [survey.epoch for survey in after]
    assert abs(jumping.time() - before) < NEAR


async def test_a_dispatcher_that_was_suspended_follows_the_fleet(
    jumping: Jumping, transports: list[RedisTransport], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its monotonic clock stood still with its virtual machine."""
    suspended, other = transports
    other._clock._offset -= 10.0  # what a clock that stood still for 10 s shows
    assert other._clock._last is not None
    other._clock._last = other._clock._last._replace(time=other._clock._last.time - 10.0)
    before = jumping.time()
    await suspended.survey([])
    assert (await other.survey([])).clock_jumped
    assert abs(jumping.time() - before) < NEAR
    assert abs(other.server_time() - before) < NEAR


async def test_a_worker_alone_corrects_too(
    jumping: Jumping, transports: list[RedisTransport]
) -> None:
    with worker(jumping.settings):
        before = transports[0].server_time()
        jumping.jump(HOUR)
        await eventually(lambda: abs(jumping.time() - before) < 60.0, "it is corrected")
        jumping.jump(-2 * HOUR)
        await eventually(lambda: abs(jumping.time() - before) < 60.0, "and again")


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_a_kept_result_grows_old_across_a_jump(
    jumping: Jumping, jump: float, tmp_path: Path
) -> None:
    """A result of 1.5 s is given for as long, and no longer."""
    arguments = {"trace": str(tmp_path / "trace")}
    with worker(jumping.settings, "tests.fleets.sharing"):
        async with Dispatcher.connect(settings=jumping.settings) as dispatcher:
            assert (await dispatcher.dispatch(call("price", **arguments)))[0].data == 1
            jumping.jump(jump)

            async def is_new() -> bool:
                asked_at = time.monotonic()
                (result,) = await dispatcher.dispatch(call("price", **arguments))
                assert result.data == 2 or asked_at < first_at + 1.5
                return bool(result.data == 2)

            first_at = time.monotonic()
            await eventually(is_new, "it is too old")


async def test_a_handed_over_call_survives_a_clock_jump_for_every_asker(
    jumping: Jumping, tmp_path: Path
) -> None:
    """By its deadline on the server's clock it would be over for an hour."""
    with worker(jumping.settings):
        async with AsyncExitStack() as stack:
            one, two = [
                await stack.enter_async_context(Dispatcher.connect(settings=jumping.settings))
                for _ in range(2)
            ]
            gate, trace = tmp_path / "gate", tmp_path / "trace"
            asked = call("hold", gate=str(gate), trace=str(trace))
            (turn,) = await one.dispatch(asked, session="s", wait=0.0)
            assert turn.handle is not None
            await eventually(trace.exists, "it runs")
            jumping.jump(HOUR)
            await eventually(lambda: abs(jumping.time() - one_time(one)) < NEAR, "it is corrected")
            assert await two.task_result(turn.handle, session="s") is None
            gate.touch()
            result = await two.task_result(turn.handle, session="s", wait=20.0)
            assert result is not None
            assert result.ok


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_the_notes_of_turns_are_found_after_a_jump(
    jumping: Jumping, transports: list[RedisTransport], jump: float
) -> None:
    one, other = transports
    await one.note_turns([NoteBatch(one.server_time(), [TurnNote("s", "t", "n")])])
    jumping.jump(jump)
    await surveys(transports)
    await one.note_turns([NoteBatch(one.server_time(), [TurnNote("s", "u", "n")])])
    assert [note.turn for note in await other.turns("s")] == ["t", "u"]


@pytest.mark.parametrize("jump", [600.0, -600.0])
async def test_an_open_circuit_is_open_for_its_pause_across_a_jump(
    jumping: Jumping, transports: list[RedisTransport], jump: float
) -> None:
    """A jump backwards would leave a circuit of 3 s open for ten minutes."""
    settings = Settings(circuit_scope="fleet", circuit_reset_timeout=3.0)
    envelope = Envelope(Keyring.local())
    breakers = [Breaker(settings, Observers()) for _ in transports]
    circuits = [
        FleetCircuits(Services(transport, envelope, settings, Observers()), breaker)
        for transport, breaker in zip(transports, breakers, strict=True)
    ]
    for _ in range(settings.circuit_minimum_calls):
        breakers[0].note("look", failure(Code.RAISED, "", Executed.YES, worker="w"))
    await circuits[0].follow()
    jumping.jump(jump)
    await surveys(transports)
    await circuits[1].follow()
    left = breakers[1].retry_after("look")
    assert left is not None
    assert 0.0 < left <= 3.0 + NEAR


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_calls_go_on_across_a_jump(jumping: Jumping, jump: float) -> None:
    with worker(jumping.settings):
        async with AsyncExitStack() as stack:
            one, two = [
                await stack.enter_async_context(Dispatcher.connect(settings=jumping.settings))
                for _ in range(2)
            ]
            assert (await one.dispatch(call("echo", value="before")))[0].ok
            jumping.jump(jump)
            turns = [d.dispatch(call("echo", value="after")) for d in (one, two) for _ in range(5)]
            assert all(result.ok for turn in await asyncio.gather(*turns) for result in turn)


async def test_a_reply_stream_outlives_a_jump(jumping: Jumping) -> None:
    """Else it began anew, and its ids might be lower than those that were read before."""
    with worker(jumping.settings):
        async with Dispatcher.connect(settings=jumping.settings) as dispatcher:
            stream = RedisKeys().reply(dispatcher._parts.in_flight._transport.id)
            assert (await dispatcher.dispatch(call("echo", value=1)))[0].ok
            jumping.jump(HOUR)
            with jumping.server.client() as client:
                assert client.exists(stream)


async def test_ages_of_workers_and_dispatchers_are_in_fleet_time(jumping: Jumping) -> None:
    """Whatever the clock of the host that asks, and across a jump."""
    jumping.jump(-HOUR)
    with worker(jumping.settings):
        async with Dispatcher.connect(settings=jumping.settings):
            jumping.jump(2 * HOUR)
            await eventually(lambda: abs(jumping.time() - time.time() + HOUR) < 60.0, "corrected")

            async def are_told() -> bool:
                fleet = await asyncio.to_thread(read_fleet, jumping.settings)
                ups = [describe(lease, fleet)["up"] for lease in fleet.workers]
                ups += [each["up"] for each in described_dispatchers(fleet)]
                return len(ups) == 2 and all(0.0 < up < 60.0 for up in ups)

            await eventually(are_told, "both are up for seconds")


def deciding(request: ApprovalRequest, now: float) -> DecisionStep:
    """Somebody approves."""
    decision = ApprovalDecision(
        key=request.id,
        tenant=request.tenant,
        prefix=request.prefix,
        digest=request.digest,
        approved=True,
        by="anna",
        at=now,
        ends_at=request.expires_at + 60.0,
    )
    body = ENVELOPE.encode(decision)
    return DecisionStep(
        key=request.id, nonce="n", decision=body, notice=body, approved=True, ends_at=now + 60.0
    )


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_what_waits_for_a_person_waits_as_long_across_a_jump(
    jumping: Jumping, transports: list[RedisTransport], jump: float
) -> None:
    """R66: it can be decided until its end, and not after it, however the clock was set."""
    one, two = transports
    now = one.server_time()
    for key, good in (("long", 600.0), ("short", 2.0)):
        request = ApprovalRequest(
            tenant="default",
            prefix="toolpool",
            message=CallMessage(key=key, id="c", tool="t", digest="", arguments={}),
            digest="d",
            asked_at=now,
            expires_at=now + good,
        )
        asking = WaitStep(
            key=key,
            nonce=f"n{key}",
            request=ENVELOPE.encode(request),
            rerunnable=False,
            ends_at=request.expires_at,
            kept=86_400.0,
            keep=86_400.0,
            asked_at=now,
        )
        assert (await one.approvals.ask(asking, now=now)).answer == "new"
    jumping.jump(jump)
    later = two.server_time()
    assert {found.key for found in await two.approvals.waiting(9, now=later)} == {"long", "short"}
    data = (await two.approvals.read("long", now=later)).request
    request = ApprovalReader(ENVELOPE, "default", "toolpool").request("long", data)
    assert await two.approvals.decide(deciding(request, later), now=later) == ""
    assert await one.approvals.approved(now=one.server_time()) == ["long"]

    async def is_over() -> bool:
        waiting = await two.approvals.waiting(9, now=two.server_time())
        return not waiting

    await eventually(is_over, "the other's time ends")
    assert two.server_time() - now < 60.0


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_a_rate_counts_on_across_a_jump(
    jumping: Jumping, transports: list[RedisTransport], jump: float
) -> None:
    one, two = transports
    limit = Limit("l", rate_of("2/min"), "tool")

    async def asked(transport: RedisTransport, *members: str) -> list[bool]:
        asks = [RateRequest(member, member, 5.0, (limit,)) for member in members]
        now, soon = transport.server_time(), time.monotonic() + 5.0
        found = await transport.rates.take([], asks, now=now, give_up_at=soon)
        return [verdict.may_go for verdict in found]

    started = [RateRelease(start_of(member, "n"), (limit,), started=True) for member in "ab"]
    await one.rates.take(started, [], now=one.server_time(), give_up_at=time.monotonic() + 5.0)
    jumping.jump(jump)
    assert await asked(two, "c", "d") == [False, False]
    await surveys(transports)
    assert await asked(one, "c", "d") == [False, False]
    found = await one.rates.take(
        [],
        [RateRequest("c", "c", 5.0, (limit,))],
        now=one.server_time() + 61.0,
        give_up_at=time.monotonic() + 5.0,
    )
    assert found[0].may_go


def closing(key: str, transport: RedisTransport, keep: float = 60.0) -> Closing:
    return Closing(key, f"n-{key}", transport.epoch, keep, b"no", b"stopped", b"?", b"cancel")


async def opened(transport: RedisTransport, *keys: str) -> list[bytes]:
    """Open writes that wait and run for less than half a minute."""
    openings = [Opening(key, 1, False, 10.0, 20.0, 60.0, transport.server_time()) for key in keys]
    _, answers = await transport._ledger.open(
        openings,
        nonce=new_nonce(),
        reply=transport.reply,
        queue="queue",
        message=b"",
        give_up_at=time.monotonic() + 5.0,
    )
    return answers


async def closed(transport: RedisTransport, end: CloseReason, *closings: Closing) -> list[bytes]:
    return await transport._ledger.close(
        closings, reply=transport.reply, end=end, give_up_at=time.monotonic() + 5.0
    )


async def test_a_call_that_was_told_no_does_not_run_after_a_jump(
    jumping: Jumping, transports: list[RedisTransport]
) -> None:
    one, two = transports
    await surveys(transports)
    keys = ["at once", "corrected", "later"]
    assert await opened(one, *keys) == [NEW] * 3
    closings = [closing(key, one, 1.0 if key == "later" else 60.0) for key in keys]
    assert await closed(one, CloseReason.CANCEL, *closings) == [b"no"] * 3
    over_at = two.server_time() + 1.0
    jumping.jump(HOUR)
    assert await opened(two, "at once") == [RAN]
    await surveys(transports)
    assert await opened(two, "corrected") == [RAN]
    await eventually(lambda: two.server_time() > over_at, "the refusal's time is over")
    assert await opened(two, "later") == [NEW]


async def test_a_refused_call_runs_when_its_time_is_over_though_no_process_agrees_yet(
    jumping: Jumping, transports: list[RedisTransport]
) -> None:
    """As in the first seconds of a fleet that was stopped."""
    one, _ = transports
    await surveys(transports)
    await opened(one, "k")
    assert await closed(one, CloseReason.CANCEL, closing("k", one, 0.1)) == [b"no"]
    over_at = one.server_time() + 0.1
    with jumping.server.client() as client:
        state = client.get(RedisKeys().epoch).decode().split(" ")
        state[2] = str(int(state[2]) - 10_000)
        client.set(RedisKeys().epoch, " ".join(state))
    await eventually(lambda: one.server_time() > over_at, "the refusal's time is over")
    assert await opened(one, "k") == [NEW]
    claims, soon = [Claim("k", 1, "c")], time.monotonic() + 5.0
    [left] = await one._ledger.claim(claims, worker="w", give_up_at=soon)
    assert isinstance(left, float)


@pytest.mark.parametrize("end", [CloseReason.LEAVE, CloseReason.DEADLINE])
async def test_a_call_is_not_ended_beside_a_living_dispatcher_after_a_jump(
    jumping: Jumping, transports: list[RedisTransport], end: CloseReason
) -> None:
    one, two = transports
    await surveys(transports)
    for transport in transports:
        await opened(transport, "at once", "corrected")
    jumping.jump(30.0)
    assert await closed(one, end, closing("at once", one)) == [OTHERS]
    await one.survey([])
    assert await closed(one, end, closing("corrected", one)) == [OTHERS]
    with jumping.server.client() as client:  # as if it had died long before
        client.set(RedisKeys().dispatcher(two.id), f"{round(jumping.time() * 1000)} report")
    await opened(one, "corrected")
    assert await closed(one, CloseReason.LEAVE, closing("corrected", one)) == [b"no"]


async def test_a_server_that_stood_still_makes_no_dispatcher_look_dead(
    jumping: Jumping, transports: list[RedisTransport]
) -> None:
    """For ten seconds, in which nobody agreed with the time; then one does before another."""
    one, two = transports
    await surveys(transports)
    keys = ["at once", "agreed", "dead"]
    for transport in transports:
        await opened(transport, *keys)
    with jumping.server.client() as client:
        state = client.get(RedisKeys().epoch).decode().split(" ")
        state[2] = str(int(state[2]) - 10_000)
        client.set(RedisKeys().epoch, " ".join(state))
        client.set(RedisKeys().dispatcher(two.id), f"{int(state[2]) + 7000} report")
        assert await closed(one, CloseReason.LEAVE, closing("at once", one)) == [OTHERS]
        await one.survey([])
        assert await closed(one, CloseReason.LEAVE, closing("agreed", one)) == [OTHERS]
        state = client.get(RedisKeys().epoch).decode().split(" ")
        state[5] = str(int(state[5]) - 10_000)
        client.set(RedisKeys().epoch, " ".join(state))
    assert await closed(one, CloseReason.LEAVE, closing("dead", one)) == [b"no"]


async def test_a_dispatcher_whose_lease_is_over_is_not_shown(
    jumping: Jumping, transports: list[RedisTransport]
) -> None:
    """Its key is kept for longer, because the clock may jump."""
    await surveys(transports)
    names = RedisKeys()
    with jumping.server.client() as client:
        for id_, left in (("alive", 5000), ("dead", 0)):
            client.zadd(names.dispatchers, {id_: jumping.time() * 1000})
            client.set(names.dispatcher(id_), f"{round(jumping.time() * 1000) + left} another's")
        client.zadd(names.dispatchers, {"closed": jumping.time() * 1000})
    assert read_fleet(jumping.settings).foreign_dispatchers == ["alive"]


async def test_a_call_of_a_worker_whose_lease_is_gone_keeps_its_place_for_a_while(
    jumping: Jumping, transports: list[RedisTransport]
) -> None:
    """Also if it has an answer: a thread goes on after its timeout. Its next attempt may start."""
    one, two = transports
    await surveys(transports)
    limit = Limit("running", Rate(1, AT_ONCE), "tool")

    async def may_start(key: str) -> bool:
        asked, soon = RateRequest(key, key, 5.0, (limit,)), time.monotonic() + 5.0
        [found] = await two.rates.take([], [asked], now=two.server_time(), give_up_at=soon)
        return found.may_go

    async def claim(key: str, worker: str, attempt: int = 1) -> float | str:
        claims, now = [Claim(key, attempt, worker, (limit,))], one.server_time()
        soon = time.monotonic() + 5.0
        return (await one._ledger.claim(claims, worker=worker, give_up_at=soon, now=now))[0]

    names, soon = RedisKeys(), time.monotonic() + 10.0
    with jumping.server.client() as client:
        for worker in ("w1", "w2"):
            client.set(names.worker(worker), "{}", px=8000)
        await opened(one, "k")
        assert isinstance(await claim("k", "w1"), float)
        jumping.jump(30.0)
        client.hset(names.call("k"), "state", "open")  # it is to be started again
        assert await may_start("other")
        note = RateRelease("other", (limit,))
        await two.rates.take([note], [], now=two.server_time(), give_up_at=soon)
        await surveys(transports)
        client.set(names.worker("w2"), "{}", px=8000)
        client.delete(names.ran("k"))
        assert isinstance(await claim("k", "w2"), float)
        await one._ledger.settle([Settlement("k", "s", 60.0, "", b"late")], give_up_at=soon)
        assert not await may_start("other")
        jumping.jump(30.0)
        assert not client.exists(names.worker("w2"))
        assert not await may_start("other")

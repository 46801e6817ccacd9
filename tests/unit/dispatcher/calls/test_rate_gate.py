"""The gate (R60): who passes, who waits, who is refused, and what becomes of places."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.dispatcher.samples import HeldTransport, Told, away, pending, services, turns
from tests.waiting import eventually
from toolpool.contract.ledger.rate_counters import RateRelease, RateRequest, RateVerdict, start_of
from toolpool.contract.outcome import Code, Executed, Outcome, failure
from toolpool.contract.rates import Limit, rate_of
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.spec import RunIn, ToolSpec
from toolpool.dispatcher.calls.pending import PendingCall, Stage
from toolpool.dispatcher.calls.pump import Pump
from toolpool.dispatcher.calls.rate_gate import RateGate, _Group
from toolpool.dispatcher.outcomes import not_queued


class Rates:
    """The real places, and each step that was asked for; it fails when the test says so."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.steps: list[tuple[list[RateRelease], list[RateRequest]]] = []
        self.fails: list[Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def take(
        self,
        notes: Sequence[RateRelease],
        asks: Sequence[RateRequest],
        *,
        now: float,
        give_up_at: float,
    ) -> list[RateVerdict]:
        self.steps.append((list(notes), list(asks)))
        await self.gate.wait()
        await asyncio.sleep(0)
        if self.fails:
            raise self.fails.pop(0)
        verdicts: list[RateVerdict] = await self.real.take(
            notes, asks, now=now, give_up_at=give_up_at
        )
        return verdicts


class Bench(Told):
    """A gate before a pump, and what became of their calls."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.transport = HeldTransport()
        self.rates = Rates(self.transport.rates)
        self.transport.rates = self.transport._server.rates = self.rates  # type: ignore[assignment]
        held = services(self.transport, **settings)
        self.pump = Pump(held, self)
        self.pump.set_workers({RedisKeys().queue("default", run_in): [9] for run_in in RunIn})
        self.gate = RateGate(held, self, pump=self.pump)

    def resolve(self, pending: PendingCall, outcome: Outcome) -> None:
        """As the dispatcher does."""
        if pending.is_open:
            for taken in self.rates.real._taken.values():
                taken.pop(start_of(pending.key, "n", "w"), None)
            self.gate.ended(pending)
            pending.answer(outcome)
            self.pump.done(pending)

    def submit(
        self, *keys: str, rate: str = "2/h", per: str = "fleet", **more: Any
    ) -> list[PendingCall]:
        """Calls named `session-number` of a tool with a rate."""
        spec = ToolSpec(name="t", rate=rate, rate_per=per)
        calls = [
            pending(key, flow=(name := key.split("-")[0]), session=name, spec=spec, **more)
            for key in keys
        ]
        for call in calls:
            self.calls[call.key] = call
            self.gate.submit(call)
        return calls

    @property
    def sent(self) -> list[str]:
        """The keys of every message, in order."""
        return [key for batch in self.transport.batches for key in batch]

    @property
    def told(self) -> list[str]:
        """The calls that the server was told of: they hold no place any more."""
        return [note.member for notes, _ in self.rates.steps for note in notes]

    def begin(self, *calls: PendingCall) -> None:
        """A worker has these, and says so."""
        real = self.transport._server.rates.real  # type: ignore[attr-defined]
        for call in calls:
            limits = call.limited.limits if call.limited else ()
            assert real.may_start(call.key, "n", limits)
            for limit in limits:
                if limit.rate.seconds:
                    until = time.monotonic() + limit.rate.seconds
                    real._taken[limit.name][start_of(call.key, "n")] = until
            self.pump.queue_of(call).started(call)


async def test_a_call_under_no_limit_passes_without_asking() -> None:
    bench = Bench()
    call = pending("a-0")
    bench.gate.submit(call)
    await turns()
    assert bench.sent == ["a-0"]
    assert not bench.rates.steps


async def test_what_arrives_in_one_turn_of_the_loop_asks_in_one_step() -> None:
    bench = Bench()
    bench.submit(*(f"s{n}-0" for n in range(50)), rate="60/h")
    await turns(10)
    assert [len(asks) for _, asks in bench.rates.steps] == [50]
    assert sorted(bench.sent) == sorted(f"s{n}-0" for n in range(50))


async def test_one_that_could_have_no_place_in_time_is_refused_at_once_with_the_time() -> None:
    bench = Bench()
    *_, last = bench.submit("a-0", "b-0", "c-0")
    await turns(10)
    assert bench.sent == ["a-0", "b-0"]
    outcome = last.outcome
    assert outcome is not None
    assert (outcome.code, outcome.executed) == (Code.OVERLOADED, Executed.NO)
    assert outcome.retry_after is not None
    assert 3590 < outcome.retry_after <= 3600.1
    assert bench.words("c-0")[:1] == ["refused"], "on the road that writes a no"


async def test_later_ones_are_refused_without_asking_again() -> None:
    bench = Bench()
    bench.submit("a-0", "b-0", "c-0", wait=0.5)
    await turns(10)
    asked = len(bench.rates.steps)
    (kept,) = bench.submit("d-0", wait=10_000.0)
    (late,) = bench.submit("d-1", wait=0.5)
    await turns(10)
    assert late.outcome is not None
    assert kept.outcome is None, "it has the time to wait"
    assert len(bench.rates.steps) <= asked + 1
    assert bench.pump.waiting == 1


async def test_what_waits_goes_on_when_a_window_has_passed_since_the_start() -> None:
    bench = Bench()
    calls = bench.submit("a-0", "a-1", "a-2", "a-3", rate="2/s")
    await turns(10)
    assert bench.sent == ["a-0", "a-1"]
    assert calls[2].stage is Stage.NEW
    assert bench.pump.waiting == 2, "it counts as waiting"
    began = time.monotonic()
    bench.begin(*calls[:2])
    await eventually(lambda: len(bench.sent) == 4, "the next two are sent")
    assert time.monotonic() - began > 0.99
    assert bench.pump.waiting == 0


async def test_sessions_take_turns_at_the_gate() -> None:
    """A session with a thousand waiting calls does not keep another's single one waiting."""
    bench = Bench()
    noisy = bench.submit(*(f"noisy-{n}" for n in range(1000)), rate="3/s", wait=10_000.0)
    await turns(20)
    assert bench.sent == ["noisy-0", "noisy-1", "noisy-2"]
    (quiet,) = bench.submit("quiet-0", rate="3/s", wait=10_000.0)
    bench.begin(*noisy[:3])
    await eventually(lambda: len(bench.sent) == 6, "three more are sent")
    assert "quiet-0" in bench.sent[3:]
    assert quiet.stage is not Stage.NEW


async def test_sessions_take_turns_one_place_at_a_time() -> None:
    bench = Bench()
    bench.submit(*(f"noisy-{n}" for n in range(9)), rate="1/h", wait=100_000.0)
    await turns(10)
    bench.submit("quiet-0", "quiet-1", rate="1/h", wait=100_000.0)
    for sent in range(1, 6):
        assert len(bench.sent) == sent
        bench.resolve(bench.calls[bench.sent[-1]], failure(Code.EXPIRED, "", Executed.NO))
        await turns(10)
    assert [key.partition("-")[0] for key in bench.sent[:6]] == [
        "noisy", "noisy", "quiet", "noisy", "quiet", "noisy",
    ]  # fmt: skip


async def test_tools_take_turns_where_many_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step has room for so many only: nobody's calls fill it before all others'."""
    monkeypatch.setattr("toolpool.dispatcher.calls.rate_gate._AT_ONCE", 1)
    bench = Bench()
    bench.submit("a-0", "a-1", "a-2", rate="9/h")
    spec = ToolSpec(name="u", rate="9/h")
    for n in range(3):
        bench.gate.submit(pending(f"b-{n}", flow="b", session="b", spec=spec))
    await eventually(lambda: len(bench.sent) == 6, "all are sent")
    assert [key[0] for key in bench.sent] == ["a", "b", "a", "b", "a", "b"]


async def test_places_that_could_not_be_given_back_are_when_the_server_is_back() -> None:
    bench = Bench()
    (call,) = bench.submit("a-0")
    await turns(10)
    bench.rates.fails.append(away(sent=True))
    bench.resolve(call, failure(Code.EXPIRED, "", Executed.NO))
    await eventually(lambda: len(bench.told) == 2, "it is told once more")
    assert bench.told == ["a-0"] * 2


async def test_one_tools_waiting_calls_hold_up_no_other_tool() -> None:
    bench = Bench()
    bench.submit(*(f"a-{n}" for n in range(10)), wait=10_000.0)
    await turns(10)
    other = pending("a-other", flow="a", session="a", spec=ToolSpec(name="u", rate="1/h"))
    bench.gate.submit(other)
    await turns(10)
    assert bench.sent == ["a-0", "a-1", "a-other"]


@pytest.mark.parametrize(("per", "sent"), [("session", 4), ("tenant", 2), ("fleet", 2)])
async def test_a_tools_rate_counts_for_whom_it_says(per: str, sent: int) -> None:
    bench = Bench()
    bench.submit("a-0", "a-1", "a-2", "b-0", "b-1", "b-2", per=per)
    await turns(10)
    assert len(bench.sent) == sent


async def test_sessions_and_tenants_have_limits_of_their_own() -> None:
    """Every call counts, whatever its tool; one without a session counts for the tenant alone."""
    bench = Bench(session_rate="3/h", tenant_rate="5/h")
    for key in ("a-0", "a-1", "b-0", "a-2", "a-3", "b-1", "b-2"):
        flow = key.split("-")[0]
        spec = ToolSpec(name=f"tool{key}")
        call = pending(key, flow=flow, session=flow, spec=spec)
        bench.calls[key] = call
        bench.gate.submit(call)
    await turns(10)
    assert Counter(key[0] for key in bench.sent) == {"a": 3, "b": 2}
    told = {call.outcome.error for call in bench.calls.values() if call.outcome is not None}
    assert told == {"over_rate session 3/h", "over_rate tenant 5/h"}


async def test_over_the_limit_may_be_refused_at_once() -> None:
    bench = Bench(rate_limit_action="refuse")
    calls = bench.submit("a-0", "a-1", "a-2", "a-3", rate="2/s")
    await turns(10)
    assert bench.sent == ["a-0", "a-1"]
    assert [call.outcome.code for call in calls[2:] if call.outcome] == [Code.OVERLOADED] * 2
    assert [call.outcome.retry_after for call in calls[2:] if call.outcome] == [1.0, 1.0]


async def test_a_call_that_never_ran_gives_its_place_to_the_next_at_once() -> None:
    bench = Bench()
    first, second, waiting = bench.submit("a-0", "a-1", "a-2", wait=10_000.0)
    await turns(10)
    assert waiting.stage is Stage.NEW
    bench.resolve(first, failure(Code.EXPIRED, "", Executed.NO))
    await turns(10)
    assert bench.sent == ["a-0", "a-1", "a-2"]
    bench.begin(second)
    bench.resolve(second, failure(Code.CANCELLED, "", Executed.NO))
    (other,) = bench.submit("a-3", wait=10_000.0)
    await turns(10)
    assert other.stage is Stage.NEW, "one that a worker had counts, whatever became of it"


async def test_a_call_that_a_worker_found_no_place_for_waits_until_there_is_one() -> None:
    """As a dispatcher without the limit has started others meanwhile."""
    bench = Bench()
    (call,) = bench.submit("a-0", rate="1/s")
    await turns(10)
    real = bench.rates.real
    (limit,) = call.limited.limits if call.limited is not None else ()
    real._taken.clear()
    assert real.may_start("another", "n", (limit,))
    real._taken[limit.name][start_of("another", "n")] = time.monotonic() + 0.05
    assert not real.may_start("a-0", "n", (limit,))
    bench.gate.hold_again(call, (limit,))
    assert (call.stage, bench.pump.waiting) == (Stage.NEW, 1)
    await eventually(lambda: bench.words("a-0")[-1:] == ["joined"], "it is sent again")
    assert bench.pump.waiting == 0
    assert real.may_start("a-0", "n", (limit,))


async def test_a_call_that_was_sent_back_is_not_let_go_because_it_has_a_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolpool.dispatcher.calls.rate_gate._FOLLOW_SECONDS", 0.01)
    bench = Bench()
    call, behind = bench.submit("a-0", "a-1", rate="1/h", wait=100_000.0)
    await turns(10)
    real = bench.rates.real
    (limit,) = call.limited.limits if call.limited is not None else ()
    real._taken.clear()
    assert real.may_start("another", "n", (limit,))
    bench.gate.hold_again(call, (limit,))
    real._is_known = {"a-0", "a-1"}.__contains__
    following = asyncio.ensure_future(bench.gate.follow())
    await eventually(lambda: behind.stage is not Stage.NEW, "what others have sent goes")
    await asyncio.sleep(0.05)
    assert call.limited is not None and call.limited.waits
    following.cancel()


async def test_a_limit_that_only_a_worker_knows_holds_a_call_here() -> None:
    """As the workers' setting for a tenant, which this dispatcher lacks."""
    bench = Bench()
    call = pending("a-0")
    bench.calls["a-0"] = call
    bench.gate.submit(call)
    await turns(10)
    limit, real = Limit("theirs", rate_of("1/s"), "tenant"), bench.rates.real
    assert real.may_start("another", "n", (limit,))
    bench.gate.hold_again(call, (limit,))
    await turns(10)
    assert (call.stage, call.message.limits) == (Stage.NEW, (limit,))
    assert bench.words("a-0")[-1:] != ["joined"]
    real._taken.clear()
    await eventually(lambda: bench.words("a-0")[-1:] == ["joined"], "it is sent again")


async def test_what_another_dispatcher_has_sent_is_left_to_it() -> None:
    bench = Bench()
    (call,) = bench.submit("a-0")
    await turns(10)
    call.is_attached = True
    bench.resolve(call, Outcome(ok=True, data=1, worker="w"))
    await bench.gate.close()
    assert not bench.told


async def test_a_call_that_has_a_record_takes_no_place() -> None:
    bench = Bench()
    bench.transport._server._is_known = lambda key: key == "a-0"  # type: ignore[method-assign]
    bench.rates.real._is_known = lambda key: key == "a-0"
    bench.submit("a-0", "a-1", "a-2")
    await turns(10)
    assert sorted(bench.sent) == ["a-0", "a-1", "a-2"]


async def test_a_denied_call_leaves_the_gate_when_its_turn_comes() -> None:
    bench = Bench()
    bench.denials["a-0"] = not_queued(Code.DENIED, "no")
    denied, other, third = bench.submit("a-0", "a-1", "a-2")
    await turns(10)
    assert denied.outcome is not None
    assert denied.outcome.code is Code.DENIED
    assert bench.sent == ["a-1", "a-2"], "it took no place"
    assert other.stage is third.stage is Stage.QUEUED


async def test_a_call_that_is_being_cancelled_is_not_sent() -> None:
    bench = Bench()
    *_, waiting = bench.submit("a-0", "a-1", "a-2", wait=10_000.0)
    await turns(10)
    waiting.abandoned()
    bench.resolve(bench.calls["a-0"], failure(Code.EXPIRED, "", Executed.NO))
    await turns(10)
    assert bench.sent == ["a-0", "a-1"]
    assert bench.pump.waiting == 0
    bench.resolve(waiting, failure(Code.CANCELLED, "", Executed.NO))
    assert waiting.limited is None


async def test_one_that_is_answered_while_it_asks_gives_its_place_back() -> None:
    bench = Bench()
    bench.rates.gate.clear()
    first, *_ = bench.submit("a-0", "a-1", "a-2", wait=10_000.0)
    await turns(10)
    bench.resolve(first, failure(Code.CANCELLED, "", Executed.NO))
    bench.rates.gate.set()
    await turns(20)
    assert bench.sent == ["a-1", "a-2"]


async def test_a_retry_that_asks_while_the_first_is_asked_about_has_its_own_place() -> None:
    """The same call under another record: what was granted to the first is not the second's."""
    bench = Bench()
    bench.rates.gate.clear()
    (call,) = bench.submit("a-0", rate="5/h")
    await turns(10)
    bench.gate.ended(call)
    call.start_again(start_by=call.start_by, before=failure(Code.RAISED, "", Executed.NO))
    bench.gate.submit(call)
    bench.rates.gate.set()
    await turns(20)
    members = {ask.member for _, asks in bench.rates.steps for ask in asks}
    assert members == {"a-0", "a-0.1"}
    assert bench.sent == ["a-0.1"]
    (taken,) = bench.rates.real._taken.values()
    assert set(taken) == {"a-0.1"}


async def test_a_call_that_timed_out_at_a_rate_limit_names_the_limit() -> None:
    """Not that no worker started it."""
    bench = Bench()
    *_, waiting = bench.submit("a-0", "a-1", "a-2", rate="2/s")
    await turns(10)
    bench.gate.rate_wait_ended(waiting)
    assert waiting.outcome is not None
    assert (waiting.outcome.code, waiting.outcome.error) == (Code.OVERLOADED, "over_rate tool 2/s")
    assert waiting.outcome.retry_after is not None
    assert bench.pump.waiting == 0
    bench.gate.rate_wait_ended(waiting)


async def test_calls_wait_through_a_server_outage_and_are_answered_after_it() -> None:
    bench = Bench()
    bench.rates.gate.clear()
    bench.rates.fails += [away(sent=True), away(sent=False)]
    first, second = bench.submit("a-0", "a-1", rate="1/h", wait=10_000.0)
    await turns(10)
    bench.gate.rate_wait_ended(first)
    assert first.outcome is not None
    assert first.outcome.code is Code.QUEUE_UNREACHABLE
    bench.rates.gate.set()
    await turns(20)
    assert bench.sent == ["a-1"], "the other goes on when the server is back"
    assert second.stage is Stage.QUEUED


async def test_a_step_that_cannot_be_done_stops_no_call() -> None:
    """An error of the server that no repetition mends: the limit is not kept, the calls go on."""
    bench = Bench()
    bench.rates.fails.append(ValueError("no permission"))
    bench.submit("a-0", "a-1", "a-2", rate="3/h")
    await turns(10)
    assert bench.sent == ["a-0", "a-1", "a-2"]


async def test_what_waits_at_the_gate_counts_for_the_waiting_rooms() -> None:
    bench = Bench(waiting_per_session=3, waiting_per_dispatcher=5)
    bench.submit(*(f"a-{n}" for n in range(2)), wait=10_000.0)
    await turns(10)
    calls = bench.submit(*(f"a-{n}" for n in range(2, 6)), wait=10_000.0)
    assert [call.outcome.error for call in calls if call.outcome] == [""], "too many are waiting"
    bench.submit(*(f"b-{n}" for n in range(3)), wait=10_000.0)
    assert bench.pump.waiting == 5
    assert not [p for p in bench.calls.values() if p.outcome and p.outcome.error]


async def test_at_the_end_the_server_is_told_what_became_of_the_places() -> None:
    bench = Bench()
    first, second, third = bench.submit("a-0", "a-1", "a-2", wait=10_000.0)
    await turns(10)
    bench.begin(first)
    bench.resolve(second, failure(Code.CANCELLED, "", Executed.NO))
    await bench.gate.close()
    assert bench.told == ["a-1"]
    bench.resolve(third, failure(Code.CANCELLED, "", Executed.NO))
    await turns(10)
    assert bench.sent == ["a-0", "a-1"], "nothing is sent any more"


async def test_a_server_that_is_away_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolpool.dispatcher.calls.rate_gate._LAST_WORD_SECONDS", 0.01)
    bench = Bench()
    bench.rates.gate.clear()
    bench.submit("a-0")
    await turns(10)
    await bench.gate.close()


def few(key: str, **more: Any) -> PendingCall:
    """A call of a tool that runs twice at once at most."""
    spec = ToolSpec(name="t", concurrency=2, concurrency_scope="fleet")
    return pending(key, flow=key.split("-")[0], session="s", spec=spec, **more)


async def test_the_place_of_what_runs_is_kept_until_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No window is over meanwhile; its end lets the next go at once."""
    bench = Bench(rate_limit_action="refuse")
    server = bench.transport._server
    monkeypatch.setattr(bench.rates.real, "_is_under_way", lambda key: True)
    calls = [few(f"a-{n}") for n in range(4)]
    for call in calls:
        bench.gate.submit(call)
    await turns(10)
    assert bench.sent == ["a-0", "a-1"]
    assert calls[2].outcome is None, "it waits: what is over no rate is not refused"
    bench.begin(*calls[:2])
    bench.resolve(calls[0], Outcome(ok=True, data=1, worker="w"))
    await turns(10)
    assert bench.sent == ["a-0", "a-1", "a-2"]
    bench.resolve(calls[1], failure(Code.EXPIRED, "", Executed.NO))
    await turns(10)
    assert bench.sent == ["a-0", "a-1", "a-2", "a-3"]
    assert server.rates is bench.rates  # type: ignore[comparison-overlap]


async def test_places_that_nobody_gives_back_are_found() -> None:
    """Of calls that never were sent, or whose record is settled."""
    bench = Bench()
    bench.gate.submit(few("a-0", wait=0.001))
    bench.gate.submit(few("a-1", wait=0.001))
    await turns(10)
    late = few("b-0", wait=10_000.0)
    bench.gate.submit(late)
    await eventually(lambda: "b-0" in bench.sent, "it has the place of one that nobody can start")


async def test_a_tool_may_be_under_a_rate_and_a_cap() -> None:
    bench = Bench()
    spec = ToolSpec(name="t", rate="3/h", concurrency=2, concurrency_scope="fleet")
    calls = [pending(f"a-{n}", flow="a", spec=spec, wait=10_000.0) for n in range(4)]
    for call in calls:
        bench.gate.submit(call)
    await turns(10)
    assert bench.sent == ["a-0", "a-1"]
    bench.begin(*calls[:2])
    for call in calls[:2]:
        bench.resolve(call, Outcome(ok=True, data=1, worker="w"))
    await turns(20)
    assert bench.sent == ["a-0", "a-1", "a-2"]


def test_the_soonest_start_is_a_bound() -> None:
    """With so many of the session's own ahead, and nobody else's."""
    group = _Group((Limit("l", rate_of("10/s"), ""), Limit("m", rate_of("2/min"), "")), free_at=5.0)
    assert [group.soonest(ahead) for ahead in (0, 1, 2, 9, 10)] == [5.0, 5.0, 65.0, 245.0, 305.0]

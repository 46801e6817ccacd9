"""Deadlines and cancels on the in-memory server: what each stage of a call comes to (R8, R34)."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.dispatcher.samples import Told, pending, services
from tests.waiting import eventually
from toolpool.contract.envelope import Cancel, Envelope, Settled
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.contract.ledger.protocols import Claim, CloseReason, Settlement
from toolpool.contract.outcome import Code, Executed, Outcome
from toolpool.contract.signing import Keyring
from toolpool.dispatcher.calls.deadlines import Deadlines
from toolpool.dispatcher.calls.pending import PendingCall, Stage
from toolpool.dispatcher.transports.memory import MemoryTransport

ENVELOPE = Envelope(Keyring.local())
SOON = 0.05


class Bench(Told):
    """A keeper over a server in memory, and what became of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.server = MemoryServer()
        self.transport = MemoryTransport(self.server)
        self.services = services(self.transport)
        self.keeper = Deadlines(self.services, self)
        self.on_answer = self.keeper.forget

    def settled(self, reply: bytes) -> None:
        """As the collector does."""
        found = ENVELOPE.decode_reply(reply)
        assert isinstance(found, Settled)
        self.resolve(self.calls[found.key], found.outcome)

    def keep(self, call: PendingCall, stage: Stage) -> PendingCall:
        """Watch a call in a stage."""
        self.calls[call.key] = call
        call.stage = stage
        self.keeper.watch(call)
        return call

    async def open(self, *calls: PendingCall) -> None:
        """Note calls in the ledger."""
        now = time.monotonic()
        epoch, _ = await self.transport.publish(
            [call.opening(now, time.time()) for call in calls],
            nonce="n", queue="q", message=b"m", give_up_at=now + 1,
        )  # fmt: skip
        for call in calls:
            call.epoch = epoch

    async def claim(self, call: PendingCall) -> None:
        """Let a worker have it."""
        await self.server.claim(
            [Claim(call.key, 1, "c")], worker="w-1", give_up_at=time.monotonic() + 1
        )


async def outcome_of(call: PendingCall) -> tuple[Code | None, Executed]:
    await eventually(lambda: not call.is_open, "it is answered")
    assert call.outcome is not None
    return call.outcome.code, call.outcome.executed


async def test_a_call_that_never_left_expires_here() -> None:
    bench = Bench()
    call = bench.keep(pending("k", wait=SOON), Stage.WAITING)
    assert await outcome_of(call) == (Code.EXPIRED, Executed.NO)


async def test_a_queued_call_is_ended_when_its_queue_wait_ends() -> None:
    bench = Bench()
    call = pending("k", wait=SOON, deadline=60)
    await bench.open(call)
    bench.keep(call, Stage.QUEUED)
    assert await outcome_of(call) == (Code.EXPIRED, Executed.NO)
    assert await bench.server.claim(
        [Claim("k", 1, "late")], worker="w-1", give_up_at=time.monotonic() + 1
    ) == ["settled"]


async def test_a_call_whose_worker_was_lost_is_not_said_to_have_never_been_started() -> None:
    """As no other worker starts its next attempt: a release withdrew that it may run twice."""
    bench = Bench()
    call = pending("k", wait=SOON, deadline=60)
    await bench.open(call)
    await bench.claim(call)
    record = bench.server.records["k"]
    record.state, record.attempt = "open", 2
    call.in_attempt(2)
    bench.keep(call, Stage.QUEUED)
    assert await outcome_of(call) == (Code.WORKER_LOST, Executed.UNKNOWN)


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_started_call_is_said_to_be_timed_out_only_while_its_worker_lives(
    is_lost: bool,
) -> None:
    bench = Bench()
    call = pending("k", wait=SOON, deadline=0.3)
    await bench.open(call)
    await bench.claim(call)
    call.worker = "w-1"
    bench.lost_workers = {"w-1"} if is_lost else set()
    bench.keep(call, Stage.RUNNING)
    code = Code.WORKER_LOST if is_lost else Code.TIMEOUT
    assert await outcome_of(call) == (code, Executed.UNKNOWN)


async def test_a_queued_call_that_a_worker_has_meanwhile_goes_on() -> None:
    """Its notice may be on its way: the ledger knows better."""
    bench = Bench()
    call = pending("k", wait=SOON, deadline=0.6)
    await bench.open(call)
    await bench.claim(call)
    bench.keep(call, Stage.QUEUED)
    await eventually(lambda: bench.words("k") == ["started"], "the keeper has heard of it")
    assert call.is_open
    assert await outcome_of(call) == (Code.TIMEOUT, Executed.UNKNOWN)
    assert await bench.server.take("cancel:w-1") == (
        "cancel:w-1", ENVELOPE.encode(Cancel(key="k")),
    )  # fmt: skip


@pytest.mark.parametrize("stage", [Stage.RUNNING, Stage.QUEUED, Stage.PUBLISHING, Stage.ORPHANED])
async def test_the_deadline_is_kept_without_a_server(stage: Stage) -> None:
    """On this process's own clock, and with no more than it knows."""
    bench = Bench()
    bench.transport.close_calls = _silent  # type: ignore[method-assign]
    call = bench.keep(pending("k", wait=SOON, deadline=3 * SOON), stage)
    assert await outcome_of(call) == (Code.QUEUE_UNREACHABLE, Executed.UNKNOWN)
    assert 0 <= call.answered_at - call.deadline < 0.2
    bench.keeper.close()


async def _silent(*_: Any, **__: Any) -> list[bytes]:
    await asyncio.Event().wait()
    raise AssertionError


async def _failing(*_: Any, **__: Any) -> list[bytes]:
    raise ZeroDivisionError


async def test_a_fault_in_closing_does_not_keep_a_call_from_its_answer() -> None:
    bench = Bench()
    bench.transport.close_calls = _failing  # type: ignore[method-assign]
    late = bench.keep(pending("k", wait=SOON, deadline=3 * SOON), Stage.RUNNING)
    assert await outcome_of(late) == (Code.QUEUE_UNREACHABLE, Executed.UNKNOWN)
    unwanted = bench.keep(pending("l"), Stage.RUNNING)
    await bench.keeper.cancel([unwanted], everywhere=True)
    assert await outcome_of(unwanted) == (Code.CANCELLED, Executed.UNKNOWN)


async def test_a_record_that_is_lost_is_said_to_be_unknown() -> None:
    bench = Bench()
    call = pending("k", wait=SOON, deadline=4 * SOON)
    await bench.open(call)
    bench.server.forget()
    bench.keep(call, Stage.QUEUED)
    assert await outcome_of(call) == (Code.EXPIRED, Executed.UNKNOWN)


async def test_across_an_epoch_no_answer_says_that_a_call_did_not_run() -> None:
    """A restart or failover may have lost a claim."""
    bench = Bench()
    call = pending("k", wait=SOON, deadline=60)
    await bench.open(call)
    bench.server.epoch = "memory.another"
    bench.keep(call, Stage.QUEUED)
    assert await outcome_of(call) == (Code.EXPIRED, Executed.UNKNOWN)


async def test_an_outcome_that_came_first_stands() -> None:
    """A dispatcher that was frozen past a deadline takes what the worker had settled."""
    bench = Bench()
    call = pending("k", wait=SOON, deadline=60)
    await bench.open(call)
    await bench.claim(call)
    body = ENVELOPE.encode_reply(Settled(key="k", outcome=Outcome(ok=True, data=1)))
    await bench.server.settle(
        [Settlement("k", "n", 60, "elsewhere", body)], give_up_at=time.monotonic() + 1
    )
    bench.keep(call, Stage.QUEUED)
    await eventually(lambda: not call.is_open, "it is answered")
    assert call.outcome is not None
    assert call.outcome.data == 1


@pytest.mark.parametrize("count", [1, 200])
async def test_cancelled_calls_say_whether_they_had_started(count: int) -> None:
    """R34; many at once go in groups."""
    bench = Bench()
    waiting = [bench.keep(pending(f"w{n}"), Stage.WAITING) for n in range(count)]
    queued = [pending(f"q{n}") for n in range(count)]
    running = [pending(f"r{n}") for n in range(count)]
    await bench.open(*queued, *running)
    for call in running:
        await bench.claim(call)
    for call in (*queued, *running):
        bench.keep(call, Stage.QUEUED)
    await bench.keeper.cancel([*waiting, *queued, *running], everywhere=True)
    answers = [_answers(calls) for calls in (waiting, queued, running)]
    assert answers == [
        {(Code.CANCELLED, Executed.NO)},
        {(Code.CANCELLED, Executed.NO)},
        {(Code.CANCELLED, Executed.UNKNOWN)},
    ]


def _answers(calls: Sequence[PendingCall]) -> set[tuple[Code | None, Executed]]:
    return {(call.outcome.code, call.outcome.executed) for call in calls if call.outcome}


async def test_calls_expire_in_the_order_of_their_waits() -> None:
    """One timer serves those that were watched in order, and a shorter wait is not held up."""
    bench = Bench()
    calls = [
        bench.keep(pending(key, wait=wait), Stage.WAITING)
        for key, wait in (("a", 0.1), ("b", 0.15), ("short", 0.02), ("c", 0.2))
    ]
    bench.keeper.forget(calls[1])
    await eventually(lambda: len([c for c in calls if not c.is_open]) == 3, "three have expired")
    ended = [c.key for c in sorted(calls, key=lambda c: c.answered_at) if not c.is_open]
    assert ended == ["short", "a", "c"]
    assert calls[1].is_open, "nobody keeps its times any more"


async def test_a_fault_with_one_call_does_not_stop_the_clock_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    first = bench.keep(pending("a", wait=SOON), Stage.WAITING)
    second = bench.keep(pending("b", wait=2 * SOON), Stage.WAITING)
    answer = bench.refuse

    def fail_once(pending: PendingCall, outcome: Outcome) -> None:
        monkeypatch.setattr(bench, "refuse", answer)
        raise ZeroDivisionError

    monkeypatch.setattr(bench, "refuse", fail_once)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    await eventually(lambda: second.outcome is not None, "the other is answered")
    assert first.outcome is None


async def test_a_dispatcher_that_stood_still_asks_before_it_answers() -> None:
    """What was settled meanwhile is the answer, and not that nothing was heard of it."""
    bench = Bench()
    call = pending("a", wait=-3.0, deadline=-1.0)
    bench.calls["a"] = call
    bench.server.records.clear()
    opened = pending("a", wait=5.0, deadline=9.0)
    await bench.open(opened)
    call.epoch = opened.epoch
    await bench.claim(call)
    done = ENVELOPE.encode_reply(Settled(key="a", outcome=Outcome(ok=True, data="in time")))
    await bench.server.settle(
        [Settlement("a", "s", 60.0, "reply", done)], give_up_at=time.monotonic() + 1
    )
    bench.keep(call, Stage.RUNNING)
    await eventually(lambda: not call.is_open, "it is answered")
    assert call.outcome is not None
    assert call.outcome.data == "in time"


async def test_a_cancel_does_not_queue_behind_what_waits_for_an_absent_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R34."""
    bench = Bench()
    gone: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    answers = bench.transport.close_calls

    async def absent(*args: Any, end: CloseReason, **kwargs: Any) -> Any:
        return await (answers(*args, end=end, **kwargs) if end is CloseReason.CANCEL else gone)

    monkeypatch.setattr(bench.transport, "close_calls", absent)
    stuck = [bench.keep(pending(f"s{n}", wait=SOON), Stage.QUEUED) for n in range(1000)]
    await asyncio.sleep(2 * SOON)
    wanted = pending("a")
    await bench.open(wanted)
    bench.keep(wanted, Stage.QUEUED)
    async with asyncio.timeout(2.0):
        await bench.keeper.cancel([wanted], everywhere=True)
    assert wanted.outcome is not None
    assert wanted.outcome.code is Code.CANCELLED
    assert all(call.is_open for call in stuck)
    bench.keeper.close()


async def test_a_dispatcher_that_gives_up_leaves_what_another_waits_for() -> None:
    """A cancel of one's own ends it all the same."""
    bench = Bench()
    call = pending("k", wait=9.0)
    await bench.open(call)
    other = bench.server
    other.dispatchers.add("reply:other")
    record = other.record("k")
    assert record is not None
    record.state = record.approval = "waiting"
    record.replies.append("reply:other")
    assert await bench.keeper.end_record(call)
    assert record.state == "waiting"
    call.is_cancelled = True
    assert await bench.keeper.end_record(call)
    assert record.approval == "cancelled"

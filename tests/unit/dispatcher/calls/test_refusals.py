"""A `no` is said only when it is written that nobody may run the call (R8, R18)."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.dispatcher.samples import Told, away, pending, services, turns
from tests.waiting import eventually
from toolpool.contract.envelope import Envelope, Settled
from toolpool.contract.ledger.answers import CallState, LedgerAnswer
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.contract.ledger.protocols import Claim, CloseReason, Closing, Settlement
from toolpool.contract.outcome import Code, Executed, Outcome
from toolpool.contract.signing import Keyring
from toolpool.contract.spec import Effects, ToolSpec
from toolpool.dispatcher.calls import refusals
from toolpool.dispatcher.calls.pending import PendingCall, Stage
from toolpool.dispatcher.calls.refusals import Refusals
from toolpool.dispatcher.outcomes import not_queued
from toolpool.dispatcher.transports.memory import MemoryTransport

ENVELOPE = Envelope(Keyring.local())
READ = ToolSpec(name="t", effects=Effects.READ)
FULL = not_queued(Code.OVERLOADED)
FULL_FOR_NOW = not_queued(Code.OVERLOADED, retry_after=1.0)


class Writing(MemoryTransport):
    """Notes what is written, and writes only while the server is there."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.written: list[list[Closing]] = []
        self.is_there = True
        self.stands_still = False

    async def close_calls(
        self, closings: Sequence[Closing], *, end: CloseReason, give_up_at: float
    ) -> list[LedgerAnswer]:
        """See `Transport.close_calls`."""
        self.written.append(list(closings))
        if self.stands_still:
            await asyncio.Event().wait()
        if not self.is_there or give_up_at <= time.monotonic():
            raise away(sent=True)
        return await super().close_calls(closings, end=end, give_up_at=give_up_at)


class Bench(Told):
    """Refusals, their server, and what became of the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.server = MemoryServer()
        self.transport = Writing(self.server)
        self.other = MemoryTransport(self.server, "reply:other")
        """Another dispatcher of the same session."""
        self.refusals = Refusals(services(self.transport), self)

    def call(self, key: str, *, session: str | None = "s-1", spec: ToolSpec = READ) -> PendingCall:
        made = self.calls[key] = pending(key, session=session, spec=spec)
        made.accepted_in = self.server.epoch
        return made

    async def open(self, call: PendingCall, *, asked_in: float = 0.0) -> LedgerAnswer:
        """Let another dispatcher ask for the same call, `asked_in` seconds from now."""
        now = time.monotonic()
        _, (answer,) = await self.other.publish(
            [call.opening(now, time.time() + asked_in)],
            nonce="other", queue="q", message=b"m", give_up_at=now + 1,
        )  # fmt: skip
        return answer

    async def claim(self, call: PendingCall) -> None:
        """Let a worker have it."""
        (left,) = await self.server.claim(
            [Claim(call.key, 1, "c")], worker="w-1", give_up_at=time.monotonic() + 1
        )
        assert isinstance(left, float)

    async def settle(self, call: PendingCall, outcome: Outcome) -> bytes:
        """Let a worker end it."""
        body = ENVELOPE.encode_reply(Settled(key=call.key, outcome=outcome))
        await self.server.settle(
            [Settlement(call.key, "s", 60.0, "reply:other", body)], give_up_at=time.monotonic() + 1
        )
        return body

    async def answer_to(self, call: PendingCall, outcome: Outcome = FULL) -> Outcome | None:
        """Refuse a call; its answer, if it has got one."""
        self.tasks.clear()
        self.refusals.refuse(call, outcome)
        await eventually(lambda: self.tasks and all(t.done() for t in self.tasks), "it is written")
        for task in self.tasks:
            task.result()
        return call.outcome


@pytest.fixture
def bench() -> Bench:
    return Bench()


def outcome_in(body: bytes | None) -> Outcome:
    assert body is not None
    reply = ENVELOPE.decode_reply(body)
    assert isinstance(reply, Settled)
    return reply.outcome


def unknown(outcome: Outcome) -> tuple[Code | None, Executed, float | None]:
    """What is said where nobody knows whether the call ran."""
    return outcome.code, Executed.UNKNOWN, outcome.retry_after


def said(outcome: Outcome | None) -> tuple[Code | None, Executed, float | None]:
    assert outcome is not None
    return outcome.code, outcome.executed, outcome.retry_after


async def test_a_call_that_nobody_else_can_know_is_answered_at_once(bench: Bench) -> None:
    call = bench.call("k", session=None)
    bench.refusals.refuse(call, FULL)
    assert call.outcome == FULL
    await turns()
    assert (bench.tasks, bench.server.state("k")) == ([], None), "there is nothing to write"


async def test_a_refusal_is_written_before_it_is_said(bench: Bench) -> None:
    call = bench.call("k")
    bench.refusals.refuse(call, FULL)
    assert call.is_open
    assert await bench.answer_to(bench.call("other")) == FULL
    assert call.outcome == FULL
    assert outcome_in(bench.server.outcome("k")) == FULL


async def test_the_time_that_it_takes_to_record_a_refusal_counts(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another dispatcher may send the call as soon as the recorded time is over."""
    close = bench.transport.close_calls

    async def slowly(*closings: Any, **options: Any) -> Any:
        answers = await close(*closings, **options)
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + 0.7)
        return answers

    monkeypatch.setattr(bench.transport, "close_calls", slowly)
    outcome = await bench.answer_to(bench.call("k"), not_queued(Code.OVERLOADED, retry_after=3.0))
    assert outcome is not None and outcome.retry_after == pytest.approx(2.3)


async def test_a_refusal_is_kept_until_the_call_may_be_dispatched_again(bench: Bench) -> None:
    """Without its record, but with its mark, the call would seem to have run."""
    long = not_queued(Code.OVERLOADED, retry_after=3_000.0)
    await bench.answer_to(bench.call("k"), long)
    await bench.answer_to(bench.call("short"), FULL_FOR_NOW)
    keeps = [closing.keep for batch in bench.transport.written for closing in batch]
    assert keeps[0] >= 3_000.0 and keeps[1] < 100.0


async def test_a_later_asker_gets_the_same_answer(bench: Bench) -> None:
    call = bench.call("k")
    await bench.answer_to(call)
    assert outcome_in((await bench.open(call, asked_in=20.0)).outcome) == FULL


async def test_what_may_be_asked_again_after_a_while_is_run_then(bench: Bench) -> None:
    call = bench.call("k")
    assert await bench.answer_to(call, FULL_FOR_NOW) == FULL_FOR_NOW
    assert outcome_in((await bench.open(call)).outcome) == FULL_FOR_NOW
    assert (await bench.open(call, asked_in=2.0)).state is CallState.NEW


@pytest.mark.parametrize(
    ("queue_timeout", "kept"), [(5.0, 40.0), (29.0, 40.0), (31.0, 41.0), (100.0, 110.0)]
)
async def test_a_refusal_is_stored_as_long_as_an_asker_may_wait(
    queue_timeout: float, kept: float
) -> None:
    bench = Bench()
    bench.refusals = Refusals(services(bench.transport, queue_timeout=queue_timeout), bench)
    await bench.answer_to(bench.call("k"))
    assert [closing.keep for closing in bench.transport.written[0]] == [kept]


async def test_refusals_of_one_turn_of_the_loop_are_written_together(bench: Bench) -> None:
    calls = [bench.call(f"k-{n}") for n in range(600)]
    for call in calls:
        bench.refusals.refuse(call, FULL)
    await eventually(lambda: not bench.all_open(), "all are answered")
    assert [len(group) for group in bench.transport.written] == [256, 256, 88]
    assert {call.outcome for call in calls} == {FULL}
    await bench.answer_to(bench.call("later"))
    assert len(bench.transport.written) == 4


async def test_each_call_is_refused_in_its_own_words(bench: Bench) -> None:
    first, second = bench.call("a"), bench.call("b")
    denied = not_queued(Code.DENIED, "because")
    bench.refusals.refuse(first, denied)
    await bench.answer_to(second)
    assert (first.outcome, second.outcome) == (denied, FULL)


async def test_a_call_that_another_dispatcher_has_sent_is_joined(bench: Bench) -> None:
    call = bench.call("k")
    await bench.open(call)
    assert await bench.answer_to(call) is None
    assert (bench.words("k"), call.is_attached) == (["joined"], True)
    assert bench.server.state("k") == "open", "it is left alone"


async def test_a_call_that_a_worker_runs_for_another_dispatcher_is_joined(bench: Bench) -> None:
    call = bench.call("k")
    await bench.open(call)
    await bench.claim(call)
    assert await bench.answer_to(call) is None
    assert (bench.words("k"), call.is_attached) == (["joined"], True)
    assert bench.server.state("k") == "claimed"


async def test_a_joined_asker_gets_the_end(bench: Bench) -> None:
    call = bench.call("k")
    await bench.open(call)
    await bench.answer_to(call)
    body = await bench.settle(call, Outcome(ok=True, data=1))
    assert await bench.transport.receive() == [body]


async def test_a_call_that_has_its_outcome_is_answered_with_that(bench: Bench) -> None:
    call = bench.call("k")
    await bench.open(call)
    body = await bench.settle(call, Outcome(ok=True, data=1))
    assert await bench.answer_to(call) is None, "its collector answers it"
    assert (bench.words("k"), bench.replies) == (["known"], [body])


@pytest.mark.parametrize("outcome", [FULL, FULL_FOR_NOW])
async def test_what_may_have_been_asked_before_and_may_not_run_twice_is_unknown(
    bench: Bench, outcome: Outcome
) -> None:
    """Its record may have been there, and gone."""
    call = bench.call("k", spec=ToolSpec(name="t"))
    call.again = True
    assert said(await bench.answer_to(call, outcome)) == unknown(outcome)
    assert said(outcome_in(bench.server.outcome("k"))) == unknown(outcome)
    assert outcome_in((await bench.open(call, asked_in=20.0)).outcome).executed is Executed.UNKNOWN


async def test_what_was_sent_before_is_unknown_where_its_record_is_gone(bench: Bench) -> None:
    call = bench.call("k")
    call.stage = Stage.QUEUED
    assert said(await bench.answer_to(call)) == unknown(FULL)


async def test_across_an_epoch_a_refusal_is_unknown(bench: Bench) -> None:
    """The server may have lost the record of a dispatcher that had sent the call."""
    call = bench.call("k")
    bench.server.forget()
    assert said(await bench.answer_to(call)) == unknown(FULL)


async def test_a_refusal_that_cannot_be_written_leaves_the_outcome_unknown(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.transport.is_there = False
    calls = [bench.call(key) for key in "ab"]
    bench.refusals.refuse(calls[0], FULL)
    await bench.answer_to(calls[1])
    assert [said(call.outcome) for call in calls] == [unknown(FULL)] * 2
    assert "refusals_not_written calls=2" in caplog.text


async def test_a_server_that_says_nothing_is_not_waited_for_for_ever(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "_WRITE_SECONDS", 0.01)
    bench.transport.stands_still = True
    assert said(await bench.answer_to(bench.call("k"))) == unknown(FULL)


async def test_what_was_answered_meanwhile_keeps_its_answer(bench: Bench) -> None:
    call = bench.call("k")
    bench.refusals.refuse(call, FULL)
    cancelled = not_queued(Code.CANCELLED)
    call.answer(cancelled)
    await bench.answer_to(bench.call("other"))
    assert call.outcome is cancelled
    assert bench.words("k") == []


async def test_a_call_answered_meanwhile_is_not_joined(bench: Bench) -> None:
    call = bench.call("k")
    await bench.open(call)
    bench.refusals.refuse(call, FULL)
    call.answer(FULL)
    await bench.answer_to(bench.call("other"))
    assert bench.words("k") == []


# Calls that were sent, and may not be started any more.


DENIED = not_queued(Code.DENIED, "closed")


async def sent(bench: Bench, key: str) -> PendingCall:
    """A call that waits for a worker."""
    call = bench.call(key, session=None)
    _, (answer,) = await bench.transport.publish(
        [call.opening(time.monotonic(), time.time())],
        nonce=key, queue="q", message=b"m", give_up_at=time.monotonic() + 1,
    )  # fmt: skip
    assert answer.state is CallState.NEW
    for stage in (Stage.WAITING, Stage.PUBLISHING, Stage.QUEUED):
        call.move_to(stage)
    call.published(bench.server.epoch, time.monotonic())
    return call


async def test_a_call_that_was_sent_is_ended_before_it_is_refused(bench: Bench) -> None:
    call = await sent(bench, "k")
    assert await bench.answer_to(call, DENIED) == DENIED
    assert outcome_in(bench.server.outcome("k")) == DENIED, "no worker claims it any more"


async def test_a_call_that_was_sent_and_is_running_by_now_goes_on(bench: Bench) -> None:
    call = await sent(bench, "k")
    await bench.claim(call)
    assert await bench.answer_to(call, DENIED) is None
    assert (bench.words("k"), bench.server.state("k")) == (["started"], "claimed")


async def test_a_call_that_was_sent_is_ended_for_all_who_wait_for_it(bench: Bench) -> None:
    call = await sent(bench, "k")
    await bench.open(call)
    bench.server.dispatchers.add("reply:other")
    assert await bench.answer_to(call, DENIED) == DENIED
    assert outcome_in((await bench.other.receive())[0]) == DENIED

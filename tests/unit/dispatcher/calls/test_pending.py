"""A call that was accepted: where it may go, what it is called outside, and who waits for it."""

import asyncio
import itertools
import time

import pytest

from tests.unit.dispatcher.samples import pending, turns
from toolpool.contract.outcome import Code, Executed, Outcome, failure
from toolpool.contract.redis_keys import retry_key, root_of
from toolpool.contract.spec import Effects, ToolSpec
from toolpool.dispatcher.calls.countdown_latch import CountdownLatch
from toolpool.dispatcher.calls.pending import PendingCall, Stage, State

READ = ToolSpec(name="t", effects=Effects.READ)
DONE = Outcome(ok=True)
FAILED = failure(Code.RAISED, "", Executed.YES)
MOVES = {
    (Stage.NEW, Stage.WAITING),
    (Stage.NEW, Stage.QUEUED),
    (Stage.WAITING, Stage.PUBLISHING),
    (Stage.WAITING, Stage.QUEUED),
    (Stage.PUBLISHING, Stage.QUEUED),
    (Stage.QUEUED, Stage.RUNNING),
    (Stage.QUEUED, Stage.ORPHANED),
    (Stage.PUBLISHING, Stage.NEW),
    (Stage.QUEUED, Stage.NEW),
    (Stage.ORPHANED, Stage.RUNNING),
    (Stage.ORPHANED, Stage.QUEUED),
    (Stage.ORPHANED, Stage.NEW),
    (Stage.RUNNING, Stage.QUEUED),
    (Stage.RUNNING, Stage.NEW),
}
"""Every move there is."""
PAIRS = list(itertools.product(Stage, Stage))


def at(stage: Stage, *, outcome: Outcome | None = None) -> PendingCall:
    """A call that has come so far, and was answered if there is an outcome."""
    call = pending("k")
    call.stage = stage
    if outcome is not None:
        call.answer(outcome)
    return call


@pytest.mark.parametrize(("start", "end"), PAIRS)
def test_a_call_goes_only_where_it_may(start: Stage, end: Stage) -> None:
    call = at(start)
    may_go = (start, end) in MOVES
    assert call.move_to(end) is may_go
    assert call.stage is (end if may_go else start)


@pytest.mark.parametrize(("start", "end"), PAIRS)
def test_an_answered_call_goes_nowhere(start: Stage, end: Stage) -> None:
    call = at(start, outcome=DONE)
    assert not call.move_to(end)
    assert call.stage is start


@pytest.mark.parametrize(
    ("stage", "state"),
    [
        (Stage.NEW, State.PENDING),
        (Stage.WAITING, State.PENDING),
        (Stage.PUBLISHING, State.QUEUED),
        (Stage.QUEUED, State.QUEUED),
        (Stage.ORPHANED, State.QUEUED),
        (Stage.RUNNING, State.RUNNING),
    ],
)
def test_a_state_is_said_for_each_stage_until_there_is_an_answer(
    stage: Stage, state: State
) -> None:
    assert at(stage).state is state
    assert at(stage, outcome=DONE).state is State.COMPLETED
    assert at(stage, outcome=FAILED).state is State.FAILED


@pytest.mark.parametrize(
    ("stage", "in_flight", "unstarted"),
    [
        (Stage.NEW, False, False),
        (Stage.WAITING, False, False),
        (Stage.PUBLISHING, True, True),
        (Stage.QUEUED, True, True),
        (Stage.ORPHANED, True, False),
        (Stage.RUNNING, True, False),
    ],
)
def test_what_is_counted_of_a_session_and_of_a_queue(
    stage: Stage, in_flight: bool, unstarted: bool
) -> None:
    call = at(stage)
    assert (call.is_in_flight, call.is_unstarted) == (in_flight, unstarted)
    assert not at(stage, outcome=DONE).is_in_flight


@pytest.mark.parametrize("stage", Stage)
def test_only_what_never_left_is_unsent(stage: Stage) -> None:
    """A record that was opened is known by its epoch, whatever became of it."""
    call = at(stage)
    assert call.is_unsent is (stage in (Stage.NEW, Stage.WAITING))
    call.published("e-1", at=1.0)
    assert not call.is_unsent


@pytest.mark.parametrize(
    ("spec", "again", "is_sure"),
    [(None, False, True), (None, True, False), (READ, False, True), (READ, True, False)],
)
def test_nobody_ran_it_is_not_said_of_what_somebody_may_have_asked_for_before(
    spec: ToolSpec | None, again: bool, is_sure: bool
) -> None:
    call = pending("k", spec=spec)
    call.again = again
    assert call.certainly_not_run is is_sure
    call.move_to(Stage.QUEUED)
    assert not call.certainly_not_run


def test_a_lost_epoch_is_not_the_same_as_never_having_been_sent() -> None:
    call = pending("k")
    call.published("e-1", at=1.0)
    call.forget_epoch()
    assert call.epoch not in ("", "e-1")
    assert not call.certainly_not_run


@pytest.mark.parametrize(("session", "turn", "known"), [(None, None, False), ("s", "turn", True)])
def test_only_a_call_with_a_session_and_a_turn_may_be_known_to_others(
    session: str | None, turn: str | None, known: bool
) -> None:
    call = pending("k", session=session)
    assert call.message.turn == turn
    assert call.may_be_known is known


def test_the_records_of_retries_are_named_after_the_first() -> None:
    assert [retry_key("k", number) for number in range(3)] == ["k", "k.1", "k.2"]
    assert {root_of(retry_key("k", number)) for number in range(3)} == {"k"}


def sent_and_lost() -> PendingCall:
    """A call in its second attempt, sent twice, that a worker had."""
    call = at(Stage.QUEUED)
    call.published("e-1", at=1.0)
    call.in_attempt(2)
    call.published_again(at=2.0)
    call.worker = "w-1"
    call.is_attached = True
    call.is_new_outcome = False
    call.move_to(Stage.RUNNING)
    return call


def test_a_retry_is_a_new_call_under_a_name_of_its_own() -> None:
    call = sent_and_lost()
    call.again = True
    call.start_again(start_by=77.0, before=failure(Code.RAISED, "", Executed.YES))
    assert (call.key, call.root, call.retries, call.message.attempt) == ("k.1", "k", 1, 1)
    assert (call.stage, call.start_by, call.is_unsent) == (Stage.NEW, 77.0, True)
    assert (call.worker, call.republished, call.is_attached) == ("", 0, False)
    assert call.is_new_outcome, "whatever is heard of it now is new"
    assert not call.again, "nobody asked for this record before"
    assert call.is_open
    call.start_again(start_by=78.0, before=failure(Code.RAISED, "", Executed.YES))
    assert (call.key, call.root, call.retries) == ("k.2", "k", 2)


def test_a_retry_is_accepted_in_the_epoch_of_the_try_before_it() -> None:
    """Whether nobody ran it is a question about the server that it was last sent to."""
    call = at(Stage.RUNNING)
    call.accepted_in = "e-0"
    call.start_again(start_by=1.0, before=failure(Code.RAISED, "", Executed.YES))
    assert (call.accepted_in, call.epoch) == ("e-0", "")
    call.published("e-1", at=1.0)
    call.start_again(start_by=1.0, before=failure(Code.RAISED, "", Executed.YES))
    assert (call.accepted_in, call.epoch) == ("e-1", "")


@pytest.mark.parametrize(
    ("tries", "remembered"),
    [
        ([Executed.NO], None),
        ([Executed.YES], Executed.YES),
        ([Executed.UNKNOWN], Executed.UNKNOWN),
        ([Executed.YES, Executed.NO], Executed.YES),
        ([Executed.YES, Executed.UNKNOWN], Executed.UNKNOWN),
    ],
)
def test_a_retry_remembers_that_a_try_before_it_ran(
    tries: list[Executed], remembered: Executed | None
) -> None:
    call = at(Stage.RUNNING)
    for executed in tries:
        call.start_again(start_by=1.0, before=failure(Code.RAISED, "", executed))
    assert (call.ran_before and call.ran_before.executed) is remembered


def test_another_message_begins_its_patience_anew() -> None:
    call = at(Stage.RUNNING)
    call.published("e-1", at=1.0)
    call.worker = "w-1"
    call.published_again(at=5.0)
    assert (call.published_at, call.worker, call.republished) == (5.0, "", 1)
    assert call.epoch == "e-1", "its record is the one that was opened then"
    call.published_again(at=6.0)
    assert call.republished == 2


def test_only_a_later_attempt_was_started_before() -> None:
    call = pending("k")
    assert not call.was_started
    call.in_attempt(2)
    assert call.was_started


def test_a_call_handed_over_is_kept_as_long_as_its_handle() -> None:
    """By the worker too, where it is yet to be sent."""
    call = pending("k")
    call.move_to_background(99.0)
    assert (call.in_background, call.keep, call.message.keep) == (True, 99.0, 99.0)


def test_the_facts_of_a_call_name_its_first_record_and_its_try() -> None:
    call = pending("k", session="s-1")
    call.start_again(start_by=1.0, before=failure(Code.RAISED, "", Executed.NO))
    call.in_attempt(2)
    facts = call.facts
    assert (facts.call_id, facts.tool, facts.session, facts.turn) == ("k", "t", "s-1", "turn")
    assert (facts.key, facts.queue, facts.attempt, facts.retry) == ("k", call.queue, 2, 1)


async def is_open(wait: "asyncio.Future[None]") -> bool:
    """Whether a latch has let go whoever waits for it."""
    await turns()
    return wait.done()


async def test_a_latch_opens_with_the_last_answer() -> None:
    calls = [pending(key) for key in "abc"]
    calls[0].answer(DONE)
    wait = CountdownLatch(calls).all_answered()
    assert not await is_open(wait)
    calls[2].answer(FAILED)
    assert not await is_open(wait)
    calls[1].answer(DONE)
    assert await is_open(wait)


async def test_a_latch_without_open_calls_is_open() -> None:
    call = at(Stage.RUNNING, outcome=DONE)
    for latch in (CountdownLatch([]), CountdownLatch([call])):
        assert await is_open(latch.all_answered())


async def test_a_latch_is_open_when_its_calls_ended_before_the_wait() -> None:
    call = pending("k")
    latch = CountdownLatch([call])
    call.answer(DONE)
    assert await is_open(latch.all_answered())


async def test_a_waiter_that_leaves_harms_neither_the_call_nor_other_waiters() -> None:
    call = pending("k")
    first, second = (CountdownLatch([call]).all_answered() for _ in range(2))
    await turns()
    first.cancel()
    await turns()
    assert call.is_open
    call.answer(DONE)
    assert await is_open(second)
    assert first.cancelled()


async def test_waiting_for_a_call_ends_with_its_answer() -> None:
    call = pending("k")
    wait = asyncio.create_task(call.wait(60.0))
    assert not await is_open(wait)
    call.answer(DONE)
    assert await is_open(wait)
    assert call.outcome is DONE
    assert call.began <= call.answered_at <= time.monotonic()


async def test_waiting_for_a_call_ends_with_the_time_given_and_leaves_no_trace() -> None:
    call = pending("k")
    await call.wait(0.0)
    assert call.is_open
    assert call.latches == []


def test_the_ledger_gets_relative_times() -> None:
    call = pending("k", spec=READ, wait=10.0, deadline=30.0)
    call.again = True
    call.in_attempt(2)
    call.start_by, call.deadline, call.began, call.keep = 110.0, 130.0, 99.0, 60.0
    opening = call.opening(100.0, 5000.0)
    assert (opening.key, opening.attempt, opening.rerunnable, opening.again) == ("k", 2, True, True)
    assert (opening.wait, opening.deadline, opening.keep) == (10.0, 30.0, 90.0)
    assert 4998.5 <= opening.asked_at < 4999.0, "asked a second ago, on a clock not quite known"


def test_the_ledger_never_gets_a_deadline_in_the_past() -> None:
    call = pending("k")
    call.start_by, call.deadline, call.keep = 100.0, 101.0, 60.0
    opening = call.opening(200.0, 5000.0)
    assert 0 < opening.wait < 0.1
    assert 0 < opening.deadline < 0.1
    assert opening.keep >= 60.0


AGAIN = ToolSpec(name="t", effects=Effects.READ, retries=2)
BROKEN = failure(Code.INTERNAL, "", Executed.NO)


@pytest.mark.parametrize(
    ("spec", "session", "outcome", "executed"),
    [
        (AGAIN, "s", BROKEN, Executed.UNKNOWN),
        (AGAIN, None, BROKEN, Executed.NO),  # no other dispatcher can know it
        (READ, "s", BROKEN, Executed.NO),
        (AGAIN, "s", failure(Code.DENIED, "", Executed.NO), Executed.NO),
        (AGAIN, "s", failure(Code.OVERLOADED, "", Executed.NO), Executed.NO),
        (AGAIN, "s", FAILED, Executed.YES),
    ],
)
def test_a_call_that_another_dispatcher_may_retry_is_not_said_to_be_unrun(
    spec: ToolSpec, session: str | None, outcome: Outcome, executed: Executed
) -> None:
    assert pending("k", spec=spec, session=session).answer(outcome).executed is executed


def test_a_call_without_a_retry_left_is_said_to_be_unrun() -> None:
    call = pending("k", spec=AGAIN, session="s")
    for _ in range(2):
        call.start_again(start_by=call.start_by, before=BROKEN)
    assert call.answer(BROKEN).executed is Executed.NO

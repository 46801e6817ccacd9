"""Enforces every deadline by this process's own clock, whether or not Redis answers.

A call that was not started ends when its queue wait is over. From 100 ms before the deadline the
ledger is asked to expire the call; at the deadline it is answered.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from toolpool.contract import logs
from toolpool.contract.background_tasks import BackgroundTasks
from toolpool.contract.envelope import Cancel
from toolpool.contract.ledger.answers import CallState, LedgerAnswer
from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.contract.ledger.protocols import (
    CloseReason,
    Closing,
)
from toolpool.contract.outcome import Code, Executed, Outcome, failure
from toolpool.dispatcher import outcomes
from toolpool.dispatcher.calls.countdown_latch import CountdownLatch
from toolpool.dispatcher.calls.pending import PendingCall, Stage
from toolpool.dispatcher.calls.services import Calls, Services
from toolpool.dispatcher.outcomes import left_to_others, not_queued, unreachable

log = logs.logger("deadlines")

_AHEAD_SECONDS = 0.1
_LONGEST_ASK = 1.0
_CANCEL_SECONDS = 6.0
_CANCEL_AGAIN_SECONDS = 1.0
_GROUP = 64
_GROUPS_AT_ONCE = 4


_ASKED_FOR = {
    CloseReason.UNSTARTED: 30.0,
    CloseReason.DEADLINE: 60.0,
    CloseReason.CANCEL: 5.0,
    CloseReason.LEAVE: 5.0,
    CloseReason.UNAPPROVED: 60.0,
}
"""How long the ledger is asked to close calls, in seconds."""


_UNWANTED = (CloseReason.CANCEL, CloseReason.LEAVE)


def _code(reason: CloseReason) -> Code:
    """The code of a call that was not started."""
    return Code.CANCELLED if reason in _UNWANTED else Code.EXPIRED


def _code_of_doubt(pending: PendingCall, code: Code) -> Code:
    """The code of a call that an earlier attempt may have started, whose worker was lost."""
    return Code.WORKER_LOST if code is Code.EXPIRED and pending.was_started else code


def _end_of(pending: PendingCall) -> CloseReason:
    return CloseReason.CANCEL if pending.is_cancelled else CloseReason.LEAVE


class Deadlines:
    """Expires and cancels calls."""

    def __init__(self, services: Services, calls: Calls) -> None:
        self._transport = services.transport
        self._envelope = services.envelope
        self._calls = calls
        # Queue waits end in the order in which they began, so one timer serves them all: a timer
        # for each costs more than all other deadline work of a call that is answered soon.
        self._queue_waits: dict[PendingCall, None] = {}
        self._queue_wait_timer: asyncio.TimerHandle | None = None
        self._due: dict[CloseReason, list[PendingCall]] = {reason: [] for reason in _ASKED_FOR}
        self._turns = {reason: asyncio.Semaphore(_GROUPS_AT_ONCE) for reason in _ASKED_FOR}
        self._closing = BackgroundTasks()
        self._is_closed = False

    def watch(self, pending: PendingCall, *, alone: bool = False) -> None:
        """Enforce a call's deadlines.

        With `alone`, the call has its own timer for its queue wait.
        """
        last = next(reversed(self._queue_waits), None)
        if alone:
            self._at(pending.start_by, self._queue_wait_over, pending)
            return
        if last is not None and pending.start_by < last.start_by:
            self._at(pending.start_by, self._queue_wait_over, pending)
            return
        self._queue_waits[pending] = None
        if self._queue_wait_timer is None:
            self._wait_for_head()

    def watch_approval(self, pending: PendingCall) -> None:
        """Enforce the deadlines of a call that a person has to approve by its `start_by`."""
        self._queue_waits.pop(pending, None)
        ends_at = min(pending.start_by, pending.deadline - _AHEAD_SECONDS)
        self._at(ends_at, self.close_unapproved, pending)

    def close_unapproved(self, pending: PendingCall) -> None:
        """End a call that was not approved in time, or was sent during its approval."""
        last_call = pending.deadline - _AHEAD_SECONDS
        if pending.is_open and last_call <= time.monotonic():
            self._nearly_over(pending)
        elif pending.is_open:
            self._at(last_call, self._nearly_over, pending)
            self._add_due(pending, CloseReason.UNAPPROVED)

    async def end_record(self, pending: PendingCall) -> bool:
        """End the record of an answered call; return whether the server confirmed it.

        A call that was not cancelled goes on while another dispatcher waits for it.
        """
        reason = _end_of(pending)
        closing = self._closing_of(pending, reason)
        give_up_at = time.monotonic() + _ASKED_FOR[reason]
        try:
            await self._transport.close_calls([closing], end=reason, give_up_at=give_up_at)
        except Exception as error:  # noqa: BLE001 - whatever it was, it is tried again
            log.warning("calls_not_closed calls=1: %s", error)
            return False
        return True

    def forget(self, pending: PendingCall) -> None:
        """Stop enforcing a call's deadlines."""
        self._queue_waits.pop(pending, None)
        if pending.timer is not None:
            pending.timer.cancel()

    async def cancel(self, calls: Sequence[PendingCall], *, everywhere: bool) -> None:
        """End calls; each is answered `aborted.cancelled`.

        Without `everywhere`, and always for a shared run, a call goes on while another dispatcher
        waits for it. If the server does not confirm the end of a call within a few seconds, the
        attempt is repeated until the call's deadline, as long as the dispatcher is open; a
        background call stays open meanwhile.
        """
        calls = [pending for pending in calls if pending.is_open]
        for pending in calls:
            pending.abandoned(everywhere=everywhere and not pending.is_run)
            if not pending.queue:  # one of the pool's own tools runs it
                self._calls.resolve(pending, _unknown(Code.CANCELLED))
            elif pending.is_unsent and not pending.may_be_known:
                self._calls.resolve(pending, not_queued(Code.CANCELLED))
            elif pending.is_unsent and pending.retries and not pending.is_cancelled:
                # Between two retries it has no record; other dispatchers run their own retries.
                self._calls.resolve(pending, _unknown(Code.CANCELLED))
            else:
                self.close_abandoned([pending])
        with suppress(TimeoutError):
            async with asyncio.timeout(_CANCEL_SECONDS):
                await CountdownLatch(calls).all_answered()

    def close_abandoned(self, calls: Sequence[PendingCall]) -> None:
        """End the records of calls, answered or not, so that no worker starts them."""
        for pending in calls:
            self._add_due(pending, _end_of(pending))

    def close(self) -> None:
        """Stop every background task."""
        self._is_closed = True
        if self._queue_wait_timer is not None:
            self._queue_wait_timer.cancel()
        self._closing.cancel()

    def _wait_for_head(self) -> None:
        head = next(iter(self._queue_waits), None)
        self._queue_wait_timer = None
        if head is not None:
            loop = asyncio.get_running_loop()
            delay = max(0.0, head.start_by - time.monotonic())
            self._queue_wait_timer = loop.call_later(delay, self._heads_are_due)

    def _heads_are_due(self) -> None:
        now = time.monotonic()
        due: list[PendingCall] = []
        for pending in self._queue_waits:
            if pending.start_by > now:
                break
            due.append(pending)
        try:
            for pending in due:
                del self._queue_waits[pending]
                self._queue_wait_over(pending)
        finally:
            self._wait_for_head()  # in any case: without this timer no queue wait would end

    def _at(self, when: float, call: Callable[[PendingCall], None], pending: PendingCall) -> None:
        loop = asyncio.get_running_loop()
        delay = when - time.monotonic()
        if pending.timer is not None:  # replaced by the next timer
            pending.timer.cancel()
        pending.timer = loop.call_later(max(0.0, delay), call, pending)

    def _queue_wait_over(self, pending: PendingCall) -> None:
        if not pending.is_open:
            return
        self._at(pending.deadline - _AHEAD_SECONDS, self._nearly_over, pending)
        if pending.stage is Stage.WAITING:
            self._calls.refuse(pending, not_queued(Code.EXPIRED))
        elif pending.stage is Stage.NEW:
            self._calls.rate_wait_ended(pending)
        elif pending.stage in (Stage.QUEUED, Stage.ORPHANED):
            self._add_due(pending, CloseReason.UNSTARTED)

    def _nearly_over(self, pending: PendingCall) -> None:
        if not pending.is_open:
            return
        # After a pause of the process, ask the ledger before answering: the outcome may have been
        # settled.
        now = time.monotonic()
        behind = now - (pending.deadline - _AHEAD_SECONDS)
        self._at(max(pending.deadline, now + min(behind, _LONGEST_ASK)), self._over, pending)
        self._add_due(pending, CloseReason.DEADLINE)

    def _over(self, pending: PendingCall) -> None:
        if pending.is_open:
            may_have_run = not pending.is_unsent or pending.may_be_known
            executed = Executed.UNKNOWN if may_have_run else Executed.NO
            self._calls.resolve(pending, unreachable(executed, is_full=self._transport.is_full))

    def _add_due(self, pending: PendingCall, reason: CloseReason) -> None:
        """Close all calls that are due in the same iteration of the event loop together."""
        due = self._due[reason]
        due.append(pending)
        if len(due) == 1:
            asyncio.get_running_loop().call_soon(self._close_due, reason)

    def _close_due(self, reason: CloseReason) -> None:
        due, self._due[reason] = self._due[reason], []
        for start in range(0, len(due), _GROUP):
            self._closing.start(self._close(due[start : start + _GROUP], reason))

    async def _close(self, calls: Sequence[PendingCall], reason: CloseReason) -> None:
        give_up_at = time.monotonic() + _ASKED_FOR[reason]
        try:
            async with asyncio.timeout(_ASKED_FOR[reason]), self._turns[reason]:
                answers = await self._transport.close_calls(
                    [self._closing_of(pending, reason) for pending in calls],
                    end=reason,
                    give_up_at=give_up_at,
                )
        except Exception as error:  # noqa: BLE001 - a call is answered whatever closing it raises
            log.warning("calls_not_closed calls=%d: %s", len(calls), error)
            loop = asyncio.get_running_loop()
            for pending in calls if reason in _UNWANTED else ():
                if reason is CloseReason.LEAVE or not pending.in_background:
                    self._calls.resolve(pending, _unknown(_code(reason)))
                loop.call_later(_CANCEL_AGAIN_SECONDS, self._close_again, pending, reason)
        else:
            for pending, answer in zip(calls, answers, strict=True):
                self._apply_answer(pending, answer, reason)

    def _close_again(self, pending: PendingCall, reason: CloseReason) -> None:
        """Repeat a cancel that was not confirmed: a worker may start the call until its deadline.

        Not if only its waiter had left, and the call was dispatched here again.
        """
        other = self._calls.find(pending.key) if reason is CloseReason.LEAVE else None
        is_over = self._is_closed or time.monotonic() >= pending.deadline
        if not is_over and other in (None, pending):
            self._add_due(pending, reason)

    def _apply_answer(
        self, pending: PendingCall, answer: LedgerAnswer, reason: CloseReason
    ) -> None:
        if not pending.is_open:  # it was answered before its record was closed
            return
        match answer.state:
            case CallState.WAITING | CallState.APPROVED | CallState.ATTACHED:
                self._calls.approval_required(pending)  # it was approved, or sent, meanwhile
            case CallState.RUNNING if reason is CloseReason.UNAPPROVED:
                self._calls.approval_required(pending)
            case CallState.RUNNING:
                self._calls.started(pending, answer.worker)
            case CallState.OTHERS:
                is_running = reason is CloseReason.DEADLINE and pending.stage is Stage.RUNNING
                has_left = reason is CloseReason.LEAVE
                told = _unknown(Code.CANCELLED) if has_left else left_to_others(started=is_running)
                self._calls.resolve(pending, told)
            case CallState.MISSING:
                if not pending.epoch:  # adopted, and its former dispatcher never sent it
                    self._calls.resolve(pending, _unknown(Code.WORKER_LOST))
            case _:
                self._calls.settled(answer.outcome)

    def _closing_of(self, pending: PendingCall, reason: CloseReason) -> Closing:
        code = _code(reason)
        is_lost = code is not Code.CANCELLED and self._calls.has_lost_its_worker(pending)
        of_running = Code.WORKER_LOST if is_lost else Code.TIMEOUT
        claimed = code if code is Code.CANCELLED else of_running
        signed = self._envelope.encode_settled
        return Closing(
            key=pending.key,
            nonce=new_nonce(),
            epoch=pending.epoch or pending.accepted_in,
            keep=pending.keep,
            unclaimed=signed(pending.key, _unclaimed(pending, reason)),
            claimed=signed(pending.key, failure(claimed, "", Executed.UNKNOWN)),
            doubtful=signed(pending.key, _unknown(_code_of_doubt(pending, code))),
            cancel=self._envelope.encode(Cancel(key=pending.key)),
            unsent=pending.certainly_not_run,
            leaves_mark=pending.leaves_mark,
        )


def _unclaimed(pending: PendingCall, reason: CloseReason) -> Outcome:
    """The outcome of a call that was not started."""
    if reason is CloseReason.UNAPPROVED and pending.message.approval is None:
        return not_queued(Code.DENIED, outcomes.NOBODY_APPROVED)
    code, before = _code(reason), pending.ran_before
    if before is None:
        return failure(code, "", Executed.NO)
    return before if code is Code.EXPIRED else failure(code, "", before.executed)


def _unknown(code: Code) -> Outcome:
    return failure(code, "", Executed.UNKNOWN)

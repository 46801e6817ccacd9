"""A call that was accepted and has no outcome yet."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from toolpool.contract.call import ToolCall
from toolpool.contract.envelope import CallMessage, PolicyVerdict
from toolpool.contract.ledger.protocols import Opening
from toolpool.contract.outcome import Code, Executed, Outcome
from toolpool.contract.rates import Limit
from toolpool.contract.redis_keys import retry_key
from toolpool.contract.result import State
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.calls.countdown_latch import CountdownLatch, Waiter
from toolpool.dispatcher.classifier import is_final
from toolpool.dispatcher.observer import CallFacts


@dataclass(slots=True, eq=False)
class RateLimited:
    """A call under rate limits: whether it waits at the rate gate, or has its places."""

    limits: tuple[Limit, ...]
    is_sent: bool = False
    """Whether it was sent before, and a worker found its limits exhausted."""
    waits: bool = True
    has_places: bool = False


if TYPE_CHECKING:
    from toolpool.dispatcher.calls.shared_run import SharedRun

CLOCK_MARGIN_SECONDS = 0.25
"""The maximum error of this dispatcher's estimate of the server's clock."""
_FORGOTTEN_EPOCH = "forgotten"


class Stage(Enum):
    """The stage of an open call."""

    next: tuple["Stage", ...]
    """The stages that may follow, as in `NEXT_STAGES`."""

    NEW = "new"  # or at the rate gate or waiting for approval
    WAITING = "waiting"  # in the pump: never sent
    PUBLISHING = "publishing"  # on its way to the server, not confirmed
    QUEUED = "queued"
    ORPHANED = "orphaned"  # published, but no worker may start it
    RUNNING = "running"


NEXT_STAGES: Mapping[Stage, frozenset[Stage]] = {
    Stage.NEW: frozenset({Stage.WAITING, Stage.QUEUED}),
    Stage.WAITING: frozenset({Stage.PUBLISHING, Stage.QUEUED}),
    Stage.PUBLISHING: frozenset({Stage.QUEUED, Stage.NEW}),
    Stage.QUEUED: frozenset({Stage.RUNNING, Stage.ORPHANED, Stage.NEW}),
    Stage.ORPHANED: frozenset({Stage.RUNNING, Stage.QUEUED, Stage.NEW}),
    Stage.RUNNING: frozenset({Stage.QUEUED, Stage.NEW}),
}
"""The stages that may follow each stage. A retry starts again as a new call, from any stage."""

for _stage, _allowed in NEXT_STAGES.items():  # stored on the stages, since a lookup takes longer
    _stage.next = tuple(_allowed)

UNSTARTED = (Stage.PUBLISHING, Stage.QUEUED)
"""The stages of a call that was sent and that no worker has started."""

_STATES: Mapping[Stage, State] = {
    Stage.NEW: State.PENDING,
    Stage.WAITING: State.PENDING,
    Stage.PUBLISHING: State.QUEUED,
    Stage.QUEUED: State.QUEUED,
    Stage.ORPHANED: State.QUEUED,
    Stage.RUNNING: State.RUNNING,
}


class PendingCall(msgspec.Struct, eq=False):
    """An open call. `start_by` ends the queue wait, `deadline` the call (monotonic clock).

    Each method updates the fields that must stay consistent.
    """

    root: str
    """The call's key without the retry count: the same for all its retries."""
    call: ToolCall
    spec: ToolSpec
    message: CallMessage
    queue: str
    flow: str
    """Its session, or its turn without one: queues are fair between flows."""
    size: int
    start_by: float
    deadline: float
    keep: float
    began: float = msgspec.field(default_factory=time.monotonic)
    turn_began: float = 0.0
    """When its turn was dispatched; 0 if the turn was not dispatched here."""
    answered_at: float = 0.0
    outcome: Outcome | None = None
    latches: "list[Waiter]" = msgspec.field(default_factory=list)
    stage: Stage = Stage.NEW
    epoch: str = ""
    worker: str = ""
    published_at: float = 0.0
    queued_at: float = 0.0
    """When the server first confirmed its message; 0 until then."""
    republished: int = 0
    in_background: bool = False
    retries: int = 0
    ran_before: Outcome | None = None
    """The outcome of the last attempt that ran, or may have run."""
    again: bool = False
    """Whether a former dispatcher may have dispatched it."""
    may_have_run: bool = False
    """Whether it may have run without a record of its own."""
    accepted_in: str = ""
    """The server's epoch when it was accepted."""
    is_attached: bool = False
    """Whether another dispatcher dispatched it first."""
    was_held: bool = False
    """Whether the ledger answered `moved` without publishing it, as its epoch had just begun."""
    provider: str = ""
    is_abandoned: bool = False
    is_cancelled: bool = False
    """Whether it was cancelled for every dispatcher, and not only here."""
    is_new_outcome: bool = True
    """Whether its outcome was not yet stored when this dispatcher asked."""
    is_recorded: bool = False
    """Whether its outcome was read from its record; not set for a success."""
    timer: asyncio.TimerHandle | None = None
    started_key: str = ""
    started_attempt: int = 0
    """The attempt whose start was reported: its record and number."""
    work: asyncio.Task[None] | None = None
    """The task that answers it, if this dispatcher does so itself."""
    limited: RateLimited | None = None
    """Its rate limits, once it has reached the rate gate."""
    approval: str = ""
    """The id of the approval that it waits for, or waited for."""
    awaits_approval: bool = False
    answer_by: float = math.inf
    """The deadline that its approval set, even if it passes the rate gate again."""
    is_held: bool = False
    """Whether it counts as one of its session's waiting calls although it is on no queue."""
    on_answered: "Callable[[PendingCall], None] | None" = None
    share: "SharedRun | None" = None
    """The shared run that it belongs to, or that it is itself."""
    is_run: bool = False
    """Whether it is a shared run, which is no caller's own call."""
    shared_as: str = ""
    """How an equal call provided its result; see `CallFacts`. Empty if it ran itself."""
    age: float = 0.0
    """The age of a reused result, in seconds."""
    reported_as: str = ""
    """For a shared run: the root of the call under which observers see it."""
    reported: CallFacts | None = None
    """The last facts reported: of this message, in this queue."""
    reported_message: CallMessage | None = None
    reported_queue: str = ""

    @property
    def key(self) -> str:
        """The key of its ledger record."""
        return self.message.key

    @property
    def as_run(self) -> ToolCall:
        """The call with the arguments that it runs with: the approved ones, if any."""
        if self.call.arguments is self.message.arguments:
            return self.call
        return msgspec.structs.replace(self.call, arguments=self.message.arguments)

    @property
    def facts(self) -> CallFacts:
        """The facts that identify the call to observers."""
        message = self.message
        if self.reported is not None and (
            self.reported_message is message and self.reported_queue == self.queue
        ):
            return self.reported
        self.reported_message, self.reported_queue = message, self.queue
        self.reported = CallFacts(
            call_id=self.call.id,
            tool=self.call.name,
            session=message.session,
            turn=message.turn,
            key=self.reported_as or self.root,
            queue=self.queue,
            attempt=message.attempt,
            retry=self.retries,
            retries_left=message.retries,
            bytes=self.size,
            provider=self.provider,
            trace=message.trace,
        )
        return self.reported

    @property
    def seconds(self) -> float:
        """The seconds from its acceptance to its answer."""
        return self.answered_at - self.began

    @property
    def queued_seconds(self) -> float:
        """The seconds until its message was in the queue; 0.0 if it never was."""
        return self.queued_at - self.began if self.queued_at else 0.0

    @property
    def is_first(self) -> bool:
        """Whether no other dispatcher reports its end."""
        return self.is_new_outcome and not self.is_attached

    @property
    def was_started(self) -> bool:
        """Whether an earlier attempt was started, so that its queue wait is over."""
        return self.message.attempt > 1

    @property
    def may_be_known(self) -> bool:
        """Whether the ledger may have a record of it although this dispatcher has not sent it.

        Also true for calls that another dispatcher may send, which are those with an approval or a
        handle.
        """
        is_named = self.message.session is not None and self.message.turn is not None
        return is_named or self.is_run or bool(self.approval) or self.in_background

    @property
    def shares_run(self) -> bool:
        """Whether it is answered by a shared run."""
        return self.share is not None and not self.is_run

    @property
    def followers(self) -> "Sequence[PendingCall]":
        """The calls that start, and report progress, with it."""
        return tuple(self.share.askers) if self.share is not None and self.is_run else (self,)

    @property
    def is_unsent(self) -> bool:
        """Whether this dispatcher has certainly not sent it; another one may have."""
        return self.stage in (Stage.NEW, Stage.WAITING) and not self.epoch

    def was_sent_before(self, epoch: str) -> bool:
        """Whether an approved call was sent before the server's epoch changed to this one."""
        is_of_root = not self.retries and self.message.approval is not None
        return is_of_root and bool(self.epoch) and self.epoch != epoch

    @property
    def certainly_not_run(self) -> bool:
        """Whether a missing record proves that it did not run; never if it shares a run."""
        return self.is_unsent and not self.shares_run and not self.may_have_run and not self.again

    @property
    def leaves_mark(self) -> bool:
        """Whether a mark must prevent a start after its end, even if its record returns."""
        was_asked_about = bool(self.approval) or self.message.approval is not None
        return was_asked_about or not self.message.rerunnable

    @property
    def is_open(self) -> bool:
        """Whether it has no answer yet."""
        return self.outcome is None

    @property
    def state(self) -> State:
        """Its state as reported to operators."""
        if self.outcome is not None:
            return State.COMPLETED if self.outcome.ok else State.FAILED
        if self.awaits_approval:
            return State.WAITING
        run = self.share.run if self.share is not None else None
        return _STATES[(run or self).stage]

    @property
    def is_in_flight(self) -> bool:
        """Whether it counts towards its session's calls in flight."""
        return self.is_open and self.stage not in (Stage.NEW, Stage.WAITING)

    @property
    def is_unstarted(self) -> bool:
        """Whether it was sent and no worker has started it."""
        return self.stage in UNSTARTED

    def move_to(self, stage: Stage) -> bool:
        """Move to `stage`; return False if that is not allowed. An answered call never moves."""
        if self.outcome is not None or stage not in self.stage.next:
            return False
        self.stage = stage
        return True

    def take_start_report(self) -> bool:
        """Whether the start of this attempt is still unreported.

        Marks it reported: call it once.
        """
        key, attempt = self.message.key, self.message.attempt
        if (self.started_key, self.started_attempt) == (key, attempt):
            return False
        self.started_key, self.started_attempt = key, attempt
        return True

    def published(self, epoch: str, at: float, *, confirmed_at: float = 0.0) -> None:
        """Record that the server confirmed the message, sent at `at`, at `confirmed_at`."""
        self.epoch, self.published_at = epoch, at
        self.queued_at = self.queued_at or confirmed_at

    def published_again(self, at: float) -> None:
        """Record that another message was sent at `at`; the previous worker is gone."""
        self.published_at, self.worker = at, ""
        self.republished += 1

    def forget_epoch(self) -> None:
        """Forget the epoch.

        The record is lost, so it can no longer be proved that the call did not run.
        """
        self.epoch = _FORGOTTEN_EPOCH

    def not_to_be_sent(self, *, keep: float, may_have_run: bool) -> None:
        """Record that it is cancelled before it is sent; its record is kept for `keep` seconds."""
        self.keep, self.may_have_run = max(self.keep, keep), may_have_run

    def abandoned(self, *, everywhere: bool = False) -> None:
        """Stop waiting for it here; `everywhere` ends it for all dispatchers."""
        self.is_abandoned = True
        self.is_cancelled = everywhere

    def in_attempt(self, attempt: int) -> None:
        """Start it again as this attempt, under the same record."""
        self.message = msgspec.structs.replace(self.message, attempt=attempt)

    def restart_queue_wait(self, start_by: float) -> None:
        """Wait for another start, until `start_by`."""
        self.start_by = min(start_by, self.deadline)

    def for_any_version(self) -> None:
        """Allow any version of its tool: no worker has the version that validated it."""
        self.message = msgspec.structs.replace(self.message, final=True)

    def traced(self, headers: dict[str, str]) -> None:
        """Set the trace headers for its worker."""
        self.message = msgspec.structs.replace(self.message, trace=headers)

    def await_approval(self, *, until: float, queue_timeout: float) -> None:
        """Hold it until it is approved, at most until `until` on the monotonic clock."""
        if not self.awaits_approval:
            for latch in self.latches:
                if isinstance(latch, CountdownLatch):
                    latch.interrupt()
        self.approval, self.awaits_approval = self.root, True
        self.deadline = min(until + queue_timeout + self.message.timeout, self.answer_by)
        self.start_by = min(until, self.deadline)

    def unsent(self) -> None:
        """Record that it is on no queue, because it has to be approved first."""
        self.epoch, self.published_at, self.queued_at = "", 0.0, 0.0

    def set_approval_message(self, message: CallMessage) -> None:
        """Set the message whose arguments the approval is bound to, before any policy change.

        Its verdict holds as well: this dispatcher may have no policy.
        """
        if message.arguments != self.message.arguments:
            self.call = msgspec.structs.replace(self.call, policy_note=None)
        self.message = msgspec.structs.replace(self.message, arguments=message.arguments)
        self.judged(message.verdict)

    def decided(self, decision: bytes | None) -> None:
        """Record the signed decision that approves it; None if the decision is pending."""
        self.message = msgspec.structs.replace(self.message, approval=decision)
        if decision is None:
            self.answer_by = math.inf

    def judged(self, verdict: PolicyVerdict | None) -> None:
        """Add a policy's verdict: the worker compares what either policy judged."""
        before = self.message.verdict
        if verdict is None or verdict == before:
            return
        if before is not None:
            paths = tuple(dict.fromkeys((*before.paths, *verdict.paths)))
            verdict = msgspec.structs.replace(verdict, paths=paths, is_whole=True)
        self.message = msgspec.structs.replace(self.message, verdict=verdict)

    def approved(self, *, start_by: float, deadline: float) -> None:
        """Record the approval; the call may be sent."""
        self.awaits_approval = False
        self.deadline = self.answer_by = min(deadline, self.answer_by)
        self.start_by = min(start_by, self.deadline)

    def move_to_background(self, keep: float) -> None:
        """Move it to the background; its outcome is kept for `keep` seconds."""
        self.in_background, self.keep = True, keep
        self.message = msgspec.structs.replace(self.message, keep=keep)  # if it has not been sent

    def set_limits(self, limited: RateLimited | None) -> None:
        """Set its rate limits; None for none."""
        self.limited = limited
        limits = limited.limits if limited is not None else ()
        if limits != self.message.limits:
            self.message = msgspec.structs.replace(self.message, limits=limits)

    def start_again(self, *, start_by: float, before: Outcome) -> None:
        """Become the next retry of the same call: a new record, nothing sent yet.

        `before` is the outcome of the previous attempt.
        """
        self.retries += 1
        key = retry_key(self.root, self.retries)
        left = max(0, self.message.retries - 1)
        self.message = msgspec.structs.replace(self.message, key=key, attempt=1, retries=left)
        self.stage, self.start_by = Stage.NEW, start_by
        self.accepted_in, self.epoch, self.again = self.epoch or self.accepted_in, "", False
        self.is_recorded = False
        self.worker, self.republished, self.is_new_outcome, self.is_attached = "", 0, True, False
        self.attempt_ended(before)

    def shared(self, how: str, age: float = 0.0) -> None:
        """Record that an equal call provides its result, by a shared run or a kept result."""
        self.shared_as, self.age = how, age

    def attempt_ended(self, outcome: Outcome) -> None:
        """Record the outcome of an attempt, or of a shared run, before another attempt."""
        if outcome.executed is not Executed.NO:
            self.ran_before = outcome

    def follow_run(self, run: "PendingCall") -> None:
        """Copy the attempts and time limits of a shared run, for observers."""
        self.retries = run.retries
        if run.reported_as == self.root:
            self.queued_at = run.queued_at
        self.message = msgspec.structs.replace(self.message, timeout=run.message.timeout)

    def with_earlier_attempts(self, outcome: Outcome) -> Outcome:
        """The outcome of the last attempt, marked as executed if an earlier one was."""
        if outcome.executed is not Executed.NO or self.ran_before is None:
            return outcome
        return msgspec.structs.replace(outcome, executed=self.ran_before.executed)

    def answer(self, outcome: Outcome) -> Outcome:
        """Set the outcome, wake the waiters, and stop the task that would answer it.

        Takes effect only once. If no worker started the last attempt, or its approval had ended,
        the outcome is that of the previous attempt. If it did not run, and another dispatcher may
        have the time for a retry, it is unknown whether it runs.
        """
        if outcome.code is Code.EXPIRED and self.ran_before is not None:
            outcome = self.ran_before
        if outcome.executed is Executed.NO and self._may_be_retried_elsewhere(outcome):
            outcome = msgspec.structs.replace(outcome, executed=Executed.UNKNOWN)
        self.outcome = outcome
        self.answered_at = time.monotonic()
        for latch in self.latches:
            latch.release()
        if self.work is not None:
            self.work.cancel()
        if self.on_answered is not None:
            self.on_answered(self)
        return outcome

    def _may_be_retried_elsewhere(self, outcome: Outcome) -> bool:
        may_be_retried = self.message.rerunnable and self.message.retries > 0
        return may_be_retried and self.may_be_known and not is_final(outcome)

    async def wait(self, seconds: float) -> None:
        """Return when it is answered, or after `seconds`."""
        latch = CountdownLatch([self])
        try:
            async with asyncio.timeout(seconds):
                while latch.left:
                    await latch.all_answered()
        except TimeoutError:
            pass
        finally:
            if latch in self.latches:
                self.latches.remove(latch)

    def opening(self, now: float, server_now: float) -> Opening:
        """The fields of its ledger record; `server_now` is the server's time."""
        deadline = max(0.001, self.deadline - now)
        return Opening(
            key=self.message.key,
            attempt=self.message.attempt,
            rerunnable=self.message.rerunnable,
            wait=max(0.001, self.start_by - now),
            deadline=deadline,
            keep=deadline + self.keep,
            asked_at=server_now - (now - (self.turn_began or self.began)) - CLOCK_MARGIN_SECONDS,
            again=self.again,
            approved=self.message.approval is not None and not self.retries,
            exclusive=self.spec.is_exclusive,
        )

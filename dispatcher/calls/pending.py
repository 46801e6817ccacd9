"""A call that was accepted and has no outcome yet."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from toolpool.contract.call import ToolCall
from toolpool.contract.envelope import CallMessage, PolicyVerdict
from toolpool.contract.ledger.protocols import Opening
from toolpool.contract.outcome import Code, Executed, Outcome
from toolpool.contract.record_keys import retry_key
from toolpool.contract.result import State
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.admission.rate_limited import RateLimited
from toolpool.dispatcher.calls.countdown_latch import CountdownLatch, Waiter
from toolpool.dispatcher.observer import CallFacts

if TYPE_CHECKING:
    from toolpool.dispatcher.calls.shared_run import SharedRun

CLOCK_MARGIN_SECONDS = 0.25
"""How exactly the server's clock is known here."""
_FORGOTTEN_EPOCH = "forgotten"


class Stage(Enum):
    """How far an open call has come."""

    next: tuple["Stage", ...]
    """Where it may go from here, as `NEXT_STAGES` has it."""

    NEW = "new"  # or at the gate, because of a rate limit or an approval
    WAITING = "waiting"  # in the pump: nothing was ever sent
    PUBLISHING = "publishing"  # on its way to the server, not confirmed
    QUEUED = "queued"
    STRANDED = "stranded"  # published, but nobody may start it any more
    RUNNING = "running"


NEXT_STAGES: Mapping[Stage, frozenset[Stage]] = {
    Stage.NEW: frozenset({Stage.WAITING, Stage.QUEUED}),
    Stage.WAITING: frozenset({Stage.PUBLISHING, Stage.QUEUED}),
    Stage.PUBLISHING: frozenset({Stage.QUEUED, Stage.NEW}),
    Stage.QUEUED: frozenset({Stage.RUNNING, Stage.STRANDED, Stage.NEW}),
    Stage.STRANDED: frozenset({Stage.RUNNING, Stage.QUEUED, Stage.NEW}),
    Stage.RUNNING: frozenset({Stage.QUEUED, Stage.NEW}),
}
"""Where a call may go from each stage. A retry starts again as a new call, from wherever it was."""

for _stage, _allowed in NEXT_STAGES.items():  # on the stages, since to look one up takes longer
    _stage.next = tuple(_allowed)

_STATES: Mapping[Stage, State] = {
    Stage.NEW: State.PENDING,
    Stage.WAITING: State.PENDING,
    Stage.PUBLISHING: State.QUEUED,
    Stage.QUEUED: State.QUEUED,
    Stage.STRANDED: State.QUEUED,
    Stage.RUNNING: State.RUNNING,
}


@dataclass(slots=True, eq=False)
class Pending:
    """Times are on the monotonic clock: `start_by` ends the queue wait, `deadline` everything.

    Only its own methods change it.
    """

    root: str
    """The same for all retries of a call: the name it is asked again by."""
    call: ToolCall
    spec: ToolSpec
    message: CallMessage
    queue: str
    line: str
    size: int
    start_by: float
    deadline: float
    keep: float
    began: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    outcome: Outcome | None = None
    latches: "list[Waiter]" = field(default_factory=list)
    stage: Stage = Stage.NEW
    epoch: str = ""
    worker: str = ""
    published_at: float = 0.0
    queued_at: float = 0.0
    """When the server first said that it has its message; 0 until then."""
    republished: int = 0
    in_background: bool = False
    retries: int = 0
    ran_before: Outcome | None = None
    """The outcome of the last try that ran, or may have."""
    again: bool = False
    """Whether it may have been asked before, by a dispatcher that is no more."""
    accepted_in: str = ""
    """The server's epoch when it was accepted."""
    is_attached: bool = False
    """Whether another dispatcher asked for it first."""
    provider: str = ""
    is_unwanted: bool = False
    is_cancelled: bool = False
    """Whether it was cancelled for every dispatcher, and not only left by this one."""
    is_news: bool = True
    """Whether its outcome is not one that had been stored before this dispatcher asked."""
    timer: asyncio.TimerHandle | None = None
    started_key: str = ""
    started_attempt: int = 0
    """Whose start was told: the record and its attempt."""
    work: asyncio.Task[None] | None = None
    """What answers it, where this dispatcher does so itself."""
    limited: RateLimited | None = None
    """The rate limits it is under, once it has come to the gate."""
    approval: str = ""
    """The id of the approval that it waits for, or waited for."""
    awaits_approval: bool = False
    answer_by: float = math.inf
    """Its deadline from when it was approved on, however often it has to pass the gate anew."""
    is_held: bool = False
    """Whether it is counted among the waiting calls of its session, outside of any queue."""
    when_answered: "Callable[[Pending], None] | None" = None
    share: "SharedRun | None" = None
    """The equal calls that it shares a run with, or that it is the run of."""
    is_run: bool = False
    """Whether it is a run that calls share, and nobody's own call."""
    shared_as: str = ""
    """How its result came to it from an equal call; see `CallFacts`. Empty for one of its own."""
    age: float = 0.0
    """Of a result that had been kept, in seconds."""
    told_as: str = ""
    """Of a run that calls share: the root of the one that observers are told of in its place."""
    told: CallFacts | None = None
    """The facts that were told last: of this message, in this queue."""
    told_message: CallMessage | None = None
    told_queue: str = ""

    @property
    def key(self) -> str:
        """The name of its ledger record."""
        return self.message.key

    @property
    def as_run(self) -> ToolCall:
        """The call with the arguments that it runs with: those that were approved, if any were."""
        if self.call.arguments is self.message.arguments:
            return self.call
        return msgspec.structs.replace(self.call, arguments=self.message.arguments)

    @property
    def facts(self) -> CallFacts:
        """Which call it is, for observers."""
        message = self.message
        if self.told is not None and (
            self.told_message is message and self.told_queue == self.queue
        ):
            return self.told
        self.told_message, self.told_queue = message, self.queue
        self.told = CallFacts(
            call_id=self.call.id,
            tool=self.call.name,
            session=message.session,
            turn=message.turn,
            key=self.told_as or self.root,
            queue=self.queue,
            attempt=message.attempt,
            retry=self.retries,
            retries_left=message.retries,
            bytes=self.size,
            provider=self.provider,
            trace=message.trace,
        )
        return self.told

    @property
    def was_started(self) -> bool:
        """Whether an attempt before this one was started, so that its queue wait is behind it."""
        return self.message.attempt > 1

    @property
    def may_be_known(self) -> bool:
        """Whether the ledger may have it although this dispatcher has not sent it.

        True also of calls that another dispatcher may send: those with an approval or a handle.
        """
        is_named = self.message.session is not None and self.message.turn is not None
        return is_named or self.is_run or bool(self.approval) or self.in_background

    @property
    def is_asker(self) -> bool:
        """Whether it is answered with a run that it shares."""
        return self.share is not None and not self.is_run

    @property
    def heard_by(self) -> "Sequence[Pending]":
        """Those whose call starts, and goes on, with it."""
        return tuple(self.share.askers) if self.share is not None and self.is_run else (self,)

    @property
    def is_unsent(self) -> bool:
        """Whether this dispatcher has certainly not sent it, so that only another may have."""
        return self.stage in (Stage.NEW, Stage.WAITING) and not self.epoch

    @property
    def nobody_ran_it(self) -> bool:
        """Whether a call without a record certainly did not run; never so if it shares a run."""
        return self.is_unsent and not self.is_asker and (self.message.rerunnable or not self.again)

    @property
    def leaves_mark(self) -> bool:
        """Whether it may not be started after its end, even if somebody puts its record back."""
        was_asked_about = bool(self.approval) or self.message.approval is not None
        return was_asked_about or not self.message.rerunnable

    @property
    def is_open(self) -> bool:
        """Whether nobody has answered it yet."""
        return self.outcome is None

    @property
    def state(self) -> State:
        """What is said of it outside."""
        if self.outcome is not None:
            return State.COMPLETED if self.outcome.ok else State.FAILED
        if self.awaits_approval:
            return State.WAITING
        run = self.share.run if self.share is not None else None
        return _STATES[(run or self).stage]

    @property
    def is_in_flight(self) -> bool:
        """Whether it takes a place among those of its session that are on their way."""
        return self.is_open and self.stage not in (Stage.NEW, Stage.WAITING)

    @property
    def is_unstarted(self) -> bool:
        """Whether it has been sent and no worker has taken it yet."""
        return self.stage in (Stage.PUBLISHING, Stage.QUEUED)

    def to(self, stage: Stage) -> bool:
        """Go on to `stage`; whether it may. A call that is answered goes nowhere."""
        if self.outcome is not None or stage not in self.stage.next:
            return False
        self.stage = stage
        return True

    def start_is_untold(self) -> bool:
        """Whether nobody was told yet that this attempt has started; to be asked once."""
        key, attempt = self.message.key, self.message.attempt
        if (self.started_key, self.started_attempt) == (key, attempt):
            return False
        self.started_key, self.started_attempt = key, attempt
        return True

    def published(self, epoch: str, at: float, *, confirmed_at: float = 0.0) -> None:
        """The server has its message, which was sent at that time, and has said so since."""
        self.epoch, self.published_at = epoch, at
        self.queued_at = self.queued_at or confirmed_at

    def published_again(self, at: float) -> None:
        """Another message was sent for it, at that time; whoever had it is no more."""
        self.published_at, self.worker = at, ""
        self.republished += 1

    def forget_epoch(self) -> None:
        """No server has the record it was opened in: nobody can say any more that nobody ran it."""
        self.epoch = _FORGOTTEN_EPOCH

    def held_by(self, worker: str) -> None:
        """A worker has it."""
        self.worker = worker

    def attached(self, is_attached: bool = True) -> None:
        """Another dispatcher asked for it first, or did not."""
        self.is_attached = is_attached

    def known_before(self) -> None:
        """Its outcome had been stored before this dispatcher asked."""
        self.is_news = False

    def unwanted(self, *, everywhere: bool = False) -> None:
        """Stop waiting for it here; `everywhere`: it is to end for all dispatchers."""
        self.is_unwanted = True
        self.is_cancelled = everywhere

    def rerouted(self, queue: str) -> None:
        """It goes on in another queue."""
        self.queue = queue

    def in_attempt(self, attempt: int) -> None:
        """It is started again, in this attempt, under the same record."""
        self.message = msgspec.structs.replace(self.message, attempt=attempt)

    def waits_again(self, start_by: float) -> None:
        """It has so long to be started once more."""
        self.start_by = min(start_by, self.deadline)

    def for_any_version(self) -> None:
        """No worker has the version of its tool that it was validated against."""
        self.message = msgspec.structs.replace(self.message, final=True)

    def traced(self, headers: dict[str, str]) -> None:
        """Its worker is to be told of the trace that it belongs to."""
        self.message = msgspec.structs.replace(self.message, trace=headers)

    def answered_by(self, work: "asyncio.Task[None]") -> None:
        """This dispatcher answers it itself."""
        self.work = work

    def awaits(self, *, until: float, queue_timeout: float) -> None:
        """It is not sent before it is approved, until a time on the monotonic clock."""
        if not self.awaits_approval:
            for latch in self.latches:
                if isinstance(latch, CountdownLatch):
                    latch.interrupt()
        self.approval, self.awaits_approval = self.root, True
        self.deadline = min(until + queue_timeout + self.message.timeout, self.answer_by)
        self.start_by = min(until, self.deadline)

    def held(self, is_held: bool) -> None:
        """It is counted as waiting outside of any queue, or not any more."""
        self.is_held = is_held

    def unsent(self) -> None:
        """It is not on a queue any more, or never was: it has to be approved first."""
        self.epoch, self.published_at, self.queued_at = "", 0.0, 0.0

    def asked_about(self, message: CallMessage) -> None:
        """The arguments that its approval is bound to, whatever a policy gave it here."""
        if message.arguments != self.message.arguments:
            self.call = msgspec.structs.replace(self.call, policy_note=None)
        self.message = msgspec.structs.replace(self.message, arguments=message.arguments)

    def decided(self, decision: bytes | None) -> None:
        """Note the signed decision that approves it; None if a person has yet to decide."""
        self.message = msgspec.structs.replace(self.message, approval=decision)
        if decision is None:
            self.answer_by = math.inf

    def judged(self, verdict: PolicyVerdict | None) -> None:
        """It was judged once more, perhaps by another policy: the worker compares what both saw."""
        before = self.message.verdict
        if before is not None and verdict is not None:
            paths = tuple(dict.fromkeys((*before.paths, *verdict.paths)))
            verdict = msgspec.structs.replace(verdict, paths=paths, is_whole=True)
        self.message = msgspec.structs.replace(self.message, verdict=verdict)

    def approved(self, *, start_by: float, deadline: float) -> None:
        """It may be sent: it was approved."""
        self.awaits_approval = False
        self.deadline = self.answer_by = min(deadline, self.answer_by)
        self.start_by = min(start_by, self.deadline)

    def handed_over(self, keep: float) -> None:
        """Nobody waits for it any more; its outcome is kept for `keep` seconds."""
        self.in_background, self.keep = True, keep
        self.message = msgspec.structs.replace(self.message, keep=keep)  # if it is yet to be sent

    def under(self, limited: RateLimited | None) -> None:
        """It is under these rate limits, or none any more."""
        self.limited = limited
        limits = limited.limits if limited is not None else ()
        if limits != self.message.limits:
            self.message = msgspec.structs.replace(self.message, limits=limits)

    def lasts_until(self, deadline: float) -> None:
        """Whoever shares it waits until this time, on the monotonic clock."""
        self.deadline = deadline

    def start_again(self, *, start_by: float, before: Outcome) -> None:
        """Become the next retry of the same call: a new record, nothing sent yet.

        `before` is the outcome of the try before it.
        """
        self.retries += 1
        key = retry_key(self.root, self.retries)
        left = max(0, self.message.retries - 1)
        self.message = msgspec.structs.replace(self.message, key=key, attempt=1, retries=left)
        self.stage, self.start_by = Stage.NEW, start_by
        self.accepted_in, self.epoch, self.again = self.epoch or self.accepted_in, "", False
        self.worker, self.republished, self.is_news, self.is_attached = "", 0, True, False
        self.ran_as(before)

    def shared(self, how: str, age: float = 0.0) -> None:
        """Its result comes from an equal call, whose run it joined or whose result was kept."""
        self.shared_as, self.age = how, age

    def ran_as(self, outcome: Outcome) -> None:
        """A try, or the run that it shared, came to this, and there will be another."""
        if outcome.executed is not Executed.NO:
            self.ran_before = outcome

    def ran_for(self, run: "Pending") -> None:
        """What is told of its tries, and of how long they might last, is that of a run."""
        self.retries = run.retries
        if run.told_as == self.root:
            self.queued_at = run.queued_at
        self.message = msgspec.structs.replace(self.message, timeout=run.message.timeout)

    def as_of_all_tries(self, outcome: Outcome) -> Outcome:
        """The outcome of the last try, executed if a try before it was."""
        if outcome.executed is not Executed.NO or self.ran_before is None:
            return outcome
        return msgspec.structs.replace(outcome, executed=self.ran_before.executed)

    def answer(self, outcome: Outcome) -> Outcome:
        """Note the outcome and wake whoever waits for it. To be called once.

        Where nobody took the last try, or its approval had ended, it is that of the try before.
        """
        if outcome.code is Code.EXPIRED and self.ran_before is not None:
            outcome = self.ran_before
        self.outcome = outcome
        self.ended = time.monotonic()
        for latch in self.latches:
            latch.release()
        if self.when_answered is not None:
            self.when_answered(self)
        return outcome

    async def wait(self, seconds: float) -> None:
        """Return when it is answered, or after `seconds`."""
        latch = CountdownLatch([self])
        try:
            async with asyncio.timeout(seconds):
                while not await latch.wait():
                    pass
        except TimeoutError:
            pass
        finally:
            if latch in self.latches:
                self.latches.remove(latch)

    def opening(self, now: float, server_now: float) -> Opening:
        """What the ledger notes about it; `server_now` is the server's time."""
        deadline = max(0.001, self.deadline - now)
        return Opening(
            key=self.key,
            attempt=self.message.attempt,
            rerunnable=self.message.rerunnable,
            wait=max(0.001, self.start_by - now),
            deadline=deadline,
            keep=deadline + self.keep,
            asked_at=server_now - (now - self.began) - CLOCK_MARGIN_SECONDS,
            again=self.again,
            approved=self.message.approval is not None and not self.retries,
        )

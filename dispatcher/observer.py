"""The dispatcher's interface for observers: the moments of a call's life, and the facts of each.

`toolpool.contract.observer_dispatch` says how they are delivered. Facts contain no argument and no
result.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from toolpool.contract.credentials import missing_secret_in
from toolpool.contract.envelope import CallMessage, Progress
from toolpool.contract.exception_report import (
    ExceptionReport,
    Failure,
    failure_of,
    faults_in,
    faults_of,
)
from toolpool.contract.observer_dispatch import BaseObserver, ObserverDispatch, guarded
from toolpool.contract.outcome import Code, Executed, Outcome
from toolpool.contract.result import ToolResult
from toolpool.contract.telemetry.trace_headers import merged


class CallFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The identity of a call. `retry` counts the pool's own retries of it, from 0.

    `retries_left` is how many more are allowed. `bytes` is the size of its arguments. `provider` is
    the form of the response that it came in, `trace` the headers of its trace.
    """

    call_id: str
    tool: str
    session: str | None
    turn: str | None
    key: str
    queue: str
    attempt: int
    retry: int
    retries_left: int
    bytes: int
    provider: str
    trace: Mapping[str, str] | None


class Rejected(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call that was answered without being queued, and what the model did wrong.

    `is_known`: a tool of this name exists. `kinds` are the kinds of problems with its arguments:
    mostly keywords of JSON Schema.
    """

    call_id: str
    tool: str
    session: str | None
    code: Code
    provider: str
    turn: str | None = None
    is_known: bool = False
    kinds: tuple[str, ...] = ()


class Progressed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The progress that a tool reports."""

    done: float
    total: float | None
    message: str | None


class Ended(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The end of a call: `code` is None if it succeeded; `seconds` count from its acceptance.

    `at` is Unix time; observers may be notified a little later. `run_seconds` is how long its tool
    ran, as its worker reports; `queued_seconds` is the time from its acceptance until its message
    was in the queue; 0 if it never was. `is_first`: no other dispatcher reports this end, from an
    earlier request for the same call. `kinds` are the kinds of problems that a worker found with
    its arguments. `is_reported`: the set-up of its worker is at fault, and the worker has notified
    its own observers. `shared` is `joined` if the call shared the run of an equal call, `cached` if
    it reused that call's result; else empty.
    """

    code: Code | None
    executed: Executed
    worker: str
    at: float
    seconds: float
    run_seconds: float
    queued_seconds: float
    is_first: bool
    failure: Failure | None
    kinds: tuple[str, ...] = ()
    is_reported: bool = False
    shared: str = ""

    @property
    def is_by_worker(self) -> bool:
        """Whether a worker answered it, and has reported the same to its own observers."""
        return bool(self.worker) and self.code is not Code.WORKER_LOST


class Loop(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call that the loop guard caught: it failed often, or alternates with another."""

    session: str
    tool: str
    call_id: str
    failures: int
    alternates: bool
    turn: str | None = None


class Alert(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Too many of a tool's last calls were rejected: its schema may be at fault.

    `field` has the most rejections, `rate` is the share of the last calls.
    """

    tool: str
    field: str
    rate: float


class SwitchChanged(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A kill switch that denies a tool, or an argument value of it, or no longer does."""

    tool: str
    argument: str | None
    denied: bool


class Audit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A decision of a person, a rule, a hook or a host.

    `what` is `denied`, `rewritten`, `asked`, `approved`, `expired`, `withheld`, `cancelled`,
    `switched_off` or `switched_on`; `by` names the decider. `approval` is an approval's id;
    `call_id` is empty if the decision concerns no single call. It contains no argument and no
    result.
    """

    what: str
    tool: str
    call_id: str = ""
    session: str | None = None
    by: str = ""
    reason: str = ""
    approval: str = ""


class HookFailure(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A hook, policy rule or webhook that failed, and the call that it was called for.

    `hook` is the hook's name in `Hooks`, or `rule`, or `webhook`. `why` is the class of an
    exception, a timeout, or the fault of the answer; it contains no value. `faults` are the
    exceptions that it raised.
    """

    hook: str
    why: str
    tool: str = ""
    call_id: str = ""
    faults: tuple[ExceptionReport, ...] = ()


class Pulse(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a dispatcher, about four times a second while its event loop runs.

    `lag` is how many seconds late the loop was. `waiting` calls were accepted and wait for a
    worker; `oldest_waiting` is the age in seconds of the oldest of them that no limit of its tool
    or session holds back. `waiting_approvals` calls wait for a person, the oldest for
    `oldest_approval` seconds. `in_flight` calls have no answer yet. `dropped` counts the
    notifications that were dropped because observers were too slow.
    """

    lag: float
    waiting: int
    oldest_waiting: float
    waiting_approvals: int = 0
    oldest_approval: float = 0.0
    in_flight: int
    dropped: int


class Tracing(BaseObserver):
    """An observer that knows which trace a call belongs to."""

    def trace(self, call: CallFacts) -> Mapping[str, str] | None:
        """Headers that tell the call's worker its trace, such as `traceparent`.

        Called once, when the call is accepted, in the caller's context and on the event loop: it
        must be quick.
        """


class Observer(Tracing):
    """The base class for observers: each method is a moment.

    A method that is not overridden costs nothing.
    """

    def accepted(self, call: CallFacts) -> None:
        """A call is valid and allowed, and waits to be sent."""

    def rejected(self, rejected: Rejected) -> None:
        """A call was answered at once: the model has to correct it."""

    def queued(self, call: CallFacts) -> None:
        """Its message is in the queue."""

    def sent(self, queue: str, calls: int) -> None:
        """A message with this many calls is in a queue."""

    def requeued(self, call: CallFacts) -> None:
        """It was sent again: its worker or its message was lost, or it was given back."""

    def started(self, call: CallFacts, worker: str) -> None:
        """A worker runs it."""

    def progressed(self, call: CallFacts, progressed: Progressed) -> None:
        """Its tool reports progress."""

    def released(self, call: CallFacts) -> None:
        """A worker gave it back, to be run by another."""

    def lost(self, call: CallFacts, worker: str) -> None:
        """The worker that ran it is gone."""

    def retried(self, call: CallFacts, pause: float) -> None:
        """It failed, and is run again in `pause` seconds."""

    def ended(self, call: CallFacts, ended: Ended) -> None:
        """It has its result."""

    def failed(self, call: CallFacts, ended: Ended) -> None:
        """It has its result, and has failed. For observers that do not need successes."""

    def late_outcome(self, key: str, worker: str) -> None:
        """A worker's outcome arrived for a call that had been answered before."""

    def looped(self, loop: Loop) -> None:
        """The loop guard caught a call, whether or not it is run."""

    def circuit(self, tool: str, state: str) -> None:
        """A tool's circuit is `open`, `half_open` or `closed`."""

    def switched(self, turned: SwitchChanged) -> None:
        """A kill switch was changed."""

    def audited(self, audit: Audit) -> None:
        """A decision about calls was made."""

    def hook_failed(self, failure: HookFailure) -> None:
        """A hook, policy rule or webhook failed; most of them deny the call."""

    def alerted(self, alert: Alert) -> None:
        """Too many calls of a tool are rejected."""

    def worker_up(self, worker: str) -> None:
        """A worker is seen for the first time."""

    def worker_down(self, worker: str) -> None:
        """A worker has ended, leaves for good, or has lost its lease."""

    def pulse(self, pulse: Pulse) -> None:
        """The dispatcher's event loop runs."""


class Observed(Protocol):
    """An object that identifies a call."""

    @property
    def facts(self) -> CallFacts:
        """The facts, built only if an observer listens."""
        ...


class Answered(Observed, Protocol):
    """An answered call."""

    @property
    def message(self) -> CallMessage:
        """Its last message."""
        ...

    @property
    def seconds(self) -> float:
        """The seconds from its acceptance to its answer."""
        ...

    @property
    def queued_seconds(self) -> float:
        """The seconds until its message was in the queue; 0.0 if it never was."""
        ...

    @property
    def is_first(self) -> bool:
        """Whether no other dispatcher reports this end."""
        ...

    @property
    def shared_as(self) -> str:
        """How an equal call provided its result; empty if it ran itself."""
        ...


class Running(Observed, Protocol):
    """A call that a worker has started."""

    @property
    def worker(self) -> str:
        """The worker; empty if it is not known yet."""
        ...

    @property
    def followers(self) -> Sequence[Observed]:
        """The calls that share its run, or the call itself."""
        ...

    def take_start_report(self) -> bool:
        """Whether its start has to be reported; True once."""
        ...


class Observers(ObserverDispatch):
    """The observers of one dispatcher."""

    def __init__(self, hosts: Sequence[Observer] = (), *, with_texts: bool = False) -> None:
        super().__init__(Observer, hosts)
        self._with_texts = with_texts
        self.tracers: list[Callable[..., Any]] = []
        """The functions that add trace headers to calls."""
        self._calls: defaultdict[str, int] = defaultdict(int)
        self._failed: defaultdict[tuple[str, str], int] = defaultdict(int)

    def take_ended(self) -> tuple[dict[str, int], dict[tuple[str, str], int]]:
        """The calls ended since the last time, by tool; and the failed ones, by tool and code."""
        ended = self._calls, self._failed
        self._calls, self._failed = defaultdict(int), defaultdict(int)
        return ended

    def start(self) -> None:
        """Start delivery; see `ObserverDispatch.start`."""
        super().start()
        self.tracers = [
            guarded(host.trace)
            for host in self._hosts
            if type(host).trace is not Tracing.trace and not host.is_idle
        ]

    def trace(self, call: Observed) -> dict[str, str] | None:
        """The trace headers that observers add to a call; None for none."""
        facts = call.facts
        headers: dict[str, str] | None = None
        for tracer in self.tracers:
            if more := tracer(facts):
                headers = merged(headers or {}, more)
        return headers or None

    def call(self, moment: str, call: Observed, *more: Any) -> None:
        """Report a moment in the life of a call."""
        if self.listeners[moment]:
            self.notify(moment, call.facts, *more)

    def started(self, call: Running, worker: str) -> None:
        """Report once that a worker started the call."""
        if self.listeners["started"] and call.take_start_report():
            for follower in call.followers:
                self.call("started", follower, worker)

    def progressed(self, call: Running, progress: Progress) -> None:
        """Report a tool's progress, which may arrive before its worker's report of the start."""
        if self.listeners["progressed"]:
            self.started(call, call.worker)
            told = Progressed(done=progress.done, total=progress.total, message=progress.message)
            for follower in call.followers:
                self.call("progressed", follower, told)

    def audited(self, what: str, **fields: Any) -> None:
        """Report a decision; `fields` are those of `Audit`."""
        if self.listeners["audited"]:
            self.notify("audited", Audit(what=what, **fields))

    def hook_failed(
        self,
        hook: str,
        why: str,
        error: BaseException | None = None,
        *,
        tool: str = "",
        call_id: str = "",
    ) -> None:
        """Report that a hook failed; `error` is what it raised, if anything. See `HookFailure`."""
        failure = HookFailure(
            hook=hook,
            why=why,
            tool=tool,
            call_id=call_id,
            faults=faults_in({"faults": faults_of(error)}) if error is not None else (),
        )
        self.notify("hook_failed", failure)

    def rejected(
        self,
        result: ToolResult,
        session: str | None,
        turn: str | None,
        provider: str,
        *,
        is_known: bool,
    ) -> None:
        """Report a call that was answered at once; `is_known`: the tool exists."""
        name = result.name if is_known else "(unknown)"
        self._calls[name] += 1
        self._failed[name, str(result.code)] += 1
        if self.listeners["rejected"]:
            assert result.code is not None
            told = Rejected(
                call_id=result.call_id,
                tool=result.name,
                session=session,
                code=result.code,
                provider=provider,
                turn=turn,
                is_known=is_known,
                kinds=_distinct(kind for _, kind in (result.details or {}).get("fields", ())),
            )
            self.notify("rejected", told)

    def ended(self, call: Answered, outcome: Outcome) -> None:
        """Report how a call was answered; see `Ended`."""
        message = call.message
        self._calls[message.tool] += 1
        if outcome.code is not None:
            self._failed[message.tool, outcome.code.value] += 1
        is_failure = outcome.code is not None and self.listeners["failed"]
        if not self.listeners["ended"] and not is_failure:
            return
        failure, is_reported = None, False
        kinds: tuple[str, ...] = ()
        if not outcome.ok:
            failure = failure_of(outcome, message.arguments, with_text=self._with_texts)
            kinds = _distinct(problem.kind for problem in outcome.problems)
            is_reported = missing_secret_in(outcome.details) is not None
        ended = Ended(
            code=outcome.code,
            executed=outcome.executed,
            worker=outcome.worker or "",
            at=time.time(),
            seconds=call.seconds,
            run_seconds=outcome.duration,
            queued_seconds=call.queued_seconds,
            is_first=call.is_first,
            failure=failure,
            kinds=kinds,
            is_reported=is_reported,
            shared=call.shared_as,
        )
        self.notify("ended", call.facts, ended)
        if is_failure:
            self.notify("failed", call.facts, ended)


def _distinct(kinds: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(kinds))

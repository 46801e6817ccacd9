"""The dispatcher's seam for observers: the moments of a call's life, and the facts of each.

`toolpool.contract.observer_dispatch` says how they are told. Facts hold no argument and no result.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from toolpool.contract.credentials import lacked
from toolpool.contract.envelope import CallMessage
from toolpool.contract.exception_report import (
    ExceptionReport,
    Failure,
    failure_of,
    faults_in,
    faults_of,
)
from toolpool.contract.observer_dispatch import Listening, Tellers, guarded, moments
from toolpool.contract.outcome import Code, Executed, Outcome
from toolpool.contract.result import ToolResult
from toolpool.contract.telemetry.trace_headers import merged


class CallFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which call it is. `retry` counts the pool's own retries of it, from 0.

    `retries_left` is how many more it may make. `bytes` are those of its arguments. `provider` is
    the form of the response that it came in, `trace` the headers of the trace that it belongs to.
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

    `is_known`: there is a tool of this name, so that no model made it up. `kinds` are those of the
    problems with its arguments: mostly keywords of JSON Schema.
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
    """How far a tool says it is."""

    done: float
    total: float | None
    message: str | None


class Ended(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a call was answered: `code` is None where it went well; `seconds` from its acceptance.

    `at` is Unix time; observers may be told a little later. `run_seconds` is how long its tool
    ran, as its worker says; `queued_seconds` is when its message was in the queue, 0 where it never
    was. `is_first`: no other dispatcher is told of it as well, having asked for the same call
    before. `kinds` are those of the problems that a worker found with its arguments. `is_reported`:
    the set-up of its worker is at fault, and the worker has told its own observers so. `shared`:
    the result is that of an equal call's run, which it `joined`, or whose result was `cached`.
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
        """Whether a worker answered it, and has told its own observers the same."""
        return bool(self.worker) and self.code is not Code.WORKER_LOST


class Loop(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call that was caught: how often it failed, or that it takes turns with another."""

    session: str
    tool: str
    call_id: str
    failures: int
    alternates: bool
    turn: str | None = None


class Alert(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """More of a tool's last calls were rejected than should be: its schema may be at fault.

    `field` is the one that most of them are about, `rate` the share of the last calls.
    """

    tool: str
    field: str
    rate: float


class Turned(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A kill switch: a tool, or a tool with some value of an argument, is denied or no more."""

    tool: str
    argument: str | None
    denied: bool


class Audit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What somebody decided: a person, a rule, a hook or a host.

    `what` is `denied`, `rewritten`, `asked`, `approved`, `expired`, `withheld`,
    `cancelled`, `switched_off` or `switched_on`; `by` says who. `approval` is the id of one,
    `call_id` empty for what is of no single call. No argument and no result is in it.
    """

    what: str
    tool: str
    call_id: str = ""
    session: str | None = None
    by: str = ""
    reason: str = ""
    approval: str = ""


class HookFailure(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A hook, policy rule or webhook that failed, and the call it was asked about.

    `hook` is the hook's name in `Hooks`, or `rule`, or `webhook`. `why` is the class of an
    exception, a timeout, or what is wrong with the answer; it holds no value. `faults` are the
    exceptions that it raised.
    """

    hook: str
    why: str
    tool: str = ""
    call_id: str = ""
    faults: tuple[ExceptionReport, ...] = ()


class Pulse(msgspec.Struct, frozen=True, kw_only=True):
    """How a dispatcher stands; told about four times a second, while its event loop turns.

    `lag` is how many seconds the loop came too late to it. `waiting` calls were accepted, and are
    to be started by a worker; `oldest_waiting` is the age in seconds of the oldest of them that no
    limit of its tool or session holds back. `waiting_approvals` calls wait for a person, the oldest
    for `oldest_approval` seconds. `in_flight` calls have no answer yet. `dropped`
    counts the moments that observers were too slow for.
    """

    lag: float
    waiting: int
    oldest_waiting: float
    waiting_approvals: int = 0
    oldest_approval: float = 0.0
    in_flight: int
    dropped: int


class Tracing(Listening):
    """What can say which trace a call belongs to."""

    def trace(self, call: CallFacts) -> Mapping[str, str] | None:
        """Headers that tell the call's worker which trace it belongs to, as `traceparent` does.

        Asked once, as the call is accepted, in the context of whoever dispatched it and on the
        event loop: it must be quick.
        """


class Observer(Tracing):
    """To be derived from: each method is a moment. What is not overridden costs nothing."""

    def accepted(self, call: CallFacts) -> None:
        """A call is valid and allowed, and waits to be sent."""

    def rejected(self, rejected: Rejected) -> None:
        """A call was answered at once: the model has to mend it."""

    def queued(self, call: CallFacts) -> None:
        """Its message is in the queue."""

    def sent(self, queue: str, calls: int) -> None:
        """A message with so many calls is in a queue."""

    def requeued(self, call: CallFacts) -> None:
        """It was sent once more: its worker or its message was lost, or it was given back."""

    def started(self, call: CallFacts, worker: str) -> None:
        """A worker runs it."""

    def progressed(self, call: CallFacts, progressed: Progressed) -> None:
        """Its tool says how far it is."""

    def released(self, call: CallFacts) -> None:
        """A worker gave it back, to be run by another."""

    def lost(self, call: CallFacts, worker: str) -> None:
        """The worker that ran it is gone."""

    def retried(self, call: CallFacts, pause: float) -> None:
        """It failed, and is run again in `pause` seconds."""

    def ended(self, call: CallFacts, ended: Ended) -> None:
        """It has its result."""

    def late(self, key: str, worker: str) -> None:
        """A worker's outcome came for a call that had been answered before."""

    def looped(self, loop: Loop) -> None:
        """The loop guard caught a call, whatever becomes of it."""

    def circuit(self, tool: str, state: str) -> None:
        """A tool's circuit is `open`, `half_open` or `closed`."""

    def switched(self, turned: Turned) -> None:
        """A kill switch was turned."""

    def audited(self, audit: Audit) -> None:
        """Somebody decided about calls."""

    def hook_failed(self, failure: HookFailure) -> None:
        """A hook, policy rule or webhook failed; most of them deny the call."""

    def alerted(self, alert: Alert) -> None:
        """Too many calls of a tool are rejected."""

    def worker_up(self, worker: str) -> None:
        """A worker is seen for the first time."""

    def worker_down(self, worker: str) -> None:
        """A worker has ended, leaves for good, or has lost its lease."""

    def pulse(self, pulse: Pulse) -> None:
        """Its event loop turns."""


class Observed(Protocol):
    """Whatever knows which call it is."""

    @property
    def facts(self) -> CallFacts:
        """Made only for somebody who listens."""
        ...


class Observers(Tellers):
    """Whoever listens to one dispatcher."""

    def __init__(self, hosts: Sequence[Observer] = (), *, with_texts: bool = False) -> None:
        super().__init__(Observer, hosts, together=moments(Observer))
        self._with_texts = with_texts
        self._tracers: list[Callable[..., Any]] = []
        self._calls: defaultdict[str, int] = defaultdict(int)
        self._failed: defaultdict[tuple[str, str], int] = defaultdict(int)

    def take_ended(self) -> tuple[dict[str, int], dict[tuple[str, str], int]]:
        """Calls that ended since the last time, by tool; and the failed ones by tool and code."""
        ended = self._calls, self._failed
        self._calls, self._failed = defaultdict(int), defaultdict(int)
        return ended

    def start(self) -> None:
        """See `Tellers.start`."""
        super().start()
        self._tracers = [
            guarded(host.trace)
            for host in self._hosts
            if type(host).trace is not Tracing.trace and not host.is_idle
        ]

    def trace(self, call: Observed) -> dict[str, str] | None:
        """What the observers want a call's worker to be told; None where they want nothing."""
        if not self._tracers:
            return None
        facts = call.facts
        headers: dict[str, str] | None = None
        for tracer in self._tracers:
            if more := tracer(facts):
                headers = merged(headers or {}, more)
        return headers or None

    def call(self, moment: str, call: Observed, *more: Any) -> None:
        """Tell a moment in the life of a call."""
        if self._listeners[moment]:
            self.tell(moment, call.facts, *more)

    def audited(
        self,
        what: str,
        *,
        tool: str,
        call_id: str = "",
        session: str | None = None,
        by: str = "",
        reason: str = "",
        approval: str = "",
    ) -> None:
        """Tell what somebody decided; see `Audit`."""
        if self.hear("audited"):
            told = Audit(
                what=what,
                tool=tool,
                call_id=call_id,
                session=session,
                by=by,
                reason=reason,
                approval=approval,
            )
            self.tell("audited", told)

    def hook_failed(
        self,
        hook: str,
        why: str,
        error: BaseException | None = None,
        *,
        tool: str = "",
        call_id: str = "",
    ) -> None:
        """Tell that a hook failed; `error` is what it raised, if it did. See `HookFailure`."""
        failure = HookFailure(
            hook=hook,
            why=why,
            tool=tool,
            call_id=call_id,
            faults=faults_in({"faults": faults_of(error)}) if error is not None else (),
        )
        self.tell("hook_failed", failure)

    def rejected(
        self,
        result: ToolResult,
        session: str | None,
        turn: str | None,
        provider: str,
        *,
        is_known: bool,
    ) -> None:
        """Tell of a call that was answered at once; `is_known`: there is such a tool."""
        name = result.name if is_known else "(unknown)"
        self._calls[name] += 1
        self._failed[name, str(result.code)] += 1
        if self.hear("rejected"):
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
            self.tell("rejected", told)

    def ended(
        self,
        call: Observed,
        message: CallMessage,
        outcome: Outcome,
        *,
        seconds: float,
        queued_seconds: float,
        is_first: bool,
        shared: str,
    ) -> None:
        """Tell how a call was answered; see `Ended`."""
        tool = message.tool
        self._calls[tool] += 1
        if outcome.code is not None:
            self._failed[tool, outcome.code.value] += 1
        if not self._listeners["ended"]:
            return
        failure, is_reported = None, False
        kinds: tuple[str, ...] = ()
        if not outcome.ok:
            failure = failure_of(outcome, message.arguments, with_text=self._with_texts)
            kinds = _distinct(problem.kind for problem in outcome.problems)
            is_reported = lacked(outcome.details) is not None
        ended = Ended(
            code=outcome.code,
            executed=outcome.executed,
            worker=outcome.worker or "",
            at=time.time(),
            seconds=seconds,
            run_seconds=outcome.duration,
            queued_seconds=queued_seconds,
            is_first=is_first,
            failure=failure,
            kinds=kinds,
            is_reported=is_reported,
            shared=shared,
        )
        self.tell("ended", call.facts, ended)


def _distinct(kinds: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(kinds))

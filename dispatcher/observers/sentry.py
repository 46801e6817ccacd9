"""Reports to Sentry from a dispatcher: failures that no worker can report, and traces of calls.

A worker reports what its tools raise. The dispatcher reports calls whose worker was lost, that
could not be queued or that the pool failed, and the last failure of a call that the pool retried.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import NamedTuple

import sentry_sdk

from toolpool.contract.outcome import Code, ErrorType, Executed
from toolpool.contract.settings import Settings
from toolpool.contract.telemetry import span_attributes
from toolpool.contract.telemetry.families import UNKNOWN_TOOL
from toolpool.contract.telemetry.sentry_reports import BeforeSend, Reports
from toolpool.contract.telemetry.throttle import Throttle
from toolpool.contract.telemetry.trace_headers import (
    BAGGAGE,
    SENTRY_TRACE,
    Parent,
    is_sampled,
    new_span_id,
    new_trace_id,
    sentry_parent,
    sentry_trace,
    to_baggage,
)
from toolpool.dispatcher.observer import CallFacts, Ended, HookFailure, Observer, Rejected
from toolpool.dispatcher.observers.first_attempts import FirstAttempts

_TRACES_AT_MOST = 20_000
_WARNED = frozenset({Code.EXPIRED, Code.OVERLOADED, Code.CIRCUIT_OPEN})
"""Codes of capacity problems: one warning a minute (per tool for circuits); all are counted."""

_scope_here: Callable[[], sentry_sdk.Scope | None]
_scope_here = getattr(
    getattr(sentry_sdk.scope, "_current_scope", None), "get", sentry_sdk.Scope.get_current_scope
)
"""The host's scope in this context, if it has one. `get_current_scope` would create one for every
task, which costs more than the rest of this module."""


class _Trace(NamedTuple):
    """A sampled call: its own span, the one in which it is published, and when it was accepted."""

    parent: Parent | None
    root: Parent
    publish_id: str
    accepted_at: float


class Sentry(Observer):
    """Give it to `Dispatcher.connect(observers=[Sentry()])`; it reads the `SENTRY_*` variables.

    `agent` is the name of the agent in Sentry's dashboard of agents.
    `before_send(event, hint)` returns the event to send, or None to drop it, as in Sentry's SDK; it
    is called on a background thread. Raises `Misconfigured` if the DSN is missing or invalid.
    """

    is_quick = True

    def __init__(
        self,
        agent: str | None = None,
        *,
        dsn: str | None = None,
        settings: Settings | None = None,
        before_send: BeforeSend | None = None,
    ) -> None:
        settings = settings or Settings()
        self._agent = agent
        self._reports_timeouts = settings.sentry_timeouts
        self._system = span_attributes.messaging_system(settings.broker_url)
        self._reports = Reports(
            settings, dsn, every_minute=self._send_figures, before_send=before_send
        )
        self._warnings = Throttle(of_each=1, in_all=10)
        self._traces: OrderedDict[str, _Trace] = OrderedDict()
        self._figures = _Figures()

    def open(self) -> None:
        """Start sending."""
        self._reports.open()

    def close(self) -> None:
        """Send the reports that wait."""
        self._reports.close()

    def trace(self, call: CallFacts) -> Mapping[str, str] | None:
        """The headers of the host's current trace, or of a new one if the call is sampled."""
        above = self._above()
        if above is None and not is_sampled(None, call.key, self._reports.sample_rate):
            return None
        trace_id = above.trace_id if above is not None else new_trace_id()
        root = Parent(trace_id, new_span_id(), above.is_sampled if above is not None else True)
        publish_id = new_span_id()
        if root.is_sampled:
            self._traces[call.key] = _Trace(above, root, publish_id, time.time())
            if len(self._traces) > _TRACES_AT_MOST:
                self._traces.popitem(last=False)
        who = to_baggage(
            {
                span_attributes.AGENT: self._agent,
                span_attributes.PROVIDER: span_attributes.provider_name(call.provider),
            }
        )
        above_baggage = sentry_sdk.get_baggage() if above is not None else None
        return {
            SENTRY_TRACE: sentry_trace(Parent(trace_id, publish_id, root.is_sampled)),
            BAGGAGE: f"{above_baggage},{who}" if above_baggage else who,
        }

    def rejected(self, rejected: Rejected) -> None:
        """A call was rejected: no issue, and a span that does not count as a failure."""
        self._figures.rejected(rejected.session, rejected.tool)
        above = self._above()
        trace_id = above.trace_id if above is not None else new_trace_id()
        if not is_sampled(above, trace_id, self._reports.sample_rate):
            return
        tool = rejected.tool if rejected.is_known else UNKNOWN_TOOL
        root, now = Parent(trace_id, new_span_id(), True), time.time()
        span = {
            **_span(
                root,
                new_span_id(),
                span_attributes.SENTRY_EXECUTE_TOOL,
                span_attributes.execute_tool(tool),
            ),
            "start_timestamp": now,
            "timestamp": now,
            "status": span_attributes.status_of(rejected.code),
            "data": self._of_tool(tool, rejected.session, rejected.provider)
            | {span_attributes.CODE: rejected.code.value, span_attributes.EXECUTED: "no"},
        }
        self._send(tool, above, root, (now, now), "ok", [span])

    def ended(self, call: CallFacts, ended: Ended) -> None:
        """The call has its result."""
        if self._traces and (trace := self._traces.pop(call.key, None)) is not None:
            self._end_trace(call, ended, trace)
        if ended.is_first:
            self._figures.ended(call.session, call.tool, ended.code)
        if ended.code is None or not ended.is_first or ended.shared:
            return
        if ended.executed is Executed.UNKNOWN:
            self._figures.unknown += 1
        level = self._level(call, ended)
        if level is not None:
            self._report(call, ended, ended.code, level)

    def hook_failed(self, failure: HookFailure) -> None:
        """A hook, policy rule or webhook failed: one issue for all tools."""
        self._reports.issue(
            tool=failure.hook,
            code="hook",
            level="error",
            title=f"{failure.hook} failed: {failure.why}",
            cause=failure.why,
            faults=failure.faults,
            tags={"hook": failure.hook, "tool": failure.tool, "call_id": failure.call_id},
        )

    def _level(self, call: CallFacts, ended: Ended) -> str | None:
        """The level at which to report a failure; None if it is not reported from here."""
        assert ended.code is not None
        if ended.code.error_type is ErrorType.RUNTIME:
            return "error" if call.retries_left else None
        if ended.code in _WARNED:
            self._figures.refused += 1
            key = call.tool if ended.code is Code.CIRCUIT_OPEN else ""
            return "warning" if self._warnings.admits((key, ended.code)) else None
        if ended.code.error_type is ErrorType.EXCEPTION:
            return None if ended.is_reported else "error"
        return "warning" if ended.code is Code.TIMEOUT and self._reports_timeouts else None

    def _report(self, call: CallFacts, ended: Ended, code: Code, level: str) -> None:
        self._reports.issue(
            tool=call.tool,
            code=code.value,
            level=level,
            seconds=ended.seconds,
            failure=ended.failure,
            tags={
                "executed": ended.executed.value,
                "attempt": call.attempt + call.retry,
                "queue": call.queue,
                "run_mode": call.queue.rpartition(".")[2],
                "session": call.session,
                "call_id": call.call_id,
                "worker": ended.worker,
            },
            parent=sentry_parent(call.trace),
        )

    def _end_trace(self, call: CallFacts, ended: Ended, trace: _Trace) -> None:
        spans = []
        ended_at = max(trace.accepted_at, ended.at)
        if ended.queued_seconds:
            queued_at = ended_at - ended.seconds + ended.queued_seconds
            spans.append(
                {
                    **_span(
                        trace.root, trace.publish_id, span_attributes.QUEUE_PUBLISH, call.queue
                    ),
                    "start_timestamp": trace.accepted_at,
                    "timestamp": max(trace.accepted_at, queued_at),
                    "status": "ok",
                    "data": {
                        span_attributes.MESSAGING_SYSTEM: self._system,
                        span_attributes.MESSAGE_ID: call.key,
                        span_attributes.DESTINATION: call.queue,
                        span_attributes.BODY_SIZE: call.bytes,
                        span_attributes.RETRY_COUNT: call.attempt - 1 + call.retry,
                    },
                }
            )
        status = span_attributes.status_of(ended.code)
        self._send(
            call.tool,
            trace.parent,
            trace.root,
            (trace.accepted_at, ended_at),
            status if status == "internal_error" else "ok",
            spans,
        )

    def _send(
        self,
        tool: str,
        above: Parent | None,
        root: Parent,
        times: tuple[float, float],
        status: str,
        spans: list[dict[str, object]],
    ) -> None:
        trace: dict[str, object] = {
            "trace_id": root.trace_id,
            "span_id": root.span_id,
            "op": "function",
            "status": status,
            "origin": "auto.function.toolpool",
        }
        if above is not None:
            trace["parent_span_id"] = above.span_id
        else:
            trace["dynamic_sampling_context"] = dict(self._reports.sampled_trace(root))
        self._reports.transaction(
            {
                "transaction": f"dispatch {tool}",
                "transaction_info": {"source": "task"},
                "start_timestamp": times[0],
                "timestamp": times[1],
                "contexts": {"trace": trace},
                "spans": spans,
            }
        )

    def _of_tool(self, tool: str, session: str | None, provider: str) -> dict[str, object]:
        data: dict[str, object | None] = {
            span_attributes.OPERATION: span_attributes.EXECUTE_TOOL,
            span_attributes.TOOL: tool,
            span_attributes.CONVERSATION: session,
            span_attributes.AGENT: self._agent,
            span_attributes.PROVIDER: span_attributes.provider_name(provider),
        }
        return {name: value for name, value in data.items() if value is not None}

    def _above(self) -> Parent | None:
        """The current span of the host's own Sentry."""
        scope = _scope_here()
        span = scope.span if scope is not None else None
        if span is None:
            return None
        return Parent(str(span.trace_id), str(span.span_id), bool(span.sampled))

    def _send_figures(self) -> None:
        for name, value in self._figures.taken().items():
            if value:
                self._reports.count(f"toolpool.{name}", value, {})


class _Figures:
    """Counts calls between two reports. Only `taken` may be called from another thread."""

    def __init__(self) -> None:
        self._tries = FirstAttempts()
        self._counts: dict[str, int] = {}
        self.unknown = 0
        self.refused = 0
        self._first, self._first_valid, self._again, self._again_valid = 0, 0, 0, 0

    def ended(self, session: str | None, tool: str, code: Code | None) -> None:
        """Count a call with a result: valid at once, corrected, or rejected by a worker."""
        if code is not None and code.error_type is ErrorType.VALIDATION:
            self.rejected(session, tool)
        elif self._tries.valid(session, tool):
            self._first += 1
            self._first_valid += 1
        else:
            self._again += 1
            self._again_valid += 1

    def rejected(self, session: str | None, tool: str) -> None:
        """Count a call that was rejected."""
        if self._tries.rejected(session, tool):
            self._first += 1
        else:
            self._again += 1

    def taken(self) -> dict[str, int]:
        """The counts since the last call of this method."""
        now = {
            "calls.first_try": self._first,
            "calls.first_try_valid": self._first_valid,
            "calls.repair": self._again,
            "calls.repaired": self._again_valid,
            "calls.executed_unknown": self.unknown,
            "calls.refused": self.refused,
        }
        since = {name: value - self._counts.get(name, 0) for name, value in now.items()}
        self._counts = now
        return since


def _span(root: Parent, span_id: str, op: str, name: str) -> dict[str, object]:
    return {
        "trace_id": root.trace_id,
        "parent_span_id": root.span_id,
        "span_id": span_id,
        "op": op,
        "description": name,
        "origin": "auto.queue.toolpool" if op.startswith("queue") else "auto.ai.toolpool",
    }

"""Reports to Sentry from a worker: errors of tools, traces, and check-ins of the pool."""

import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from toolpool.contract.credentials import UNAVAILABLE
from toolpool.contract.exception_report import ExceptionReport, Frame, is_own
from toolpool.contract.importing import imported
from toolpool.contract.outcome import SWITCHED_OFF, Code, ErrorType
from toolpool.contract.settings import Settings
from toolpool.contract.telemetry import span_attributes
from toolpool.contract.telemetry.sentry_reports import Reports
from toolpool.contract.telemetry.trace_headers import (
    Parent,
    from_baggage,
    is_sampled,
    new_span_id,
    new_trace_id,
    sentry_parent,
)
from toolpool.workers.running.process_role import import_from_here
from toolpool.workers.worker_observer import (
    Blocked,
    LeftBehind,
    Received,
    RunEnded,
    RunFacts,
    Unresolved,
    WorkerObserver,
)

_STACK_LINE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)(?:\n    (.+))?')
_HEARTBEAT = {
    "schedule": {"type": "interval", "value": 1, "unit": "minute"},
    "checkin_margin": 2,
    "max_runtime": 2,
}


class _Trace(NamedTuple):
    """A sampled run: its parent span, its own span, and the message that it arrived in."""

    above: Parent | None
    root: Parent
    received: Received


class Sentry(WorkerObserver):
    """Used in every worker that has SENTRY_DSN. Raises `Misconfigured` if the DSN is invalid."""

    is_quick = True

    def __init__(self, settings: Settings, dsn: str | None = None) -> None:
        self._system = span_attributes.messaging_system(settings.broker_url)
        self._reports = Reports(
            settings,
            dsn,
            every_minute=self._send_figures,
            before_send=host_function("SENTRY_BEFORE_SEND", settings.sentry_before_send),
        )
        self._traces: dict[tuple[str, int], _Trace] = {}
        self._longest_wait: defaultdict[str, float] = defaultdict(float)

    def open(self) -> None:
        """Start sending."""
        self._reports.open()

    def close(self) -> None:
        """Send the reports that wait."""
        self._reports.close()

    def started(self, call: RunFacts, received: Received) -> None:
        """The tool is entered."""
        if received.seconds > self._longest_wait[call.queue]:
            self._longest_wait[call.queue] = received.seconds
        above = sentry_parent(call.trace) if call.trace is not None else None
        if is_sampled(above, call.key, self._reports.sample_rate):
            trace_id = above.trace_id if above is not None else new_trace_id()
            root = Parent(trace_id, new_span_id(), True)
            self._traces[call.key, call.attempt] = _Trace(above, root, received)

    def released(self, call: RunFacts) -> None:
        """The call was given back, to run elsewhere."""
        self._traces.pop((call.key, call.attempt), None)

    def ended(self, call: RunFacts, ended: RunEnded) -> None:
        """The call was answered."""
        if self._traces and (trace := self._traces.pop((call.key, call.attempt), None)) is not None:
            self._end_trace(call, ended, trace)
        code, failure = ended.code, ended.failure
        if code is None or failure is None:
            return
        is_fault = code.error_type is ErrorType.RUNTIME or code is Code.DENIED
        if not is_fault or failure.cause == SWITCHED_OFF:
            return
        if call.retries_left:
            return  # the dispatcher tries again, and reports the last failure
        self._reports.issue(
            tool=call.tool,
            code=code.value,
            level="error",
            seconds=ended.seconds,
            failure=failure,
            tags={
                "executed": ended.executed.value,
                "attempt": call.attempt + call.retry,
                "queue": call.queue,
                "run_mode": call.run_in,
                "session": call.session,
                "call_id": call.call_id,
            },
            parent=sentry_parent(call.trace),
        )

    def blocked(self, blocked: Blocked) -> None:
        """A tool blocks the event loop: reported once, with the stack that blocks."""
        if blocked.is_fatal:
            return  # reported before; the calls that end with the worker are reported as lost
        tool = blocked.tool or "(unknown)"
        self._reports.issue(
            tool=tool,
            code="blocked",
            level="warning",
            title=f"{tool} blocks the event loop",
            faults=[_fault_at("EventLoopBlocked", blocked.stack)],
            tags={"run_mode": "loop"},
            seconds=blocked.seconds,
        )

    def left_behind(self, left: LeftBehind) -> None:
        """Tools left tasks or threads running."""
        self._reports.issue(
            tool=left.what,
            code="left_behind",
            level="error",
            faults=[_fault_at(f"{left.what.title()}LeftBehind", left.stack)],
            tags={"count": left.count},
        )

    def unresolved(self, unresolved: Unresolved) -> None:
        """One issue for each failing source, and one for each missing secret."""
        self._reports.issue(
            tool=unresolved.source,
            code=UNAVAILABLE,
            level="error",
            title=f"The secret {unresolved.name} is not available: {unresolved.why}",
            cause=unresolved.name if unresolved.is_missing else "",
            faults=unresolved.faults,
            tags={"secret": unresolved.name, "asked_by": unresolved.tool},
            seconds=unresolved.seconds,
        )

    def pool_alive(self, pool: str) -> None:
        """At least one worker of the pool is alive."""
        slug = re.sub(r"[^a-z0-9_-]+", "-", f"toolpool-{pool}".lower())[:50]
        self._reports.check_in(slug, _HEARTBEAT)

    def _end_trace(self, call: RunFacts, ended: RunEnded, trace: _Trace) -> None:
        root = trace.root
        times = {"timestamp": ended.at, "start_timestamp": ended.at - ended.seconds}
        process = self._process_span(call, ended, trace) | times
        execute = _execute_span(call, ended, process) | times
        context: dict[str, object] = {
            "trace_id": root.trace_id,
            "span_id": root.span_id,
            "op": "queue.task.toolpool",
            "status": process["status"],
            "origin": "auto.queue.toolpool",
        }
        if trace.above is not None:
            context["parent_span_id"] = trace.above.span_id
        else:
            context["dynamic_sampling_context"] = dict(self._reports.sampled_trace(root))
        self._reports.transaction(
            {
                "transaction": call.tool,
                "transaction_info": {"source": "task"},
                "contexts": {"trace": context},
                "spans": [process, execute],
                **times,
            }
        )

    def _process_span(self, call: RunFacts, ended: RunEnded, trace: _Trace) -> dict[str, object]:
        """The span of receiving the call from the queue.

        Its status is ok if the model was at fault.
        """
        received = trace.received
        return {
            "trace_id": trace.root.trace_id,
            "span_id": new_span_id(),
            "parent_span_id": trace.root.span_id,
            "op": span_attributes.QUEUE_PROCESS,
            "description": call.queue,
            "origin": "auto.queue.toolpool",
            "status": span_attributes.status_of(ended.code)
            if span_attributes.is_fault(ended.code)
            else "ok",
            "data": {
                span_attributes.MESSAGING_SYSTEM: self._system,
                span_attributes.MESSAGE_ID: call.key,
                span_attributes.DESTINATION: call.queue,
                span_attributes.BODY_SIZE: received.bytes,
                span_attributes.BATCH_SIZE: received.calls,
                span_attributes.RETRY_COUNT: call.attempt - 1 + call.retry,
                span_attributes.RECEIVE_LATENCY: round(received.seconds * 1000, 3),
            },
        }

    def _send_figures(self) -> None:
        waits, self._longest_wait = self._longest_wait, defaultdict(float)
        for queue, seconds in list(waits.items()):  # another thread may be adding to it
            self._reports.gauge("toolpool.queue.age", seconds, "second", {"queue": queue})


def _fault_at(kind: str, stack: str) -> ExceptionReport:
    frames = (
        Frame(file=file, line=int(line), function=function, code=code, is_own=is_own(file))
        for file, line, function, code in _STACK_LINE.findall(stack)
    )
    return ExceptionReport(kind=kind, frames=tuple(frames))


def host_function(setting: str, path: str) -> Callable[..., Any] | None:
    """The function that a setting names as `module:function`. Raises `Misconfigured`."""
    if not path:
        return None
    import_from_here()
    return imported(f"TOOLPOOL_{setting}", path)


def _execute_span(call: RunFacts, ended: RunEnded, process: dict[str, object]) -> dict[str, object]:
    """The span of the tool's run."""
    who = from_baggage(call.trace)
    data = {
        span_attributes.OPERATION: span_attributes.EXECUTE_TOOL,
        span_attributes.TOOL: call.tool,
        span_attributes.TOOL_CALL: call.call_id,
        span_attributes.TOOL_TYPE: "function",
        span_attributes.CONVERSATION: call.session,
        span_attributes.AGENT: who.get(span_attributes.AGENT),
        span_attributes.PROVIDER: who.get(span_attributes.PROVIDER),
        span_attributes.EXECUTED: ended.executed.value,
        span_attributes.CODE: ended.code.value if ended.code is not None else None,
    }
    return {
        "trace_id": process["trace_id"],
        "span_id": new_span_id(),
        "parent_span_id": process["span_id"],
        "op": span_attributes.SENTRY_EXECUTE_TOOL,
        "description": span_attributes.execute_tool(call.tool),
        "origin": "auto.ai.toolpool",
        "status": span_attributes.status_of(ended.code),
        "data": {name: value for name, value in data.items() if value is not None},
    }

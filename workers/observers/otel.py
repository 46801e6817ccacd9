"""OpenTelemetry spans of a worker: one for taking a call, and one for the run of its tool.

Spans that a tool creates on the event loop or in a thread are children of the run's span. Only the
API is used: unless an SDK is set up, for example by `opentelemetry-instrument toolpool worker`,
nothing here runs.
"""

import json
import os
from typing import Any, NamedTuple

from opentelemetry import baggage, propagate, trace
from opentelemetry.context import attach
from opentelemetry.trace import Span, SpanKind, StatusCode

from toolpool.contract.exception_report import traceback_of
from toolpool.contract.settings import Settings
from toolpool.contract.telemetry import span_attributes
from toolpool.contract.version import VERSION
from toolpool.workers.worker_observer import Received, RunEnded, RunFacts, WorkerObserver

_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The variable by which OpenTelemetry's instrumentations record the content of messages."""
_CONTENT_CHARACTERS = 16_384


class _Spans(NamedTuple):
    """The span of receiving a call, and the span of its tool's run."""

    process: Span
    execute: Span


class OpenTelemetry(WorkerObserver):
    """Used in every worker in whose process an SDK is set up."""

    is_quick = True

    def __init__(self, settings: Settings) -> None:
        self._system = span_attributes.messaging_system(settings.broker_url)
        self._tracer = trace.get_tracer("toolpool", VERSION)
        self._spans: dict[tuple[str, int], _Spans] = {}

    def close(self) -> None:
        """End the spans of calls that have not ended."""
        for spans in self._spans.values():
            _end(spans)
        self._spans.clear()

    def started(self, call: RunFacts, received: Received) -> None:
        """The tool is entered, in the current context."""
        above = propagate.extract(dict(call.trace or {}))
        process = self._tracer.start_span(
            f"process {call.queue}",
            context=above,
            kind=SpanKind.CONSUMER,
            attributes={
                span_attributes.MESSAGING_SYSTEM: self._system,
                span_attributes.MESSAGING_OPERATION: "process",
                span_attributes.MESSAGING_OPERATION_TYPE: "process",
                span_attributes.DESTINATION: call.queue,
                span_attributes.MESSAGE_ID: call.key,
                span_attributes.BODY_SIZE: received.bytes,
                span_attributes.BATCH_SIZE: received.calls,
            },
        )
        below = trace.set_span_in_context(process, above)
        given = {
            span_attributes.OPERATION: span_attributes.EXECUTE_TOOL,
            span_attributes.TOOL: call.tool,
            span_attributes.TOOL_CALL: call.call_id,
            span_attributes.TOOL_TYPE: "function",
            span_attributes.CONVERSATION: call.session,
            span_attributes.AGENT: baggage.get_baggage(span_attributes.AGENT, above),
            span_attributes.PROVIDER: baggage.get_baggage(span_attributes.PROVIDER, above),
        }
        execute = self._tracer.start_span(
            span_attributes.execute_tool(call.tool),
            context=below,
            attributes={name: str(value) for name, value in given.items() if value is not None},
        )
        self._spans[call.key, call.attempt] = _Spans(process, execute)
        attach(trace.set_span_in_context(execute, below))  # for the rest of the call's own task

    def released(self, call: RunFacts) -> None:
        """The call was given back, to run elsewhere."""
        spans = self._spans.pop((call.key, call.attempt), None)
        if spans is not None:
            spans.execute.set_attribute(span_attributes.EXECUTED, "unknown")
            _end(spans)

    def ended(self, call: RunFacts, ended: RunEnded) -> None:
        """The call was answered."""
        spans = self._spans.pop((call.key, call.attempt), None)
        if spans is None:
            return
        execute = spans.execute
        execute.set_attribute(span_attributes.EXECUTED, ended.executed.value)
        if ended.code is not None:
            faults = ended.failure.faults if ended.failure is not None else ()
            kind = faults[-1].name if faults else ended.code.value
            execute.set_attribute(span_attributes.CODE, ended.code.value)
            if ended.failure is not None and ended.failure.cause:
                execute.set_attribute(span_attributes.CAUSE, ended.failure.cause)
            execute.set_attribute(span_attributes.ERROR_TYPE, kind)
            if faults:
                stack = traceback_of(faults)
                execute.add_event(
                    "exception", {"exception.type": kind, "exception.stacktrace": stack}
                )
            if span_attributes.is_fault(ended.code):
                execute.set_status(StatusCode.ERROR, ended.code.value)
                spans.process.set_status(StatusCode.ERROR, ended.code.value)
        _end(spans)


class WithContent(OpenTelemetry):
    """Also records arguments and results. The operator has to enable this."""

    def content(self, call: RunFacts, arguments: dict[str, Any], data: Any) -> None:
        """The arguments and the result of a call."""
        spans = self._spans.get((call.key, call.attempt))
        if spans is not None and spans.execute.is_recording():
            spans.execute.set_attribute(span_attributes.ARGUMENTS, _text(arguments))
            if data is not None:
                spans.execute.set_attribute(span_attributes.RESULT, _text(data))


def open_telemetry(settings: Settings) -> OpenTelemetry | None:
    """The observer; None if no SDK is set up in this process."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    wanted = os.environ.get(_CONTENT, "").strip().lower()
    has_content = wanted in ("true", "span_only", "span_and_event")
    return WithContent(settings) if has_content else OpenTelemetry(settings)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)[:_CONTENT_CHARACTERS]


def _end(spans: _Spans) -> None:
    spans.execute.end()
    spans.process.end()

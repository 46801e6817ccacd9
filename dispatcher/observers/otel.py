"""OpenTelemetry spans of a dispatcher: one for each call, and one for sending it.

Only the API is used: the host's SDK, if set up, decides what is sampled and exported.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from opentelemetry import baggage, propagate, trace
from opentelemetry.trace import Span, SpanKind, StatusCode

from toolpool.contract.settings import Settings
from toolpool.contract.telemetry import span_attributes
from toolpool.contract.telemetry.families import UNKNOWN_TOOL
from toolpool.contract.version import VERSION
from toolpool.dispatcher.observer import CallFacts, Ended, Observer, Rejected

_SPANS_AT_MOST = 20_000


class _Spans(NamedTuple):
    """The span of the whole call, and the one in which it is sent."""

    whole: Span
    send: Span

    def end_send(self) -> None:
        """End the span of sending. If a call is sent again, its span has ended already."""
        if self.send.is_recording():
            self.send.end()


class OpenTelemetry(Observer):
    """Give it to `Dispatcher.connect(observers=[OpenTelemetry()])`, once the SDK is set up.

    `agent` is the name of the agent whose calls these are.
    """

    is_quick = True

    def __init__(self, agent: str | None = None, *, settings: Settings | None = None) -> None:
        self._agent = agent
        self._system = span_attributes.messaging_system((settings or Settings()).broker_url)
        self._tracer = trace.get_tracer("toolpool", VERSION)
        self._spans: OrderedDict[str, _Spans] = OrderedDict()

    def open(self) -> None:
        """Make spans if the host has set up an SDK."""
        self.is_idle = isinstance(
            trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider
        )

    def close(self) -> None:
        """End the spans of calls that have not ended."""
        for spans in self._spans.values():
            spans.end_send()
            spans.whole.end()
        self._spans.clear()

    def trace(self, call: CallFacts) -> Mapping[str, str] | None:
        """The W3C headers of the span in which the call is sent."""
        whole = self._tracer.start_span(
            f"dispatch {call.tool}",
            attributes={
                span_attributes.TOOL: call.tool,
                **_present({span_attributes.CONVERSATION: call.session}),
            },
        )
        context = trace.set_span_in_context(whole)
        send = self._tracer.start_span(
            f"send {call.queue}",
            context=context,
            kind=SpanKind.PRODUCER,
            attributes={
                span_attributes.MESSAGING_SYSTEM: self._system,
                span_attributes.MESSAGING_OPERATION: "send",
                span_attributes.MESSAGING_OPERATION_TYPE: "send",
                span_attributes.DESTINATION: call.queue,
                span_attributes.MESSAGE_ID: call.key,
                span_attributes.BODY_SIZE: call.bytes,
            },
        )
        self._spans[call.key] = _Spans(whole, send)
        if len(self._spans) > _SPANS_AT_MOST:
            _, forgotten = self._spans.popitem(last=False)
            forgotten.end_send()
            forgotten.whole.end()
        context = trace.set_span_in_context(send, context)
        provider = span_attributes.provider_name(call.provider)
        context = baggage.set_baggage(span_attributes.PROVIDER, provider, context)
        if self._agent is not None:
            context = baggage.set_baggage(span_attributes.AGENT, self._agent, context)
        headers: dict[str, str] = {}
        propagate.inject(headers, context)
        return headers

    def queued(self, call: CallFacts) -> None:
        """The call was sent."""
        if self._spans and (spans := self._spans.get(call.key)) is not None:
            spans.end_send()

    def rejected(self, rejected: Rejected) -> None:
        """A call was rejected: a span of an execution that did not take place, without an error."""
        tool = rejected.tool if rejected.is_known else UNKNOWN_TOOL
        span = self._tracer.start_span(
            span_attributes.execute_tool(tool),
            attributes=_present(
                {
                    span_attributes.OPERATION: span_attributes.EXECUTE_TOOL,
                    span_attributes.TOOL: tool,
                    span_attributes.CONVERSATION: rejected.session,
                    span_attributes.AGENT: self._agent,
                    span_attributes.PROVIDER: span_attributes.provider_name(rejected.provider),
                    span_attributes.ERROR_TYPE: rejected.code.value,
                    span_attributes.EXECUTED: "no",
                }
            ),
        )
        span.end()

    def ended(self, call: CallFacts, ended: Ended) -> None:
        """The call has its result."""
        spans = self._spans.pop(call.key, None) if self._spans else None
        if spans is None:
            return
        spans.end_send()
        spans.whole.set_attribute(span_attributes.EXECUTED, ended.executed.value)
        spans.whole.set_attribute(span_attributes.ATTEMPT, call.attempt + call.retry)
        if ended.code is not None:
            spans.whole.set_attribute(span_attributes.ERROR_TYPE, ended.code.value)
            if span_attributes.is_fault(ended.code):
                spans.whole.set_status(StatusCode.ERROR, ended.code.value)
        spans.whole.end()


def _present(attributes: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in attributes.items() if value is not None}

"""Tools in a process whose OpenTelemetry SDK writes spans into the file that TEST_SPANS names."""

import os

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from toolpool import ToolContext, ToolError, tool


def _line(span: ReadableSpan) -> str:
    return str(span.to_json(indent=None)) + "\n"


if "TEST_SPANS" in os.environ:
    provider = TracerProvider()
    provider.add_span_processor(
        SimpleSpanProcessor(
            ConsoleSpanExporter(out=open(os.environ["TEST_SPANS"], "a"), formatter=_line)  # noqa: SIM115 - for as long as it lives
        )
    )
    trace.set_tracer_provider(provider)


@tool
async def looks(secret: str) -> str:
    """Look, in a span of its own."""
    with trace.get_tracer("shop").start_as_current_span("inside the loop"):
        return secret


@tool(run_in="thread")
def looks_in_a_thread(secret: str) -> str:
    """Look, in a span of its own."""
    with trace.get_tracer("shop").start_as_current_span("inside a thread"):
        return secret


@tool
def looks_in_a_child(secret: str, ctx: ToolContext) -> str:
    """Tell which trace it is in."""
    return ctx.trace.get("traceparent", "none")


@tool
async def fails(secret: str) -> str:
    """Fail."""
    raise ValueError(secret)


@tool
async def reports(secret: str) -> str:
    """Report."""
    raise ToolError(secret)

"""One trace from the host through the queue into the worker, by OpenTelemetry's conventions."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.integration.fleet import call
from tests.waiting import eventually
from toolpool import Dispatcher, OpenTelemetry, Settings
from toolpool.local import LocalFleet

SECRET = "hunter2-424242"
TOOLS = "tests.fleets.tracing"


class Spans:
    """Those of the workers, from the file that they write, by name."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def text(self) -> str:
        return self._path.read_text() if self._path.exists() else ""

    def named(self, name: str) -> list[dict[str, Any]]:
        spans = [json.loads(line) for line in self.text().splitlines()]
        return [span for span in spans if span["name"] == name]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """The spans of this process, whose SDK is set up for the test."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "get_tracer", lambda *args, **_: provider.get_tracer(args[0]))
    return exporter


@pytest.fixture
def spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spans:
    monkeypatch.setenv("TEST_SPANS", str(tmp_path / "spans"))
    return Spans(tmp_path / "spans")


@pytest.fixture
def fleet(spans: Spans) -> Iterator[LocalFleet]:
    started = LocalFleet([TOOLS], Settings())
    yield started
    started.close()


async def test_one_trace_goes_from_the_host_through_the_queue_into_the_tool(
    host: InMemorySpanExporter,
    fleet: LocalFleet,
    spans: Spans,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with trace.get_tracer("host").start_as_current_span("the agent") as root:
        async with Dispatcher.connect(
            settings=fleet.settings, observers=[OpenTelemetry("shop-bot")]
        ) as dispatcher:
            for name in ("looks", "looks_in_a_thread", "looks_in_a_child", "fails", "reports"):
                turn = await dispatcher.dispatch(call(name, name, secret=SECRET), session="s-1")
                if name == "looks_in_a_child":
                    assert turn[0].data.split("-")[1] == f"{root.get_span_context().trace_id:032x}"
            await dispatcher.dispatch(call("looks", "bad", secret=3), session="s-1")
    await eventually(lambda: len(spans.named("execute_tool reports")) == 1, "the last is written")

    mine = {span.name: span for span in host.get_finished_spans()}
    trace_id = root.get_span_context().trace_id
    assert {span.context.trace_id for span in mine.values() if span.context} == {trace_id}
    send = mine["send toolpool.default.process"]
    assert send.kind is trace.SpanKind.PRODUCER
    assert send.attributes is not None
    assert send.attributes["messaging.destination.name"] == "toolpool.default.process"

    for name, kind, inside in (
        ("looks", "loop", "inside the loop"),
        ("looks_in_a_thread", "thread", "inside a thread"),
    ):
        (execute,) = spans.named(f"execute_tool {name}")
        (within,) = spans.named(inside)
        process = next(
            span
            for span in spans.named(f"process toolpool.default.{kind}")
            if span["context"]["span_id"] == execute["parent_id"]
        )
        assert process["kind"] == "SpanKind.CONSUMER"
        sent = {f"0x{s.context.span_id:016x}" for s in host.get_finished_spans() if s.context}
        assert process["parent_id"] in sent
        assert within["parent_id"] == execute["context"]["span_id"], "the tool's own stand below"
        assert execute["context"]["trace_id"] == f"0x{trace_id:032x}"
        assert execute["attributes"] == {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": name,
            "gen_ai.tool.type": "function",
            "gen_ai.conversation.id": "s-1",
            "gen_ai.agent.name": "shop-bot",
            "gen_ai.provider.name": "bare",
            "toolpool.executed": "yes",
        }

    (failed,) = spans.named("execute_tool fails")
    assert failed["status"]["status_code"] == "ERROR"
    assert failed["attributes"]["error.type"] == "ValueError"
    assert "in fails" in failed["events"][0]["attributes"]["exception.stacktrace"]
    (reported,) = spans.named("execute_tool reports")
    assert reported["status"]["status_code"] == "UNSET", "a tool that reports is none that broke"
    rejected = [s for s in host.get_finished_spans() if s.name == "execute_tool looks"]
    assert [s.status.status_code for s in rejected] == [trace.StatusCode.UNSET]
    assert not [line for line in caplog.records if line.name.startswith("opentelemetry")]
    assert SECRET not in spans.text() + "".join(s.to_json() for s in host.get_finished_spans())


@pytest.fixture
def with_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")


@pytest.mark.usefixtures("with_content")
async def test_content_is_in_spans_where_the_standard_opt_in_says_so(
    spans: Spans, fleet: LocalFleet
) -> None:
    async with Dispatcher.connect(settings=fleet.settings) as dispatcher:
        await dispatcher.dispatch(call("looks", secret=SECRET) + call("fails", secret=SECRET))
    for name in ("looks", "fails"):
        await eventually(lambda: spans.named(f"execute_tool {name}"), "it is written")  # noqa: B023
    (failed,) = spans.named("execute_tool fails")
    assert "gen_ai.tool.call.arguments" in failed["attributes"]
    assert "gen_ai.tool.call.result" not in failed["attributes"], "there is none"
    (execute,) = spans.named("execute_tool looks")
    assert json.loads(execute["attributes"]["gen_ai.tool.call.arguments"]) == {"secret": SECRET}
    assert json.loads(execute["attributes"]["gen_ai.tool.call.result"]) == SECRET


async def test_without_an_sdk_nothing_is_made(redis_url: str) -> None:
    """Neither in the host nor in workers: no span, and no header in a message."""
    fleet = LocalFleet([TOOLS], Settings())
    try:
        async with Dispatcher.connect(
            settings=fleet.settings, observers=[OpenTelemetry()]
        ) as dispatcher:
            turn = await dispatcher.dispatch(call("looks_in_a_child", secret=SECRET))
    finally:
        fleet.close()
    assert turn[0].data == "none"

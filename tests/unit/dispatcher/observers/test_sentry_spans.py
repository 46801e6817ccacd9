"""The spans of a dispatcher's calls, as they are sent to Sentry (R44)."""

import asyncio
import contextvars
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import sentry_sdk
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.sentry_sink import SentrySink, sentry_sink
from tests.unit.facts import call_ended, call_facts
from tests.waiting import eventually, wait_until
from toolpool import Allow, Dispatcher, Hooks, OpenTelemetry, Sentry, tool
from toolpool.contract.outcome import Code
from toolpool.dispatcher.observer import Rejected


@tool(effects="read")
async def echo(value: int) -> int:
    """Give it back."""
    return value


@tool(effects="read", single_flight=True)
async def shared(value: int) -> int:
    """Give it back."""
    return value


TOOLS = [echo, shared]


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Iterator[SentrySink]:
    monkeypatch.setenv("SENTRY_TRACES_SAMPLE_RATE", "1.0")
    with sentry_sink() as opened:
        yield opened


def call(name: str, value: Any = 1) -> list[dict[str, Any]]:
    return [{"id": "c", "name": name, "input": {"value": value}}]


@pytest.mark.parametrize("name", ["echo", "shared"])
async def test_the_publish_span_is_within_its_transaction_however_long_a_hook_took(
    name: str, sink: SentrySink
) -> None:
    async def slow(call: Any) -> Allow:
        await asyncio.sleep(0.2)
        return Allow()

    observers, hooks = [Sentry(dsn=sink.dsn)], Hooks(before_call=slow)
    async with Dispatcher.in_memory(TOOLS, observers=observers, hooks=hooks) as dispatcher:
        assert (await dispatcher.dispatch(call(name))).ok
        await eventually(lambda: sink.of("transaction"), "it is sent")
    [transaction] = sink.of("transaction")
    [span] = transaction["spans"]
    assert span["op"] == "queue.publish"
    times = [transaction["start_timestamp"], span["start_timestamp"], span["timestamp"]]
    assert [*times, transaction["timestamp"]] == sorted([*times, transaction["timestamp"]])


def test_a_trace_ends_at_its_call_s_end_even_if_reported_late(sink: SentrySink) -> None:
    observer = Sentry(dsn=sink.dsn)
    observer.open()
    begun = time.time()
    for key, at in {"later": begun + 7.0, "clock set back": begun - 7.0}.items():
        observer.trace(call_facts(key=key))
        observer.ended(call_facts(key=key), call_ended(at=at))
    observer.close()
    wait_until(lambda: len(sink.of("transaction")) == 2, "both are sent")
    later, back = sink.of("transaction")
    assert later["timestamp"] == pytest.approx(begun + 7.0, abs=1e-3)
    assert later["spans"][0]["timestamp"] == pytest.approx(begun + 7.0 - 0.49, abs=1e-3)
    assert back["timestamp"] == back["start_timestamp"] == back["spans"][0]["timestamp"]


async def test_a_host_without_a_sentry_of_its_own_is_given_no_scope(sink: SentrySink) -> None:
    """The SDK makes one for each task that asks for it."""
    scopes = sentry_sdk.scope._current_scope
    async with Dispatcher.in_memory(TOOLS, observers=[Sentry(dsn=sink.dsn)]) as dispatcher:

        async def ask() -> Any:
            assert (await dispatcher.dispatch(call("echo"))).ok
            return scopes.get()

        context = contextvars.Context()
        assert await asyncio.get_running_loop().create_task(ask(), context=context) is None


@pytest.mark.parametrize("code", [Code.UNKNOWN_TOOL, Code.LOOP])
def test_a_name_that_a_model_made_up_is_in_no_span(code: Code, sink: SentrySink) -> None:
    """Whatever is said of the call: the loop guard answers one that was unknown before."""
    sentry, exporter = Sentry(dsn=sink.dsn), InMemorySpanExporter()
    otel, provider = OpenTelemetry(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    otel._tracer = provider.get_tracer("test")
    rejected = Rejected(call_id="c", tool="jane_doe", session="s", code=code, provider="bare")
    sentry.open()
    for observer in (sentry, otel):
        observer.rejected(rejected)
        observer.rejected(msgspec.structs.replace(rejected, tool="echo", is_known=True))
    sentry.close()
    names = [each["transaction"] for each in sink.of("transaction")]
    assert names == ["dispatch (unknown)", "dispatch echo"]
    assert b"jane_doe" not in b"".join(sink.bodies)
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == ["execute_tool (unknown)", "execute_tool echo"]
    assert "jane_doe" not in str([span.attributes for span in spans])


@pytest.mark.parametrize(
    ("code", "events", "issues"),
    [(Code.EXPIRED, 1, 1), (Code.WORKER_LOST, 2, 1), (Code.CIRCUIT_OPEN, 2, 2)],
)
def test_an_outage_that_several_tools_meet_is_one_issue(
    code: Code, events: int, issues: int, sink: SentrySink
) -> None:
    observer = Sentry(dsn=sink.dsn)
    observer.open()
    for name in ("find", "refund"):
        observer.ended(call_facts(tool=name), call_ended(code, worker=""))
    observer.close()
    fingerprints = [tuple(event["fingerprint"]) for event in sink.of("event")]
    assert (len(fingerprints), len(set(fingerprints))) == (events, issues)


async def test_a_rejected_call_is_in_the_trace_it_was_asked_in(sink: SentrySink) -> None:
    """Of three at once, two in traces of the host's and one in none."""
    sentry_sdk.init(dsn=sink.dsn, traces_sample_rate=1.0, default_integrations=False)
    roots: dict[str, str] = {}

    def told() -> list[str]:
        """The traces of the executions that did not take place."""
        spans = [span for each in sink.of("transaction") for span in each.get("spans", ())]
        return [span["trace_id"] for span in spans if span["op"] == "gen_ai.execute_tool"]

    async def ask(dispatcher: Dispatcher, name: str) -> None:
        with sentry_sdk.isolation_scope(), sentry_sdk.start_transaction(name=name) as root:
            roots[name] = root.trace_id
            await asyncio.sleep(0)
            await dispatcher.dispatch(call("echo", "wrong"))

    try:
        async with Dispatcher.in_memory(TOOLS, observers=[Sentry(dsn=sink.dsn)]) as dispatcher:
            alone = dispatcher.dispatch(call("echo", "wrong"))
            await asyncio.gather(alone, ask(dispatcher, "a"), ask(dispatcher, "b"))
            await eventually(lambda: len(told()) == 3, "all are sent")
    finally:
        sentry_sdk.get_client().close()
        sentry_sdk.get_global_scope().set_client(None)
    assert set(roots.values()) < set(told())
    assert len(set(told())) == 3

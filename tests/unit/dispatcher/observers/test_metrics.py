"""Metrics of a dispatcher: what is counted, under which labels, and what is never one."""

import asyncio
import gc
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest, values

from tests.scraping import Figures, by_code, free_port, parsed, scraped, value
from tests.unit.facts import call_ended, call_facts
from tests.waiting import eventually
from toolpool import Dispatcher, Metrics, Settings, ToolError, tool
from toolpool.contract.observer_dispatch import moments
from toolpool.contract.outcome import Code
from toolpool.contract.telemetry import families, scraping
from toolpool.contract.version import VERSION
from toolpool.dispatcher.observer import Observer, Pulse, Rejected
from toolpool.dispatcher.observers import dispatcher_metrics


@tool
async def echo(value: int) -> int:
    "Give it back."
    return value


@tool(effects="read", retries=1)
async def broken() -> int:
    "Fail."
    raise ValueError("always")


@tool
async def reports() -> int:
    "Report."
    raise ToolError("no")


@tool
async def waits(seconds: float) -> int:
    "Wait."
    await asyncio.sleep(seconds)
    return 1


TOOLS = [echo, broken, reports, waits]


def read(metrics: Metrics) -> Figures:
    return parsed(generate_latest(metrics.registry).decode())


def call(name: str, _id: str = "c", /, **arguments: Any) -> list[dict[str, Any]]:
    return [{"id": _id, "name": name, "input": arguments}]


@pytest.fixture
def metrics() -> Metrics:
    made = Metrics()
    made.open()
    return made


async def test_every_ending_is_counted_by_tool_and_code() -> None:
    metrics = Metrics()
    settings = Settings(retry_delay=0.01)
    async with Dispatcher.in_memory(TOOLS, settings=settings, observers=[metrics]) as dispatcher:
        await dispatcher.dispatch(
            call("echo", value=1) + call("reports", "d") + call("broken", "e")
        )
        await dispatcher.dispatch(call("waits", seconds=5), timeout=0.05)
        await dispatcher.dispatch(call("echo", value="no") + call("made_up", "d"))
        await dispatcher.deny("echo", reason="maintenance")
        await dispatcher.dispatch(call("echo", value=1))
    assert by_code(read(metrics), "toolpool_calls_total") == {
        ("echo", "ok", "ok"): 1,
        ("reports", "logical", "logical.reported"): 1,
        ("broken", "runtime", "runtime.raised"): 1,
        ("waits", "aborted", "aborted.timeout"): 1,
        ("echo", "validation", "validation.arguments"): 1,
        ("(unknown)", "validation", "validation.unknown_tool"): 1,
        ("echo", "aborted", "aborted.denied"): 1,
    }
    assert value(read(metrics), "toolpool_retries_total", tool="broken") == 1
    assert value(read(metrics), "toolpool_executed_unknown_total", tool="waits") == 1
    assert value(read(metrics), "toolpool_batch_calls_sum") == 5


async def test_a_call_that_shares_a_run_is_counted_and_so_is_how() -> None:
    @tool(effects="read", cache_seconds=60)
    async def price() -> int:
        """Price."""
        return 1

    metrics = Metrics()
    async with Dispatcher.in_memory([price], observers=[metrics]) as dispatcher:
        await dispatcher.dispatch(call("price", "a") + call("price", "b") + call("price", "c"))
        await dispatcher.dispatch(call("price", "d"))
        assert value(read(metrics), "toolpool_in_flight_calls") == 0
    name = "toolpool_shared_calls_total"
    assert by_code(read(metrics), "toolpool_calls_total") == {("price", "ok", "ok"): 4}
    assert value(read(metrics), name, tool="price", how="joined") == 2
    assert value(read(metrics), name, tool="price", how="cached") == 1


async def test_a_rejection_is_counted_by_what_was_wrong() -> None:
    metrics = Metrics()
    async with Dispatcher.in_memory(TOOLS, observers=[metrics]) as dispatcher:
        await dispatcher.dispatch(call("echo", value="no", more=1) + call("echo", "d"))
        await dispatcher.dispatch(call("made_up"))
    for keyword, tool_name, count in (
        ("type", "echo", 1), ("additionalProperties", "echo", 1), ("required", "echo", 1),
        ("unknown_tool", "(unknown)", 1),
    ):  # fmt: skip
        name = "toolpool_validation_failures_total"
        assert value(read(metrics), name, tool=tool_name, keyword=keyword) == count, keyword


async def test_a_first_try_is_told_from_one_that_mends() -> None:
    metrics = Metrics()
    async with Dispatcher.in_memory(TOOLS, observers=[metrics]) as dispatcher:
        await dispatcher.dispatch(call("echo", value="no"), session="s")
        await dispatcher.dispatch(call("echo", value=1), session="s")
        await dispatcher.dispatch(call("echo", value=2), session="s")
    first = {
        verdict: value(read(metrics), "toolpool_first_tries_total", tool="echo", verdict=verdict)
        for verdict in ("valid", "rejected")
    }
    assert first == {"valid": 1, "rejected": 1}


def test_what_a_model_made_up_is_no_label(metrics: Metrics) -> None:
    """Neither as a tool nor as what was wrong, and of many tools the last share one label."""
    told = {"call_id": "c", "session": None, "code": Code.INVALID_ARGUMENTS, "provider": "bare"}
    for number in range(1000):
        metrics.rejected(Rejected(tool=f"made-up-{number}", is_known=False, **told))  # type: ignore[arg-type]
        metrics.rejected(
            Rejected(tool="echo", is_known=True, kinds=(f"odd-{number}", "enum"), **told)  # type: ignore[arg-type]
        )
        metrics.ended(call_facts(tool=f"tool-{number}"), call_ended())
    labels = {dict(found).get("tool") for _, found in read(metrics)} - {None}
    assert len(labels) == families.TOOLS_AT_MOST + 2
    assert {"(unknown)", "other", "echo", "tool-0"} <= labels
    name = "toolpool_validation_failures_total"
    keywords = {dict(found)["keyword"] for sample, found in read(metrics) if sample == name}
    assert keywords == {"other", "enum", "arguments"}
    assert value(read(metrics), name, tool="echo", keyword="other") == 1000
    ran = by_code(read(metrics), "toolpool_calls_total")
    assert sum(count for (_, kind, _), count in ran.items() if kind == "ok") == 1000


def test_a_call_that_two_dispatchers_have_is_counted_by_one(metrics: Metrics) -> None:
    metrics.ended(call_facts(), call_ended())
    metrics.ended(call_facts(), call_ended(is_first=False))
    assert by_code(read(metrics), "toolpool_calls_total") == {("echo", "ok", "ok"): 1}


def test_every_observer_moment_has_a_metric(metrics: Metrics) -> None:
    metrics.late_outcome("k", "w")
    metrics.lost(call_facts(), "w")
    metrics.requeued(call_facts())
    metrics.sent("q", 7)
    metrics.worker_up("a")
    metrics.worker_up("b")
    metrics.worker_down("a")
    metrics.ended(call_facts(), call_ended(Code.INVALID_ARGUMENTS, kinds=("value",)))
    metrics.pulse(
        Pulse(
            lag=0.3, waiting=4, oldest_waiting=2.5, waiting_approvals=2, oldest_approval=60.0,
            in_flight=9, dropped=3,
        )
    )  # fmt: skip
    found = read(metrics)
    assert value(found, "toolpool_build_info", version=VERSION) == 1
    for name, expected in {
        "late_results_total": 1, "batch_calls_sum": 7, "workers_alive": 1, "waiting_calls": 4,
        "oldest_waiting_call_age_seconds": 2.5, "in_flight_calls": 9, "observer_drops_total": 3,
        "event_loop_lag_seconds_sum": 0.3, "waiting_approvals": 2,
        "oldest_waiting_approval_age_seconds": 60,
    }.items():  # fmt: skip
        assert value(found, f"toolpool_{name}") == expected, name
    for name in ("lost_calls_total", "redispatches_total", "executed_unknown_total"):
        assert value(found, f"toolpool_{name}", tool="echo") == (not name.startswith("exec")), name
    assert value(found, "toolpool_validation_failures_total", tool="echo", keyword="value") == 1


def test_the_page_has_every_family_and_no_other(metrics: Metrics) -> None:
    lines = generate_latest(metrics.registry).decode().splitlines()
    named = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert named == [family.name for family in dispatcher_metrics.FAMILIES]


async def test_how_a_dispatcher_stands_is_read() -> None:
    metrics = Metrics()
    async with Dispatcher.in_memory(TOOLS, observers=[metrics]) as dispatcher:
        turn = asyncio.ensure_future(dispatcher.dispatch(call("waits", seconds=30)))
        await eventually(
            lambda: value(read(metrics), "toolpool_in_flight_calls") == 1, "it is in flight"
        )
        assert value(read(metrics), "toolpool_workers_alive") == 1
        assert value(read(metrics), "toolpool_event_loop_lag_seconds_count") >= 1
        turn.cancel()
        await asyncio.wait({turn})
    found = read(metrics)
    assert not [name for name, _ in found if name == "toolpool_in_flight_calls"]
    assert value(found, "toolpool_calls_total", tool="waits", error_type="aborted",
                 code="aborted.cancelled") == 1  # fmt: skip


async def test_two_dispatchers_are_read_at_one_port_and_counted_together() -> None:
    port = free_port()

    async def ok() -> float:
        try:
            found = await asyncio.to_thread(scraped, port)
        except OSError:  # its thread does not listen yet
            return 0.0
        return value(found, "toolpool_calls_total", tool="echo", error_type="ok", code="ok")

    async with Dispatcher.in_memory(TOOLS, observers=[Metrics(port=port)]) as one:
        await one.dispatch(call("echo", value=1))
        async with Dispatcher.in_memory(TOOLS, observers=[Metrics(port=port)]) as two:
            await two.dispatch(call("echo", value=1))

            async def both() -> bool:
                return await ok() == 2

            await eventually(both, "both are counted")
        await one.dispatch(call("echo", value=1))

        async def all_three() -> bool:
            return await ok() == 3

        await eventually(all_three, "the one that closed stays counted")
    with pytest.raises(OSError, match="refused"):
        scraped(port)


async def test_calls_go_on_while_a_thousand_scrape_and_some_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Both sides are in this process: where it is held up, a scraper seems to hang that does not.
    monkeypatch.setattr(scraping, "_CONNECTION_SECONDS", 30.0)
    port = free_port()

    async def scrape(request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        answer = await reader.read() if request.endswith(b"\r\n\r\n") else b""
        writer.close()
        return answer

    async with Dispatcher.in_memory(TOOLS, observers=[Metrics(port=port)]) as dispatcher:

        async def is_served() -> bool:
            try:
                return b"200 OK" in await scrape(b"GET / HTTP/1.1\r\n\r\n")
            except OSError:
                return False

        await eventually(is_served, "it is served")
        requests = [b"GET /metrics HTTP/1.1\r\n\r\n", b"GET /metr"] * 500
        scrapes = asyncio.gather(*map(scrape, requests))
        turns = [await dispatcher.dispatch(call("echo", value=n)) for n in range(50)]
        assert all(turn.ok for turn in turns)
        assert sum(b"toolpool_calls_total" in answer for answer in await scrapes) == 500


async def test_a_registry_of_the_hosts_own_is_used(caplog: pytest.LogCaptureFixture) -> None:
    registry, port = CollectorRegistry(auto_describe=True), free_port()
    one, two = Metrics(registry), Metrics(registry)
    other = Metrics(port=port), Metrics(CollectorRegistry(), port=port)
    assert one.registry is two.registry is registry
    for each in (one, two, *other):
        each.open()
    one.ended(call_facts(), call_ended())
    two.ended(call_facts(), call_ended())
    assert by_code(read(one), "toolpool_calls_total") == {("echo", "ok", "ok"): 2}
    assert caplog.text.count("metrics_port_taken") == 1
    for each in (one, two, *other):
        each.close()


def pulse_of(**fields: float) -> Pulse:
    known: dict[str, Any] = {
        "lag": 0.0, "waiting": 0, "oldest_waiting": 0.0, "waiting_approvals": 0,
        "oldest_approval": 0.0, "in_flight": 0, "dropped": 0,
    }  # fmt: skip
    return Pulse(**known | fields)


def test_gauges_of_dispatchers_are_added_up_or_the_largest_counts() -> None:
    """And those of one that closed are gone, while its counters stay."""
    registry = CollectorRegistry()
    one, two = Metrics(registry), Metrics(registry)
    one.open()
    two.open()
    one.pulse(pulse_of(waiting=3, oldest_waiting=5, oldest_approval=2, in_flight=1, dropped=2))
    two.pulse(pulse_of(waiting=4, oldest_waiting=9, waiting_approvals=2, in_flight=2, dropped=1))
    two.pulse(pulse_of(waiting=4, oldest_waiting=9, waiting_approvals=2, in_flight=2, dropped=3))
    for worker in ("a", "b"):
        one.worker_up(worker)
    two.worker_up("a")

    def gauges() -> dict[str, float]:
        named = {name: value for (name, _), value in read(one).items()}
        return {
            name: named[f"toolpool_{name}"]
            for name in (
                "waiting_calls", "in_flight_calls", "oldest_waiting_call_age_seconds",
                "waiting_approvals", "oldest_waiting_approval_age_seconds", "workers_alive",
                "build_info",
            )
            if f"toolpool_{name}" in named
        }  # fmt: skip

    assert gauges() == {
        "waiting_calls": 7, "in_flight_calls": 3, "oldest_waiting_call_age_seconds": 9,
        "waiting_approvals": 2, "oldest_waiting_approval_age_seconds": 2, "workers_alive": 2,
        "build_info": 1,
    }  # fmt: skip
    assert value(read(one), "toolpool_observer_drops_total") == 5
    one.close()
    assert gauges() == {
        "waiting_calls": 4, "in_flight_calls": 2, "oldest_waiting_call_age_seconds": 9,
        "waiting_approvals": 2, "oldest_waiting_approval_age_seconds": 0, "workers_alive": 1,
        "build_info": 1,
    }  # fmt: skip
    two.close()
    assert gauges() == {}
    assert value(read(one), "toolpool_observer_drops_total") == 5
    one.open()
    one.pulse(pulse_of(dropped=1))
    assert value(read(one), "toolpool_observer_drops_total") == 6
    assert gauges()["waiting_calls"] == 0


def test_a_loop_that_does_not_turn_is_seen_beyond_its_grace(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "toolpool_event_loop_stall_seconds"
    assert (name, frozenset()) not in read(metrics), "it has not turned yet"
    metrics.pulse(pulse_of())
    assert read(metrics)[name, frozenset()] == 0
    noted = metrics.gauges[name]
    monkeypatch.setattr(families.time, "monotonic", lambda: noted + 4.5)
    assert read(metrics)[name, frozenset()] == pytest.approx(4.0)


def test_a_host_s_own_metrics_are_never_touched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Even where they are in multiprocess mode, as under Gunicorn."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setattr(values, "ValueClass", values.MultiProcessValue())
    before = {metric.name for metric in REGISTRY.collect()}
    one, two = Metrics(), Metrics()
    for metrics, calls in ((one, 1), (two, 2)):
        metrics.open()
        metrics.pulse(pulse_of(waiting=3))
        for _ in range(calls):
            metrics.ended(call_facts(), call_ended())
    assert by_code(read(one), "toolpool_calls_total") == {("echo", "ok", "ok"): 1}
    assert by_code(read(two), "toolpool_calls_total") == {("echo", "ok", "ok"): 2}
    assert value(read(two), "toolpool_call_duration_seconds_bucket", tool="echo", le="0.5") == 2
    assert not list(tmp_path.iterdir())
    assert {metric.name for metric in REGISTRY.collect()} == before


def test_a_registry_that_is_dropped_leaves_nothing_behind() -> None:
    metrics = Metrics()
    registry = weakref.ref(metrics.registry)
    del metrics
    gc.collect()
    assert registry() is None


async def test_one_for_two_dispatchers_is_said(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    async with Dispatcher.in_memory(TOOLS, observers=[metrics]) as one:
        async with Dispatcher.in_memory(TOOLS, observers=[metrics]) as two:
            assert (await one.dispatch(call("echo", value=1))).ok
            assert (await two.dispatch(call("echo", value=1))).ok
    assert caplog.text.count("metrics_shared") == 1


def test_it_hears_only_what_it_counts() -> None:
    """Being told of a moment costs its facts: those of every call are few."""
    heard = {
        name for name in moments(Observer) if getattr(Metrics, name) is not getattr(Observer, name)
    }
    assert not heard & {"accepted", "queued", "started", "progressed"}


def test_nothing_loads_it_where_metrics_are_off() -> None:
    script = (
        "import sys, toolpool.cli.worker, toolpool.pool, toolpool.workers.celery.app, "
        "toolpool.workers.supervision.supervise; print('prometheus_client' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"

"""Metrics of workers: what a process writes, and what its supervisor makes of several."""

import os
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.scraping import Figures, by_code, free_port, parsed, scraped, value
from tests.unit.facts import run_ended, run_facts
from tests.waiting import wait_until
from toolpool import Settings
from toolpool.contract.exception_report import Failure
from toolpool.contract.observer_dispatch import moments
from toolpool.contract.outcome import Code
from toolpool.contract.telemetry.exposition import BookCollector
from toolpool.contract.version import VERSION
from toolpool.workers.observers import worker_metrics
from toolpool.workers.observers.metrics import Metrics, metrics_on
from toolpool.workers.supervision import merged_metrics as supervised
from toolpool.workers.supervision.health_probes import Health
from toolpool.workers.worker_observer import Blocked, Received, WorkerObserver, WorkerPulse


class Supervised:
    """What a supervisor has, and the processes that it starts, all in this one."""

    def __init__(self, **settings: Any) -> None:
        self.metrics = supervised.Metrics(Settings(**{"metrics_port": 1, **settings}), Health(None))
        self.sheets: list[supervised.WorkerSheet] = []

    def process(self) -> Metrics:
        made = self.metrics.begun()
        assert made is not None
        self.sheets.append(made)
        return metrics_on(made.descriptor)

    def ended(self, code: int = 0) -> None:
        self.metrics.ended(self.sheets.pop(0), code)

    def read(self) -> Figures:
        registry = CollectorRegistry()
        registry.register(BookCollector(self.metrics._aggregate))
        return parsed(generate_latest(registry).decode())


def counters(found: Figures) -> dict[Any, float]:
    return {key: n for key, n in found.items() if key[0].endswith(("_total", "_bucket", "_sum"))}


def test_a_successor_goes_on_where_its_predecessor_was() -> None:
    """A rolling replacement: both run for a while, then the first one is gone."""
    fleet = Supervised()
    first = fleet.process()
    for code, seconds in ((None, 0.02), (Code.RAISED, 0.02), (Code.TIMEOUT, 7.0)):
        first.started(run_facts(), Received(calls=1, bytes=1, seconds=0.3))
        first.ended(run_facts(), run_ended(code, seconds=seconds))
    first.pulse(WorkerPulse(lag=0.2, running=3, stuck=1, dropped=2))
    alone = fleet.read()
    assert value(alone, "toolpool_worker_processes") == 1
    second = fleet.process()
    second.ended(run_facts(), run_ended(seconds=0.02))
    second.pulse(WorkerPulse(lag=0.0, running=2, stuck=0, dropped=1))
    both = fleet.read()
    assert value(both, "toolpool_worker_processes") == 2
    assert value(both, "toolpool_running_calls") == 5
    assert value(both, "toolpool_observer_drops_total") == 3
    fleet.ended(code=-9)
    after = fleet.read()
    assert counters(after) == counters(both) | {
        ("toolpool_worker_process_failures_total", frozenset()): 1
    }
    for key, before in counters(alone).items():
        assert counters(after)[key] >= before, key
    assert value(after, "toolpool_running_calls") == 2, "what it ran it runs no more"
    assert value(after, "toolpool_stuck_slots") == 0
    assert by_code(after, "toolpool_runs_total") == {
        ("echo", "ok", "ok"): 2,
        ("echo", "runtime", "runtime.raised"): 1,
        ("echo", "aborted", "aborted.timeout"): 1,
    }
    name = "toolpool_run_duration_seconds"
    assert value(after, f"{name}_sum", tool="echo") == pytest.approx(7.06)
    assert value(after, f"{name}_bucket", tool="echo", le="0.025") == 3
    assert value(after, "toolpool_queue_wait_seconds_count", queue="q.loop") == 3
    assert value(after, "toolpool_build_info", version=VERSION) == 1


def test_every_observer_moment_has_a_metric() -> None:
    fleet = Supervised()
    process = fleet.process()
    process.released(run_facts())
    process.refused("foreign")
    for is_fatal in (False, True):
        process.blocked(Blocked(tool="echo", seconds=1.5, stack="", is_fatal=is_fatal))
    process.blocked(Blocked(tool=None, seconds=1.5, stack="", is_fatal=False))
    process.ended(
        run_facts(tool="not here", queue="", run_in=""), run_ended(Code.INTERNAL, seconds=0.0)
    )
    found = fleet.read()
    assert value(found, "toolpool_released_calls_total", tool="echo") == 1
    assert value(found, "toolpool_refused_messages_total", reason="foreign") == 1
    assert value(found, "toolpool_event_loop_blocked_total", tool="echo") == 1
    assert value(found, "toolpool_event_loop_blocked_total", tool="(unknown)") == 1
    assert by_code(found, "toolpool_runs_total") == {
        ("(unknown)", "exception", "exception.internal"): 1
    }
    assert value(found, "toolpool_run_duration_seconds_count", tool="(unknown)") == 0


def test_crashes_are_counted_by_their_cause() -> None:
    fleet = Supervised()
    process = fleet.process()
    for cause in ("was killed by SIGSEGV", "exited with code 7", "was killed by SIGSEGV"):
        failure = Failure(text=None, faults=(), digest="", arguments_bytes=2, cause=cause)
        process.ended(run_facts(), run_ended(Code.CRASHED, failure=failure))
    crashed = {"tool": "echo", "error_type": "runtime", "code": "runtime.crashed"}
    found = fleet.read()
    assert value(found, "toolpool_runs_total", cause="was killed by SIGSEGV", **crashed) == 2
    assert value(found, "toolpool_runs_total", cause="exited with code 7", **crashed) == 1


def test_what_is_handed_over_is_no_file_and_nothing_inherits_it() -> None:
    fleet = Supervised()
    descriptors = set(os.listdir("/dev/fd"))
    fleet.process()
    fleet.ended()
    assert set(os.listdir("/dev/fd")) <= descriptors


def test_metrics_that_are_off_cost_nothing() -> None:
    metrics = supervised.Metrics(Settings(), Health(None))
    with metrics:
        assert metrics.begun() is None
        metrics.ended(None, 0)


def test_missing_shared_memory_is_logged_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none() -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(supervised, "_memory", none)
    assert supervised.Metrics(Settings(metrics_port=1), Health(None)).begun() is None
    assert "metrics_not_counted" in caplog.text and "not affected" in caplog.text


def test_the_supervisor_serves_every_family_while_it_runs() -> None:
    port = free_port()
    fleet = Supervised(metrics_port=port)
    with fleet.metrics:

        def is_served() -> bool:
            try:
                return value(scraped(port), "toolpool_build_info", version=VERSION) == 1
            except OSError:
                return False

        wait_until(is_served, "it is served")
    registry = CollectorRegistry()
    registry.register(BookCollector(fleet.metrics._aggregate))
    lines = generate_latest(registry).decode().splitlines()
    named = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert named == [family.name for family in worker_metrics.FAMILIES]


def test_it_hears_only_what_it_counts() -> None:
    heard = {
        m for m in moments(WorkerObserver) if getattr(Metrics, m) is not getattr(WorkerObserver, m)
    }
    assert heard == {"started", "ended", "released", "refused", "blocked", "pulse"}

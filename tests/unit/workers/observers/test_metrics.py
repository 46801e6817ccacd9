"""Metrics of workers: what a process writes, and what its supervisor makes of several."""

import fcntl
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest, values
from prometheus_client.mmap_dict import MmapedDict, mmap_key

from tests.scraping import Figures, by_code, free_port, parsed, scraped, value
from tests.unit.facts import call_ended, call_facts, run_ended, run_facts
from tests.waiting import wait_until
from toolpool import Metrics as DispatcherMetrics, Settings
from toolpool.contract.exception_report import Failure
from toolpool.contract.observer_dispatch import moments
from toolpool.contract.outcome import Code
from toolpool.contract.telemetry import families
from toolpool.contract.version import VERSION
from toolpool.dispatcher.observer import Pulse
from toolpool.workers.observers import observing, worker_metrics
from toolpool.workers.observers.metrics import Metrics, count_in_slot
from toolpool.workers.supervision import merged_metrics as supervised
from toolpool.workers.supervision.health_probes import Health
from toolpool.workers.worker_observer import Blocked, Received, WorkerObserver, WorkerPulse


class Process:
    """A worker process with these files, for as long as a method of it runs in this process."""

    def __init__(self, slot: str) -> None:
        count_in_slot(slot)
        self._files = values.ValueClass
        self._metrics = Metrics()

    def __getattr__(self, moment: str) -> Any:
        values.ValueClass = self._files
        return getattr(self._metrics, moment)


class Supervised:
    """What a supervisor has, and the processes that it starts, all in this one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.port = free_port()
        self.metrics = supervised.Metrics(Settings(metrics_port=self.port), Health(None))
        self.slots: list[str] = []
        self._monkeypatch = monkeypatch

    def slot(self) -> str:
        made = self.metrics.take_slot()
        assert made is not None
        self.slots.append(made)
        for name, directory in self.metrics.environment(made).items():
            self._monkeypatch.setenv(name, directory)
        return made

    def process(self) -> Process:
        return Process(self.slot())

    def ended(self, code: int = 0) -> None:
        self.metrics.ended(self.slots.pop(0), code)

    def page(self) -> str:
        registry = CollectorRegistry()
        registry.register(self.metrics)
        return generate_latest(registry).decode()

    def read(self) -> Figures:
        return parsed(self.page())

    @property
    def directory(self) -> Path:
        assert self.metrics._directory is not None
        return self.metrics._directory


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervised]:
    monkeypatch.setattr(values, "ValueClass", values.ValueClass)  # as it is again afterwards
    made = Supervised(monkeypatch)
    with made.metrics:
        yield made


def counters(found: Figures) -> dict[Any, float]:
    return {key: n for key, n in found.items() if key[0].endswith(("_total", "_bucket", "_sum"))}


def test_a_successor_goes_on_where_its_predecessor_was(fleet: Supervised) -> None:
    """A rolling replacement: both run for a while, then the first one is gone."""
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


def test_every_observer_moment_has_a_metric(fleet: Supervised) -> None:
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


def test_crashes_are_counted_by_their_cause(fleet: Supervised) -> None:
    process = fleet.process()
    for cause in ("was killed by SIGSEGV", "exited with code 7", "was killed by SIGSEGV"):
        failure = Failure(text=None, faults=(), digest="", arguments_bytes=2, cause=cause)
        process.ended(run_facts(), run_ended(Code.CRASHED, failure=failure))
    crashed = {"tool": "echo", "error_type": "runtime", "code": "runtime.crashed"}
    found = fleet.read()
    assert value(found, "toolpool_runs_total", cause="was killed by SIGSEGV", **crashed) == 2
    assert value(found, "toolpool_runs_total", cause="exited with code 7", **crashed) == 1


def killed(fleet: Supervised) -> None:
    """Run a process that counts a call and is killed."""
    slot = fleet.slot()
    pid = os.fork()
    if pid == 0:
        count_in_slot(slot)
        Metrics().ended(run_facts(), run_ended())
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL


def test_what_a_killed_process_has_counted_stays(fleet: Supervised) -> None:
    killed(fleet)
    fleet.ended(code=-9)
    after = fleet.read()
    assert by_code(after, "toolpool_runs_total") == {("echo", "ok", "ok"): 1}
    assert value(after, "toolpool_worker_process_failures_total") == 1
    assert value(after, "toolpool_worker_processes") == 0
    gauges = {"toolpool_running_calls", "toolpool_stuck_slots", "toolpool_event_loop_stall_seconds"}
    assert not gauges & {name for name, _ in after}


def test_processes_that_are_started_again_for_days_leave_no_more_files(fleet: Supervised) -> None:
    seen = set()
    for number in range(1, 51):
        killed(fleet)
        fleet.ended(code=-9)
        seen.add(frozenset(path.name for path in fleet.directory.iterdir()))
        assert by_code(fleet.read(), "toolpool_runs_total") == {("echo", "ok", "ok"): number}
    assert len(seen) == 1


def test_a_successor_that_runs_at_the_same_time_has_files_of_its_own(fleet: Supervised) -> None:
    slots = [fleet.slot(), fleet.slot(), fleet.slot()]
    assert len(set(slots)) == 3
    fleet.ended()
    assert fleet.slot() == slots[0]


def test_a_loop_that_does_not_turn_is_seen_beyond_its_grace(
    fleet: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several processes the one that has not turned for longest counts."""
    name = "toolpool_event_loop_stall_seconds"
    monkeypatch.setattr(families.time, "monotonic", lambda: 100.0)
    fleet.process()
    second = fleet.process()
    assert fleet.read()[name, frozenset()] == 0
    monkeypatch.setattr(families.time, "monotonic", lambda: 104.5)
    second.pulse(WorkerPulse(lag=0.0, running=0, stuck=0, dropped=0))
    assert fleet.read()[name, frozenset()] == 4.0
    fleet.ended()
    assert fleet.read()[name, frozenset()] == 0


def test_metrics_of_tools_are_on_the_page(fleet: Supervised) -> None:
    process = fleet.process()
    Counter("orders", "Orders.", ["shop"], registry=None).labels("oslo").inc(3)
    Gauge("carts", "Carts.", registry=None, multiprocess_mode="livesum").set(2)
    process.ended(run_facts(), run_ended())
    found = fleet.read()
    assert value(found, "orders_total", shop="oslo") == 3
    assert value(found, "carts") == 2
    assert by_code(found, "toolpool_runs_total") == {("echo", "ok", "ok"): 1}


def test_a_dispatcher_in_a_worker_counts_apart(fleet: Supervised) -> None:
    """Both sides have metrics of the same name, such as the lag of the event loop."""
    process = fleet.process()
    metrics = DispatcherMetrics()
    metrics.open()
    metrics.ended(call_facts(), call_ended())
    metrics.pulse(
        Pulse(
            lag=0.3, waiting=4, oldest_waiting=2.5, waiting_approvals=2, oldest_approval=60.0,
            in_flight=9, dropped=3,
        )
    )  # fmt: skip
    process.pulse(WorkerPulse(lag=0.1, running=1, stuck=0, dropped=1))
    of_worker, of_dispatcher = fleet.read(), parsed(generate_latest(metrics.registry).decode())
    for name, by_worker, by_dispatcher in (
        ("toolpool_event_loop_lag_seconds_sum", 0.1, 0.3),
        ("toolpool_event_loop_lag_seconds_count", 1, 1),
        ("toolpool_observer_drops_total", 1, 3),
    ):
        assert value(of_worker, name) == by_worker, name
        assert value(of_dispatcher, name) == by_dispatcher, name
    assert by_code(of_dispatcher, "toolpool_calls_total") == {("echo", "ok", "ok"): 1}
    assert "toolpool_calls" not in fleet.page()


def test_programs_that_tools_start_are_not_counted_and_leave_no_files(fleet: Supervised) -> None:
    """They inherit the variable, and `prometheus_client` names their files after their pids."""
    fleet.process()
    stranger = MmapedDict(str(fleet.directory / "counter_4711.db"))
    stranger.write_value(mmap_key("spam", "spam_total", [], [], "Spam."), 1.0, 0.0)
    stranger.close()
    assert "spam" not in fleet.page()
    assert not list(fleet.directory.glob("*_4711.db"))


def test_a_process_that_was_killed_as_it_made_a_file_does_not_spoil_the_page(
    fleet: Supervised,
) -> None:
    fleet.slot()
    (fleet.directory / "counter_slot0.db").touch()
    assert value(fleet.read(), "toolpool_worker_processes") == 1


def test_the_directory_is_private_and_removed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Supervised(monkeypatch)
    with fleet.metrics:
        fleet.slot()
        directory = fleet.directory
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert not directory.exists()


def test_a_directory_that_somebody_removes_is_made_anew(fleet: Supervised) -> None:
    fleet.directory.rmdir()
    fleet.process().ended(run_facts(), run_ended())
    assert by_code(fleet.read(), "toolpool_runs_total") == {("echo", "ok", "ok"): 1}


def test_what_killed_supervisors_left_behind_is_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(supervised, "_SHARED_MEMORY", str(tmp_path))
    left, in_use, young = (tmp_path / f"toolpool-metrics-{n}" for n in ("left", "used", "young"))
    for directory in (left, in_use, young):
        directory.mkdir()
        (directory / "counter_slot0.db").touch()
    for directory in (left, in_use):
        os.utime(directory, (1, 1))
    lock = os.open(in_use, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with Supervised(monkeypatch).metrics:
        assert [directory.exists() for directory in (left, in_use, young)] == [False, True, True]
    os.close(lock)


def test_metrics_that_are_off_cost_nothing() -> None:
    metrics = supervised.Metrics(Settings(), Health(None))
    with metrics:
        assert metrics.take_slot() is None
        assert metrics.environment(None) == {}
        metrics.ended(None, 0)


def test_a_missing_directory_is_logged_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(**_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(supervised.tempfile, "mkdtemp", none)
    fleet = Supervised(monkeypatch)
    with fleet.metrics:
        assert fleet.metrics.take_slot() is None
        assert value(fleet.read(), "toolpool_build_info", version=VERSION) == 1
    assert "metrics_not_counted" in caplog.text and "not affected" in caplog.text


def test_a_worker_that_cannot_write_its_metrics_goes_on_without(
    fleet: Supervised, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slot = fleet.slot()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(fleet.directory / "gone"))
    count_in_slot(slot)
    assert observing(Settings(), slot) == []
    assert "metrics_not_counted" in caplog.text and "not affected" in caplog.text


def test_a_full_file_system_ends_no_second_process(fleet: Supervised) -> None:
    """A process that writes to a mapped file is killed by SIGBUS if there is no room for it."""
    slot = fleet.metrics.take_slot()
    fleet.metrics.ended(slot, -signal.SIGBUS)
    assert fleet.metrics.take_slot() is None


def test_the_supervisor_serves_every_family_while_it_runs(fleet: Supervised) -> None:
    def is_served() -> bool:
        try:
            return value(scraped(fleet.port), "toolpool_build_info", version=VERSION) == 1
        except OSError:
            return False

    wait_until(is_served, "it is served")
    for _ in range(2):
        named = [line.split()[2] for line in fleet.page().splitlines() if "# TYPE" in line]
        assert named == [family.name for family in worker_metrics.FAMILIES]
        fleet.process().ended(run_facts(), run_ended())


def test_it_hears_only_what_it_counts() -> None:
    heard = {
        m for m in moments(WorkerObserver) if getattr(Metrics, m) is not getattr(WorkerObserver, m)
    }
    assert heard == {"started", "ended", "released", "refused", "blocked", "pulse"}

"""What a supervisor does about workers that end: how long it waits, and what it reports."""

import os
import subprocess
import sys

import pytest

from tests.sentry_sink import sentry_sink
from toolpool.contract.settings import Settings
from toolpool.workers.supervision.supervise import Backoff, Supervisor


def test_a_crash_loop_backs_off_until_a_worker_lasts() -> None:
    backoff = Backoff()
    pauses = [backoff.after(2.0, has_stalled=False) for _ in range(7)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0]
    assert backoff.after(3600.0, has_stalled=False) == 0.25


def test_workers_that_stall_start_again_at_once_each_time() -> None:
    """Ten seconds without work have passed already; more would only be lost."""
    backoff = Backoff()
    assert {backoff.after(15.0, has_stalled=True) for _ in range(7)} == {0.25}


def test_a_crash_loop_is_an_issue_though_no_worker_lives_to_report_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = Settings(redis_url="unix:///nowhere", signing_key="k" * 43)
    crash = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"]
    with sentry_sink() as sink:
        monkeypatch.setenv("SENTRY_DSN", sink.dsn)
        supervisor = Supervisor(crash, settings)
        for count in range(1, 5):
            supervisor._start()
            worker = supervisor._current
            assert worker is not None
            worker.process.wait()
            supervisor._collect()
            assert supervisor._backoff.short_runs == count
        supervisor._close_reports()
        first, second = sink.of("event")
    assert first["fingerprint"] == second["fingerprint"]
    assert first["logentry"]["formatted"] == (
        "Workers end soon after their start, again and again: the last was killed by SIGSEGV"
    )
    assert [event["tags"]["in_a_row"] for event in (first, second)] == ["3", "4"]


def before_send(event: dict[str, object], hint: object) -> None:
    """A host's, which lets nothing through."""


def test_a_crash_loop_passes_the_hosts_before_send(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(
        redis_url="unix:///nowhere",
        signing_key="k" * 43,
        sentry_before_send=f"{__name__}:before_send",
    )
    with sentry_sink() as sink:
        monkeypatch.setenv("SENTRY_DSN", sink.dsn)
        supervisor = Supervisor([sys.executable, "-c", "import os; os._exit(1)"], settings)
        for _ in range(3):
            supervisor._start()
            worker = supervisor._current
            assert worker is not None
            worker.process.wait()
            supervisor._collect()
        supervisor._close_reports()
        assert sink.of("event") == []


def test_a_supervisor_loads_no_validator_of_schemas() -> None:
    """It starts before its worker, and each takes its time."""
    look = (
        "import sys, toolpool.workers.supervision.supervise; print('jsonschema_rs' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True, env=os.environ
    )
    assert ended.stdout.strip() == "False"

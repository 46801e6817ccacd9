"""Keeps a worker running: restarts it when it ends, and replaces it when it stops taking calls.

A worker that sends nothing, frozen or hung, is killed. A worker that still runs but takes no more
calls (worn out, or not reading its queues) may finish those that it has: a successor is started
first, then the old worker is told to drain, and it exits when its calls have ended. A network
failure never ends a worker; `toolpool.workers.supervision.stalled_connections` closes its
connections instead.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from secrets import token_hex
from typing import TYPE_CHECKING

import redis
from redis.exceptions import RedisError

from toolpool.contract import logs
from toolpool.contract.errors import Misconfigured
from toolpool.contract.server import connection
from toolpool.contract.server.process_secrets import handed_over, secrets_of, without_secrets
from toolpool.contract.settings import Settings
from toolpool.workers import exit_status
from toolpool.workers.running import descendants
from toolpool.workers.supervision.ended_workers import EndedWorkers
from toolpool.workers.supervision.health_probes import Health
from toolpool.workers.supervision.lifeline import tethered
from toolpool.workers.supervision.merged_metrics import Metrics
from toolpool.workers.supervision.supervisor_link import (
    Link,
    Recycle,
    Stalled,
    StopNow,
    WorkerExited,
)
from toolpool.workers.supervision.worker_health import Action, HealthDecision, WorkerHealth

if TYPE_CHECKING:
    from toolpool.contract.telemetry.sentry_reports import Reports

log = logs.logger("supervise")

_CHECK_SECONDS = 1.0
_WAIT_SECONDS = 0.25
_START_SECONDS = 90.0
_FIRST_PAUSE = 0.25
_LONGEST_PAUSE = 5.0
_SETTLED_SECONDS = 60.0
"""A worker that exits within this many seconds may be in a crash loop."""
_CRASH_LOOP = 3
"""After this many short runs in a row, a crash loop is reported."""
_STOP_MARGIN_SECONDS = 15.0
"""How many seconds longer than its grace period a worker may take to stop."""
_MAX_LEAVING = 2
_MAX_UNREPORTED = 32
MISCONFIGURED = 2


class Backoff:
    """Computes how long to wait before a restart: longer in a crash loop.

    `short_runs` is how many workers in a row ended within `_SETTLED_SECONDS` of their start.
    """

    def __init__(self) -> None:
        self._pause = _FIRST_PAUSE
        self.short_runs = 0

    def after(self, ran: float, *, has_stalled: bool) -> float:
        """How many seconds to wait after a worker ran for `ran` seconds.

        After a stall, the shortest wait.
        """
        self.short_runs = self.short_runs + 1 if ran <= _SETTLED_SECONDS else 0
        is_crash_loop = not has_stalled and ran <= _SETTLED_SECONDS
        self._pause = min(self._pause * 2, _LONGEST_PAUSE) if is_crash_loop else _FIRST_PAUSE
        return self._pause


class _Worker:
    """A worker process, which is killed if this one ends."""

    def __init__(
        self,
        command: Sequence[str],
        settings: Settings,
        metrics: Metrics,
        variables: Mapping[str, str],
    ) -> None:
        self.id = f"{socket.gethostname()}-{os.getpid()}-{token_hex(4)}"
        self.link, theirs = Link.pair()
        self.is_leaving = False
        """Whether it was told to leave, because it has a successor."""
        self.has_stalled = False
        self.started_at = time.monotonic()
        self.watch = WorkerHealth(
            started_at=self.started_at,
            stall_seconds=settings.worker_stall_timeout,
            loop_seconds=settings.event_loop_timeout,
            knows_depths=not settings.broker_url,
        )
        secrets = secrets_of(settings)
        self._metrics, self._slot = metrics, metrics.take_slot()
        with theirs, open(handed_over({**secrets, **variables}), "rb") as pipe:
            descriptors = [theirs.fileno(), pipe.fileno()]
            options = ["--boot", self.id, "--link", str(descriptors[0])]
            options += ["--handed-over", str(descriptors[1])]
            if self._slot is not None:
                options += ["--metrics-slot", self._slot]
            self.process = subprocess.Popen(
                tethered([*command, *options]),
                pass_fds=descriptors,
                start_new_session=True,
                env=without_secrets(os.environ, secrets) | metrics.environment(self._slot),
            )

    def listen(self) -> None:
        for frame in self.link.received():
            self.watch.receive(frame, time.monotonic())

    @property
    def is_ready(self) -> bool:
        return self.watch.is_ready and not self.has_stalled

    def leave(self) -> None:
        if not self.is_leaving:
            self.is_leaving = True
            self.link.send(Recycle())

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def ended(self) -> int | None:
        """Its exit code, or None while it runs.

        If it has ended, kills the processes that it started.
        """
        code = self.process.poll()
        if code is not None:
            self.kill()
            self.link.close()
            self._metrics.ended(self._slot, code)
        return code


class Supervisor:
    """Runs `command`, with further options for the worker, until it is told to stop.

    `variables` hold the secrets of tools. The first TERM or INT drains the worker, the second kills
    it.
    """

    def __init__(
        self,
        command: Sequence[str],
        settings: Settings,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._command = list(command)
        self._variables = dict(variables or {})
        self._settings = settings
        self._stopping = threading.Event()
        self._signals = 0
        self._stop_by = float("inf")
        self._current: _Worker | None = None
        self._leaving: list[_Worker] = []
        """Workers that have a successor: about to leave, or ending their last calls."""
        self._start_at = 0.0
        self._backoff = Backoff()
        self._booted_before = False
        self._last_code = 0
        self._ended = EndedWorkers(settings)
        self._health = Health(settings.health_file)
        self._metrics = Metrics(settings, self._health)
        self._server_answers = False
        self._reports: Reports | None = None
        self._unreported: deque[WorkerExited | Stalled] = deque(maxlen=_MAX_UNREPORTED)
        """Workers that have ended or stalled, and that have not been reported to the observers of
        another worker yet.
        """

    def run(self) -> int:
        """Block until stopped. Returns the worker's exit code, or 0 after a requested drain."""
        for number in (signal.SIGTERM, signal.SIGINT):
            # An interrupt that was ignored at the start stays ignored: this is a background job.
            if number is signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._stop)
        descendants.adopt()  # processes that tools of a killed worker leave behind
        check_at = note_at = 0.0
        with (
            closing(self._health),
            self._metrics,
            connection.open_sync(self._settings) as client,
            ExitStack() as ending,
        ):
            ending.callback(self._close_reports)
            while True:
                self._listen()
                code = self._collect()
                if code is not None:
                    return code
                self._ended.report()
                if time.monotonic() >= note_at:
                    descendants.reap_adopted(self._pids)
                    self._note_health()
                    note_at = time.monotonic() + _CHECK_SECONDS
                if self._stopping.is_set():
                    if self._current is None and not self._leaving:
                        return 0 if self._last_code in (0, -signal.SIGTERM) else 1
                    self._end_if_overdue()
                elif self._current is None and time.monotonic() >= self._start_at:
                    self._start()
                elif time.monotonic() >= check_at:
                    self._check(client)
                    check_at = time.monotonic() + _CHECK_SECONDS

    def _close_reports(self) -> None:
        if self._reports is not None:
            self._reports.close()

    def _start(self) -> None:
        self._current = _Worker(self._command, self._settings, self._metrics, self._variables)
        if self._stopping.is_set():  # the signal came during the start, and did not reach it
            self._current.process.terminate()

    def _listen(self) -> None:
        """Wait a moment, or until a worker sends something, and read it."""
        workers = [*self._leaving, *([self._current] if self._current else [])]
        if not workers:
            self._stopping.wait(_WAIT_SECONDS)
            return
        select.select([worker.link for worker in workers], [], [], _WAIT_SECONDS)
        for worker in workers:
            worker.listen()

    def _collect(self) -> int | None:
        """Collect ended workers. Returns an exit code if a restart would be of no use."""
        for worker in list(self._leaving):
            code = worker.ended()
            if code is not None:
                self._note_end(worker.id, code)
                self._leaving.remove(worker)
                log.warning("worker_left id=%s: %s", worker.id, exit_status.described(code))
                if code != 0:
                    self._unreported.append(WorkerExited(worker.id, exit_status.described(code)))
        if self._current is None or (code := self._current.ended()) is None:
            return None
        worker, self._current = self._current, None
        self._note_end(worker.id, code)
        if self._stopping.is_set():
            self._last_code = code
            return None
        ran = time.monotonic() - worker.started_at
        if not self._booted_before and ran < _START_SECONDS and code in (MISCONFIGURED, 5):
            return code
        self._booted_before = True
        pause = self._backoff.after(ran, has_stalled=worker.has_stalled)
        self._start_at = time.monotonic() + pause
        if not worker.has_stalled:
            self._unreported.append(WorkerExited(worker.id, exit_status.described(code)))
        log.error(
            "worker_ended id=%s: %s; restarting in %.1f s",
            worker.id, exit_status.described(code), pause,
        )  # fmt: skip
        if self._backoff.short_runs >= _CRASH_LOOP:
            how = "stalled" if worker.has_stalled else exit_status.described(code)
            self._report_crash_loop(worker, how)
        return None

    def _report_crash_loop(self, worker: _Worker, how: str) -> None:
        """Log a crash loop and report it to Sentry: no worker lives long enough to do so."""
        short_runs = self._backoff.short_runs
        log.error("worker_crash_loop id=%s in_a_row=%d: the last %s", worker.id, short_runs, how)
        if not os.environ.get("SENTRY_DSN"):
            return
        try:
            if self._reports is None:
                from toolpool.contract.telemetry.sentry_reports import Reports
                from toolpool.workers.observers.sentry import host_function

                filtered = self._settings.sentry_before_send
                before_send = host_function("SENTRY_BEFORE_SEND", filtered)
                self._reports = Reports(self._settings, before_send=before_send)
                self._reports.open()
            self._reports.issue(
                tool="(worker)",
                code="crash_loop",
                level="error",
                title=f"Workers end soon after their start, again and again: the last {how}",
                cause=how,
                tags={"in_a_row": short_runs, "host": socket.gethostname()},
            )
        except Misconfigured as error:
            log.error("crash_loop_not_reported: %s", error)

    def _note_end(self, worker: str, code: int) -> None:
        if code != 0:  # otherwise the worker itself has ended its tools and told dispatchers
            descendants.end_adopted(self._pids)
            self._ended.note(worker)

    @property
    def _pids(self) -> list[int]:
        workers = [*self._leaving, *([self._current] if self._current else [])]
        return [worker.process.pid for worker in workers]

    def _check(self, client: "redis.Redis") -> None:
        """Judge every worker by what it sent, and by the messages that wait for it."""
        depths = self._depths(client)
        for worker in [*self._leaving, self._current]:
            if worker is None:
                continue
            worker.listen()  # asking the server may have taken a while
            verdict = worker.watch.judge(depths, time.monotonic(), is_leaving=worker.is_leaving)
            if verdict is not None:
                self._carry_out(worker, verdict)
        if self._current is not None and self._current.is_ready:
            self._booted_before = True
            for worker in self._leaving:
                worker.leave()
            while self._unreported and self._current.link.send(self._unreported[0]):
                del self._unreported[0]

    def _carry_out(self, worker: _Worker, verdict: HealthDecision) -> None:
        if verdict.action is Action.END:
            log.error("worker_stalled id=%s: %s", worker.id, verdict.reason)
            self._unreported.append(Stalled(worker.id, verdict.reason))
            worker.has_stalled = True
            worker.kill()
            worker.process.wait()
        elif worker is self._current and len(self._leaving) < _MAX_LEAVING:
            log.error("worker_replaced id=%s: %s", worker.id, verdict.reason)
            self._unreported.append(Stalled(worker.id, verdict.reason))
            self._leaving.append(worker)
            self._start()

    def _note_health(self) -> None:
        worker = self._current
        fault = worker.watch.fault(time.monotonic()) if worker is not None else ""
        unready = ""
        if self._stopping.is_set():
            unready = "the worker drains"
        elif worker is None:
            fault = unready = "no worker process runs"
        elif not worker.is_ready:
            unready = "the worker has not begun to take calls"
        elif not self._server_answers:
            unready = "the server does not answer"
        elif not worker.watch.consumes:
            unready = "the worker is not connected to the broker"
        elif not worker.watch.is_leased:
            unready = "the worker's lease is not renewed: the server takes no writes"
        self._health.note(fault=fault, unready=unready)

    def _depths(self, client: "redis.Redis") -> dict[str, int] | None:
        """How many messages wait in each of the current worker's queues; None if unknown.

        Also records whether the server answers.
        """
        has_broker = bool(self._settings.broker_url)
        queues = [] if has_broker or self._current is None else list(self._current.watch.free)
        self._server_answers = False
        try:
            pipeline = client.pipeline(transaction=False)
            pipeline.ping()
            for queue in queues:
                pipeline.llen(queue)
            depths = dict(zip(queues, pipeline.execute()[1:], strict=True))
        except (RedisError, OSError):
            return None
        self._server_answers = True
        return None if has_broker or self._current is None else depths

    def _end_if_overdue(self) -> None:
        """Kill workers that hang: they have not stopped within their grace period and a margin."""
        if time.monotonic() <= self._stop_by:
            return
        for worker in [*self._leaving, self._current]:
            if worker is not None:
                log.error("worker_not_stopped id=%s: killing it after its grace", worker.id)
                worker.kill()

    def _stop(self, number: int, frame: object) -> None:
        self._signals += 1
        if self._signals == 1:
            self._stop_by = time.monotonic() + self._settings.drain_timeout + _STOP_MARGIN_SECONDS
        self._stopping.set()
        for worker in [*self._leaving, self._current]:
            if worker is None or worker.process.poll() is not None:
                continue
            if self._signals > 1:
                worker.kill()
            else:
                worker.link.send(StopNow())
                worker.process.terminate()

"""Keeps one worker running: starts it again when it exits, and when it stalls.

"The process is alive" says nothing. A worker has stalled when this process's own connection to
Redis is well and, for ten seconds, the worker's lease was not renewed, or it had free slots, a
queue of its own held messages, and it took none of them.
"""

import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence

import redis
from redis.exceptions import RedisError

from contract import connection
from contract.envelope import Envelope, WorkerLease
from contract.errors import MessageRejected
from contract.lifeline import tethered
from contract.names import Names
from contract.settings import Settings
from workers import exits

log = logging.getLogger("toolpool.supervise")

_LOOK_SECONDS = 1.0
_START_SECONDS = 90.0
_FIRST_PAUSE = 0.25
_LONGEST_PAUSE = 5.0
_SETTLED_SECONDS = 60.0
"""A worker that exits sooner is in a crash loop."""
_STOP_MARGIN_SECONDS = 10.0
"""How much longer than its grace a worker may take to stop."""
MISCONFIGURED = 2
_STALLED = 1_000  # no exit code


class Watch:
    """Decides from what it is shown whether a worker has stalled. No I/O."""

    def __init__(self, *, started_at: float, stall_seconds: float) -> None:
        self._stall_seconds = stall_seconds
        self._lease_until = started_at + _START_SECONDS
        self._received = -1
        self._idle_since: float | None = None

    def look(self, lease: WorkerLease | None, depths: dict[str, int], now: float) -> str | None:
        """Why the worker is to be ended; None while it is well. Show it only healthy looks."""
        if lease is None:
            self._idle_since = None
            if now > self._lease_until:
                return f"its lease was not renewed for {self._stall_seconds:g} s"
            return None
        self._lease_until = now + self._stall_seconds
        waits = any(depths.get(queue, 0) and lease.free.get(queue, 0) for queue in lease.slots)
        if not waits or lease.received != self._received:
            self._received = lease.received
            self._idle_since = now if waits else None
            return None
        if self._idle_since is None:
            self._idle_since = now
        if now - self._idle_since > self._stall_seconds:
            return f"it took no message for {self._stall_seconds:g} s with slots free"
        return None

    def forgive(self, now: float) -> None:
        """The server was away: nothing that was missing meanwhile counts."""
        self._lease_until = max(self._lease_until, now + self._stall_seconds)
        self._idle_since = None


class Backoff:
    """How long to wait before a worker that ended starts again: longer in a crash loop."""

    def __init__(self) -> None:
        self._pause = _FIRST_PAUSE

    def after(self, ran: float, *, has_stalled: bool) -> float:
        """Seconds to wait, after a worker that ran for this many. A stall took pause enough."""
        is_crash_loop = not has_stalled and ran <= _SETTLED_SECONDS
        self._pause = min(self._pause * 2, _LONGEST_PAUSE) if is_crash_loop else _FIRST_PAUSE
        return self._pause


class Supervisor:
    """Runs `command`, to which `--boot ID` is added, until it is told to stop.

    The first TERM or INT drains the worker, the second ends it.
    """

    def __init__(self, command: Sequence[str], settings: Settings) -> None:
        self._command = list(command)
        self._settings = settings
        self._names = Names(settings.key_prefix)
        self._envelope = Envelope(connection.keyring(settings))
        self._stopping = threading.Event()
        self._signals = 0
        self._stop_by = float("inf")
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Blocks; the worker's exit code, or 0 after a drain that was asked for."""
        for number in (signal.SIGTERM, signal.SIGINT):
            # An interrupt that was ignored from the start stays so: it is for the job in front.
            if number is signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._stop)
        backoff = Backoff()
        booted_before = False
        while True:
            began = time.monotonic()
            code, reason = self._run_once()
            if self._stopping.is_set():
                return 0 if code in (0, -signal.SIGTERM) else 1
            ran = time.monotonic() - began
            if not booted_before and ran < _START_SECONDS and code in (MISCONFIGURED, 5):
                return code
            booted_before = True
            pause = backoff.after(ran, has_stalled=code == _STALLED)
            log.error("worker_ended %s; starting it again in %.1f s", reason, pause)
            if self._stopping.wait(pause):
                return 0

    def _run_once(self) -> tuple[int, str]:
        worker = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        process = self._process = subprocess.Popen(
            tethered([*self._command, "--boot", worker]), start_new_session=True
        )
        if self._stopping.is_set():
            process.terminate()
        watch = Watch(started_at=time.monotonic(), stall_seconds=self._settings.worker_stall)
        with connection.open_sync(self._settings) as client:
            while True:
                try:
                    code = process.wait(_LOOK_SECONDS)
                    _end_group(process.pid)
                    return code, exits.described(code)
                except subprocess.TimeoutExpired:
                    pass
                if self._stopping.is_set():
                    self._end_if_overdue(process)
                    continue
                now = time.monotonic()
                try:
                    lease, depths = self._look(client, worker)
                except (RedisError, OSError):
                    watch.forgive(time.monotonic())
                    continue
                stalled = watch.look(lease, depths, now)
                if stalled is not None and not self._stopping.is_set():
                    log.error("worker_stalled id=%s: %s", worker, stalled)
                    _end_group(process.pid)
                    process.wait()
                    return _STALLED, f"stalled: {stalled}"

    def _end_if_overdue(self, process: "subprocess.Popen[bytes]") -> None:
        """A stop that takes longer than its grace and a margin waits for something that hangs."""
        if time.monotonic() > self._stop_by:
            log.error("worker_not_stopped: it did not end in its grace; killing it")
            _end_group(process.pid)

    def _look(
        self, client: "redis.Redis", worker: str
    ) -> tuple[WorkerLease | None, dict[str, int]]:
        data = client.get(self._names.worker(worker))
        if not isinstance(data, bytes):
            return None, {}
        try:
            lease = self._envelope.decode_lease(data)
        except MessageRejected:
            return None, {}
        if self._settings.broker_url:
            return lease, {}
        pipeline = client.pipeline(transaction=False)
        for queue in lease.slots:
            pipeline.llen(queue)
        return lease, dict(zip(lease.slots, pipeline.execute(), strict=True))

    def _stop(self, number: int, frame: object) -> None:
        self._signals += 1
        if self._signals == 1:
            self._stop_by = time.monotonic() + self._settings.drain_grace + _STOP_MARGIN_SECONDS
        self._stopping.set()
        if self._process is not None and self._process.poll() is None:
            if self._signals == 1:
                self._process.terminate()
            else:
                _end_group(self._process.pid)


def _end_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)

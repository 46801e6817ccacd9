"""Detects a coroutine tool that blocks the event loop, names it, and finally ends the worker.

A blocked loop stalls every other call of the worker and cannot be cancelled. So the process is
ended; the supervisor starts another, and dispatchers recover the calls. The call that blocked the
loop is answered first, so that it is not run again beside others.
"""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType

from toolpool.contract import logs
from toolpool.contract.exception_report import stack_of
from toolpool.workers.running.claimed_call import ClaimedCall
from toolpool.workers.running.executor import Executor
from toolpool.workers.running.invoke import invoke_coroutine
from toolpool.workers.worker_observer import Blocked, WorkerObservers

log = logs.logger("watchdog")

_CHECK_SECONDS = 0.25
_FRAMES = 20
_TURN_OF_A_LOOP = getattr(getattr(asyncio.BaseEventLoop, "_run_once", None), "__code__", None)
BLOCKED = 75
"""The exit code of a worker whose event loop was blocked for too long."""


class LoopWatchdog:
    """Watches the event loop of one thread. Times are in seconds.

    A lag (`loop_lag`) over `warn` is logged; over `limit` the process ends. Just before, `end_call`
    gets the call that blocked the loop all the time, on the watchdog's thread. It is not called if
    the blocking code is a task that the tool started.
    """

    def __init__(
        self,
        *,
        thread: threading.Thread,
        loop_lag: Callable[[], float],
        warn: float,
        limit: float,
        observers: WorkerObservers,
        end_call: Callable[[ClaimedCall], None] = lambda _: None,
    ) -> None:
        self._end_call = end_call
        self._thread = thread
        self._loop_lag = loop_lag
        self._warn = warn
        self._limit = limit
        self._observers = observers
        self._stopping = threading.Event()
        self._warned = False
        self._blocking: ClaimedCall | None = None
        """The call that was running at every check since the loop became late."""

    def start(self) -> None:
        """Watch in a background thread until `stop`."""
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopping.set()

    def _watch(self) -> None:
        while not self._stopping.wait(_CHECK_SECONDS):
            lag = self._loop_lag()
            if lag < self._warn or is_waiting(frame := self._frame()):
                self._warned = False
                continue
            running = running_call(frame)
            if not self._warned:
                self._warned, self._blocking = True, running
                self._report("loop_blocked", _blocked(frame, lag, is_fatal=False))
                continue
            if running is not self._blocking:  # several calls in turn: no single one is to blame
                self._blocking = None
            if lag > self._limit:
                self._report("loop_blocked_too_long", _blocked(frame, lag, is_fatal=True))
                if self._blocking is not None:
                    self._end_call(self._blocking)
                self._observers.close()
                logs.flush()
                os._exit(BLOCKED)

    def _frame(self) -> FrameType | None:
        return sys._current_frames().get(self._thread.ident or 0)

    def _report(self, what: str, blocked: Blocked) -> None:
        tool = blocked.tool or "unknown"
        level = logging.CRITICAL if blocked.is_fatal else logging.ERROR
        log.log(
            level,
            "%s tool=%s for %.1f s\n%s",
            what,
            tool,
            blocked.seconds,
            logs.lines(blocked.stack),
        )
        self._observers.notify("blocked", blocked)


def _blocked(frame: FrameType | None, lag: float, *, is_fatal: bool) -> Blocked:
    stack = stack_of(frame, _FRAMES)
    return Blocked(tool=tool_in(frame), seconds=lag, stack=stack, is_fatal=is_fatal)


def is_waiting(frame: FrameType | None) -> bool:
    """Whether the loop in this frame waits for events.

    If so, it is late but no code blocks it: the machine is overloaded, or was suspended.
    """
    if frame is not None and frame.f_code.co_name == "select":
        frame = frame.f_back
    return frame is not None and frame.f_code is _TURN_OF_A_LOOP


def running_call(frame: FrameType | None) -> ClaimedCall | None:
    """The call that runs in these frames of the event loop's thread."""
    while frame is not None:
        if frame.f_code is Executor._run.__code__:
            running = frame.f_locals["running"]
            return running if isinstance(running, ClaimedCall) else None
        frame = frame.f_back
    return None


def tool_in(frame: FrameType | None) -> str | None:
    """The name of the tool that runs in these frames of the event loop's thread."""
    while frame is not None:
        if frame.f_code is invoke_coroutine.__code__:
            return str(frame.f_locals["call"].tool.name)
        frame = frame.f_back
    return None

"""Timeouts and heartbeats of a run."""

import asyncio
import heapq
import itertools
import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from toolpool.contract import logs
from toolpool.contract.outcome import Code, Executed, Outcome, failure

log = logs.logger("heartbeat")

_SECOND_LOOK_SECONDS = 0.1
"""How many seconds a delayed loop may read pending heartbeats before a run counts as silent."""
_OVER_AT_LEAST = 100


def interval(heartbeat: float) -> float:
    """The interval at which heartbeats are forwarded, in seconds."""
    return min(heartbeat / 4, 0.25)


class BeatThrottle:
    """Forwards at most one heartbeat per `interval`. Never raises."""

    def __init__(self, send: Callable[[], None], heartbeat: float | None) -> None:
        self._send = send
        self._interval = interval(heartbeat) if heartbeat is not None else float("inf")
        self._open_at = 0.0 if heartbeat is not None else float("inf")

    def __call__(self) -> None:
        """Forward the heartbeat, or drop it."""
        now = time.monotonic()
        if now < self._open_at:
            return
        self._open_at = now + self._interval
        try:
            self._send()
        except Exception as error:  # noqa: BLE001 - a heartbeat never fails a tool
            log.info("heartbeat_not_sent: %s", error)


class RunTimers:
    """The timeouts of many runs, with one timer of the event loop for the earliest.

    With `asyncio.timeout`, each has a timer of its own, which takes 19 function calls.
    """

    def __init__(self) -> None:
        self._ends: list[tuple[float, int, RunTimeout]] = []
        """A heap of monotonic times. Runs that are over stay in it until they are many."""
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = math.inf
        self._over = 0

    def add(self, run: "RunTimeout", at: float) -> None:
        """Let a run expire at this monotonic time, unless it is over before."""
        if self._over > _OVER_AT_LEAST and 2 * self._over > len(self._ends):
            self._ends = [end for end in self._ends if not end[2].is_over]
            heapq.heapify(self._ends)
            self._over = 0
        heapq.heappush(self._ends, (at, next(self._numbers), run))
        if at < self._due_at:
            self._wait_until(at)

    def over(self) -> None:
        """Count a run that is over before its time."""
        self._over += 1

    def _wait_until(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_at = at
        self._timer = asyncio.get_running_loop().call_later(at - time.monotonic(), self._expire)

    def _expire(self) -> None:
        self._timer, self._due_at = None, math.inf
        now = time.monotonic()
        try:
            while self._ends and (self._ends[0][0] <= now or self._ends[0][2].is_over):
                _, _, run = heapq.heappop(self._ends)
                if run.is_over:
                    self._over -= 1
                else:
                    run.expire()  # may raise what a tool awaits raises when it is cancelled
        finally:
            if self._ends:
                self._wait_until(self._ends[0][0])


class RunTimeout:
    """Ends the body of its `async with` by TimeoutError: at its timeout, or when it falls silent.

    `seconds` bound the run; it is silent after `heartbeat` seconds without a `beat`, which may come
    from any thread. `on_silence` is called when it is ended for silence.
    """

    def __init__(
        self,
        timers: RunTimers,
        seconds: float,
        heartbeat: float | None,
        on_silence: Callable[[], None] | None = None,
        *,
        slack: float = 0.0,
    ) -> None:
        self.is_over = False
        """Whether the body has ended, or was cancelled because its time was up."""
        self.fell_silent = False
        self._timers = timers
        self._seconds = seconds
        self._heartbeat = heartbeat
        self._slack = slack
        self._on_silence = on_silence
        self._heard_at = 0.0
        self._suspected = False
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancels = 0
        """How often the task had been cancelled when the body began."""
        self._has_expired = False

    def beat(self) -> None:
        """Record a heartbeat."""
        self._heard_at = time.monotonic()

    def outcome(self, why: str = "", *, still_running: bool = False) -> Outcome:
        """The outcome of a run that was ended; `why` is appended to its message."""
        silence = self._heartbeat if self.fell_silent and self._heartbeat is not None else 0.0
        return failure(
            Code.TIMEOUT, why, Executed.UNKNOWN, still_running=still_running, silence=silence
        )

    def expire(self) -> None:
        """Cancel the body."""
        self.is_over = self._has_expired = True
        if self._task is not None:
            self._task.cancel()

    async def __aenter__(self) -> "RunTimeout":
        self._task = task = asyncio.current_task()
        assert task is not None
        self._cancels = task.cancelling()
        self._heard_at = time.monotonic()
        self._timers.add(self, self._heard_at + self._seconds)
        if self._heartbeat is not None:
            self._look(self._heartbeat + self._slack)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # what it refers to can be freed, although `RunTimers` may keep it for a while
        task, self._task, self._on_silence = self._task, None, None
        if self._timer is not None:
            self._timer.cancel()
        if not self.is_over:
            self.is_over = True
            self._timers.over()
        if self._has_expired and task is not None:
            # as in asyncio.timeout: a task that was cancelled by others too stays cancelled
            is_own = task.uncancel() <= self._cancels
            if is_own and kind is asyncio.CancelledError:
                raise TimeoutError from error

    def _look(self, patience: float) -> None:
        if self.is_over:
            return  # its timeout already ends it
        left = self._heard_at + patience - time.monotonic()
        if left > 0:
            self._suspected = False
        elif self._suspected:
            self.fell_silent = True
            self._timers.over()
            self.expire()
            if self._on_silence is not None:
                self._on_silence()
            return
        else:
            self._suspected, left = True, _SECOND_LOOK_SECONDS
        self._timer = asyncio.get_running_loop().call_later(left, self._look, patience)

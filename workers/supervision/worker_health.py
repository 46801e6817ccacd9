"""Decides from what a worker sends whether to keep, replace or kill it. No I/O."""

from dataclasses import dataclass
from enum import Enum

from toolpool.workers.supervision.supervisor_link import Frame, LoopTurned, MainTurned

_START_SECONDS = 90.0
_MAIN_TIMES = 2
_IDLE_TIMES = 3
"""Multiples of `stall_seconds` after which a worker that still runs is replaced."""


class Action(Enum):
    """What to do about a worker: kill it, or start a successor and let the worker leave."""

    END = "end"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class HealthDecision:
    """What to do, and the reason for the log."""

    action: Action
    reason: str


class WorkerHealth:
    """The state of a worker, from the frames it sends. Times are on the monotonic clock.

    A worker is frozen if neither loop sends anything for `stall_seconds`. If only the event loop is
    silent, the worker's own watchdog has another `loop_seconds` to act.
    """

    def __init__(
        self,
        *,
        started_at: float,
        stall_seconds: float,
        loop_seconds: float = 10.0,
        knows_depths: bool = True,
    ) -> None:
        self._stall_seconds = stall_seconds
        self._loop_seconds = loop_seconds
        self._knows_depths = knows_depths
        self._loop_at = self._main_at = started_at + _START_SECONDS - stall_seconds
        self._looked_at = started_at
        self._loop_reported = self._main_reported = False
        self._consumed = -1
        self._idle_since: float | None = None
        self._worn_out = False
        self.consumes = self.is_leased = False
        self.free: dict[str, int] = {}
        """Free slots by queue, from the last frame."""

    @property
    def is_ready(self) -> bool:
        """Whether it has started to take messages."""
        return self._main_reported

    def fault(self, now: float) -> str:
        """Which of its loops does not turn; empty if both turn, or while the worker starts."""
        loop_silent = now - self._loop_at
        if loop_silent > self._stall_seconds:
            return f"its event loop has not turned for {loop_silent:.0f} s"
        silence = self._main_silence(now)
        return silence.reason if silence is not None else ""

    def receive(self, frame: Frame, now: float) -> None:
        """Process a frame from the worker."""
        if isinstance(frame, LoopTurned):
            self._loop_at, self._loop_reported = now, True
            self.free, self._worn_out = frame.free, frame.worn_out
            self.is_leased = frame.leased
            if frame.consumed != self._consumed:
                self._consumed, self._idle_since = frame.consumed, None
        elif isinstance(frame, MainTurned):
            self._main_at, self._main_reported = now, True
            self.consumes = frame.consumes

    def judge(
        self, depths: dict[str, int] | None, now: float, *, is_leaving: bool = False
    ) -> HealthDecision | None:
        """What to do; None if the worker is healthy.

        `depths` is how many messages wait in each queue; None if the server does not answer.
        """
        if now - self._looked_at > self._stall_seconds:
            self._forgive(now - self._looked_at)  # this process or the machine was suspended
        self._looked_at = now
        if silence := self._silence(now):
            return HealthDecision(Action.END, silence)
        if is_leaving or not self._loop_reported:
            return None
        if self._worn_out:
            return HealthDecision(Action.REPLACE, "half its slots of a kind are stuck")
        if depths is None and self._knows_depths:
            self._main_at = max(self._main_at, now - self._stall_seconds)
            self._idle_since = None
            return None
        return self._main_silence(now) or self._idleness(depths or {}, now)

    def _silence(self, now: float) -> str | None:
        loop_silent, main_silent = now - self._loop_at, now - self._main_at
        if min(loop_silent, main_silent) > self._stall_seconds:
            return f"it has sent nothing for {min(loop_silent, main_silent):.0f} s"
        if loop_silent > self._stall_seconds + self._loop_seconds:
            return f"its event loop has not turned for {loop_silent:.0f} s"
        return None

    def _main_silence(self, now: float) -> HealthDecision | None:
        if not self._main_reported and not self._knows_depths:
            return None
        silent = now - self._main_at
        if silent <= self._stall_seconds * _MAIN_TIMES:
            return None
        return HealthDecision(Action.REPLACE, f"it has not looked at its queues for {silent:.0f} s")

    def _idleness(self, depths: dict[str, int], now: float) -> HealthDecision | None:
        waits = any(depths.get(queue, 0) and free for queue, free in self.free.items())
        if not waits or not self._main_reported:
            self._idle_since = None
            return None
        if self._idle_since is None:
            self._idle_since = now
        idle = now - self._idle_since
        if idle <= self._stall_seconds * _IDLE_TIMES:
            return None
        return HealthDecision(
            Action.REPLACE, f"it took no message for {idle:.0f} s with slots free"
        )

    def _forgive(self, seconds: float) -> None:
        self._loop_at += seconds
        self._main_at += seconds
        if self._idle_since is not None:
            self._idle_since += seconds

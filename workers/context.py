"""What a running tool may know and say about its own call."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

log = logging.getLogger("toolpool.progress")

_PROGRESS_SECONDS = 0.25

ReportProgress = Callable[[float, float | None, str | None], None]


class ProgressGate:
    """Lets one report through every quarter of a second, and the one that says it is all done."""

    def __init__(self, send: ReportProgress) -> None:
        self._send = send
        self._open_at = 0.0

    def __call__(self, done: float, total: float | None, message: str | None) -> None:
        """Report, or drop the report. Never raises."""
        now = time.monotonic()
        if now < self._open_at and done != total:
            return
        self._open_at = now + _PROGRESS_SECONDS
        try:
            self._send(float(done), None if total is None else float(total), message)
        except Exception as error:  # noqa: BLE001 - progress never fails a tool
            log.info("progress_not_reported: %s", error)


def _discard(done: float, total: float | None, message: str | None) -> None:
    """Progress nobody listens to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """Injected into a tool's parameter of this type; invisible to the model.

    `context` is what the host gave to `dispatch(context=…)`. `ends_at` is on the monotonic clock.
    """

    call_id: str
    tool: str
    session: str | None = None
    attempt: int = 1
    context: Mapping[str, Any] = field(default_factory=dict)
    ends_at: float = float("inf")
    report_progress: ReportProgress = _discard
    is_cancelled: Callable[[], bool] = lambda: False

    @property
    def remaining(self) -> float:
        """Seconds until the call times out; never negative."""
        return max(0.0, self.ends_at - time.monotonic())

    @property
    def cancelled(self) -> bool:
        """True once the caller wants no result any more: a long tool should look and stop."""
        return self.is_cancelled()

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Tells the caller how far the tool is. Cheap, never blocks, never raises."""
        self.report_progress(done, total, message)

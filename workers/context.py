"""What a running tool may know and say about its own call."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

ReportProgress = Callable[[float, float | None, str | None], None]


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

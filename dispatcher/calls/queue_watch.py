"""Detects lost messages: later ones have started, or their queue is empty.

Celery on Redis loses messages, without a report, when a worker is killed under load.
"""

import time
from collections.abc import Collection, Mapping

from toolpool.contract.envelope import WorkerLease

_OVERDUE_SECONDS = 3.0
_OVERDUE_WITHOUT_LENGTHS_SECONDS = 10.0
"""After how many seconds a message is overdue if the broker does not report queue lengths."""
_MOST_DOUBLINGS = 10
_NEVER = float("inf")


class QueueWatch:
    """Judges messages by the surveys of the server; times are on the monotonic clock."""

    def __init__(self) -> None:
        self._empty_since: dict[str, float] = {}
        self._idle_since: dict[str, float] = {}
        """By queue: since when it has been empty while a worker was idle."""
        self._started_up_to: dict[str, float] = {}
        """By queue: when the last message with a started call was sent."""

    def forget(self) -> None:
        """Forget all observations: they no longer count."""
        self._empty_since.clear()
        self._idle_since.clear()

    def started(self, queue: str, published_at: float) -> None:
        """Record that a call, whose message was sent at `published_at`, has started."""
        known = self._started_up_to.get(queue, 0.0)
        self._started_up_to[queue] = max(known, published_at)

    def look(
        self, depths: Mapping[str, int], leases: Collection[WorkerLease], now: float | None = None
    ) -> None:
        """Record how many messages wait in each queue, and which of its workers are idle."""
        now = time.monotonic() if now is None else now
        for queue, depth in depths.items():
            is_idle = not depth and any(lease.free.get(queue, 0) for lease in leases)
            for since, holds in ((self._empty_since, not depth), (self._idle_since, is_idle)):
                if holds:
                    since.setdefault(queue, now)
                else:
                    since.pop(queue, None)

    def is_overdue(
        self, queue: str, *, published_at: float, republished: int, depths_known: bool, now: float
    ) -> bool:
        """Whether a message sent at `published_at`, and `republished` since, may be lost.

        The wait doubles with each republication, except while the queue is empty and a worker is
        idle: then the message is certainly lost, and it holds back other calls. `depths_known`: the
        broker reports queue lengths.
        """
        if now - max(self._idle_since.get(queue, _NEVER), published_at) >= _OVERDUE_SECONDS:
            return True
        patience = _OVERDUE_SECONDS if depths_known else _OVERDUE_WITHOUT_LENGTHS_SECONDS
        if now - published_at < patience * 2 ** min(republished, _MOST_DOUBLINGS):
            return False
        if not depths_known:
            return True
        later = self._started_up_to.get(queue, 0.0) - published_at
        return max(later, now - self._empty_since.get(queue, now)) >= _OVERDUE_SECONDS

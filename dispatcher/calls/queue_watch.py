"""Which messages are lost: others sent later have started, or their queue is empty.

Celery on Redis loses messages when a worker is killed under load, and nobody says so.
"""

import time
from collections.abc import Collection, Mapping

from toolpool.contract.envelope import WorkerLease

_OVERDUE_SECONDS = 3.0
_OVERDUE_UNTOLD_SECONDS = 10.0
"""Overdue where the broker does not say how many messages wait."""
_MOST_DOUBLINGS = 10
_NEVER = float("inf")


class QueueWatch:
    """Fed with every survey of the server; times are on the monotonic clock."""

    def __init__(self) -> None:
        self._empty_since: dict[str, float] = {}
        self._idle_since: dict[str, float] = {}
        """Since when a queue was empty and a worker of it had nothing to do."""
        self._started_up_to: dict[str, float] = {}
        """When the last message was sent of which a call has started."""

    def forget(self) -> None:
        """What was seen before says nothing about now."""
        self._empty_since.clear()
        self._idle_since.clear()

    def started(self, queue: str, published_at: float) -> None:
        """A call has started whose message was sent at that time."""
        known = self._started_up_to.get(queue, 0.0)
        self._started_up_to[queue] = max(known, published_at)

    def look(
        self, depths: Mapping[str, int], leases: Collection[WorkerLease], now: float | None = None
    ) -> None:
        """Note how many messages wait in each queue, and what its workers have free."""
        now = time.monotonic() if now is None else now
        for queue, depth in depths.items():
            is_idle = not depth and any(lease.free.get(queue, 0) for lease in leases)
            for since, holds in ((self._empty_since, not depth), (self._idle_since, is_idle)):
                if holds:
                    since.setdefault(queue, now)
                else:
                    since.pop(queue, None)

    def is_overdue(
        self, queue: str, *, published_at: float, republished: int, told: bool, now: float
    ) -> bool:
        """Whether a message that was sent at that time, and `republished` since, may be lost.

        Each time it was sent again it is waited for twice as long, but not where the queue is empty
        and a worker has nothing to do: then it can only be lost, and keeps others from being sent.
        `told`: the broker says how many messages wait.
        """
        if now - max(self._idle_since.get(queue, _NEVER), published_at) >= _OVERDUE_SECONDS:
            return True
        patience = _OVERDUE_SECONDS if told else _OVERDUE_UNTOLD_SECONDS
        if now - published_at < patience * 2 ** min(republished, _MOST_DOUBLINGS):
            return False
        if not told:
            return True
        later = self._started_up_to.get(queue, 0.0) - published_at
        return max(later, now - self._empty_since.get(queue, now)) >= _OVERDUE_SECONDS

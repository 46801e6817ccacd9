"""Detects dead workers: their leases were not renewed although the server was reachable.

A lease shows that its worker lives and reaches the server. A lapsed lease says something about the
worker only while the server is known to answer. `Recovery` acts on it.

A dead worker is known earlier: its kernel closes its connections, and the server counts no
subscriber to its liveness channel any more. A living worker whose channel closed renews its lease
at once. So both together mean that it is dead, or cut off from the server.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from toolpool.contract.envelope import WorkerLease

_FORGOTTEN_SECONDS = 3600.0
_CLOSED_SECONDS = 0.9
"""How long a worker has to renew its lease after its channel closed: it does so every 0.6 s."""
_NEVER = float("inf")


@dataclass(slots=True)
class _Seen:
    beat: int
    at: float
    has_ended: bool
    ttl: float
    stall: float
    closed_at: float = _NEVER
    """Since when nobody is subscribed to its liveness channel, without a renewal."""


class LostWorkers:
    """Judges leases by the surveys of the server; times are on the monotonic clock.

    `lease_ttl` is how long a lease stays valid without renewal, in seconds. A worker whose lease
    says that it stays valid for longer is given that time. `stall` is after how many seconds a
    worker that stands still is ended, where its lease does not say.
    """

    def __init__(self, *, lease_ttl: float, stall: float = 0.0) -> None:
        self._lease_ttl = lease_ttl
        self._stall = stall
        self._longest_gap = lease_ttl / 2
        self._looked_at = -_NEVER
        self._seen: dict[str, _Seen] = {}
        self.since = _NEVER
        """Since when the server has answered without a gap."""

    def interrupted(self) -> None:
        """Record that the server did not answer: earlier observations no longer count."""
        self.since = _NEVER

    def look(
        self,
        leases: Iterable[WorkerLease],
        now: float,
        *,
        clock_jumped: bool,
        subscribed: Mapping[str, int] | None = None,
    ) -> None:
        """Record one survey, with the subscribers to the liveness channel of each worker.

        A late survey counts as a gap: the server, or this process, stood still.
        """
        if self.since == _NEVER or clock_jumped or now - self._looked_at > self._longest_gap:
            self.since = now
        self._looked_at = now
        for lease in leases:
            seen = self._seen.get(lease.id)
            # Workers of older versions do not count their heartbeats.
            if seen is None or seen.beat != lease.beat or not lease.beat or lease.ended:
                seen = self._seen[lease.id] = _Seen(
                    lease.beat, now, lease.ended, lease.ttl, lease.stall
                )
            is_closed = lease.subscribed and (subscribed or {}).get(lease.id) == 0
            seen.closed_at = min(seen.closed_at, now) if is_closed else _NEVER
        for worker in [w for w, seen in self._seen.items() if now - seen.at > _FORGOTTEN_SECONDS]:
            del self._seen[worker]

    def longest_stall(self, worker: str) -> float:
        """After how many seconds a worker that stands still is ended, by its own settings."""
        seen = self._seen.get(worker)
        return max(self._stall, seen.stall if seen is not None else 0.0)

    def is_lost(
        self,
        worker: str,
        *,
        known_since: float,
        patience: float,
        now: float,
        closed_patience: float = _NEVER,
    ) -> bool:
        """Whether a worker known at `known_since` is dead, and has been for `patience` seconds.

        A worker that announced its end, through its supervisor, is dead at once. One whose liveness
        channel closed is dead after 0.9 s and `closed_patience` without a renewal, if it renewed
        its lease since the last gap: else it may be subscribed at another server.
        """
        seen = self._seen.get(worker)
        if seen is not None and seen.has_ended:
            return True
        if (
            seen is not None
            and seen.at > self.since
            and now - seen.closed_at > _CLOSED_SECONDS + closed_patience
        ):
            return True
        since = max(self.since, known_since, seen.at if seen is not None else 0.0)
        ttl = max(self._lease_ttl, seen.ttl if seen is not None else 0.0)
        return now - since > ttl + patience

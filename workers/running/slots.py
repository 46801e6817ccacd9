"""The slots of a worker: how many calls of each kind it may run, and which do not end."""

import time
from collections import Counter
from collections.abc import Mapping

from toolpool.contract.spec import RunIn
from toolpool.workers.running.claim_ahead import ClaimAhead
from toolpool.workers.running.claimed_calls import ClaimedCalls

_STUCK_SECONDS = 3.0
"""What still runs this long after it was told to stop is not going to end soon."""


class Slots:
    """Counts of each kind. The lease's thread reads them as well."""

    def __init__(self, counts: Mapping[RunIn, int]) -> None:
        self.counts: Mapping[RunIn, int] = dict(counts)
        self._is_closed = False
        self._free = dict(counts)
        """Less than 0 where calls are claimed ahead."""
        self._ahead = ClaimAhead()
        self._told: set[ClaimedCalls] = set()
        """What was told to stop, or answered, and still takes its slot."""

    def free(self) -> dict[RunIn, int]:
        """Slots for calls that could be claimed now."""
        return {k: 0 if self._is_closed else max(0, free) for k, free in self._free.items()}

    def close(self) -> None:
        """Nothing more is claimed."""
        self._is_closed = True

    def claimable(self, kind: RunIn) -> int:
        """Calls that a slot is free for; those for child processes wait there for a child."""
        ahead = self._ahead.room(self.counts[kind]) if kind is RunIn.PROCESS else 0
        return self._free[kind] + ahead

    def take(self, kind: RunIn, count: int) -> None:
        """So many calls are being claimed."""
        self._free[kind] -= count

    def give_back(self, kind: RunIn) -> None:
        """A call that was being claimed is not run."""
        self._free[kind] += 1

    def claimed(self, seconds: float) -> None:
        """A claim was answered after so long."""
        self._ahead.claimed(seconds)

    def tell(self, running: ClaimedCalls) -> None:
        """A call was told to stop, or answered though it runs."""
        if running.told_at is None:
            running.told_at = time.monotonic()
            self._told.add(running)

    def ended(self, running: ClaimedCalls) -> None:
        """Nothing of a call runs any more."""
        self._told.discard(running)
        if running.begun_at is not None and running.run_in is RunIn.PROCESS:
            self._ahead.ran(time.monotonic() - running.begun_at)
        self._free[running.run_in] += 1

    @property
    def stuck(self) -> int:
        """Slots held by what does not end, though it was told to."""
        return sum(self._stuck().values())

    @property
    def are_worn_out(self) -> bool:
        """Whether half the slots of a kind are held by what does not end."""
        return any(count * 2 >= self.counts[kind] for kind, count in self._stuck().items())

    def _stuck(self) -> Counter[RunIn]:
        long_ago = time.monotonic() - _STUCK_SECONDS
        told = list(self._told)
        return Counter(r.run_in for r in told if r.told_at is not None and r.told_at < long_ago)

"""The slots of a worker: how many calls of each kind run, and which do not stop.

A claim takes a round trip to the server. If claims take longer than runs, child processes would be
idle most of the time, so calls are claimed before a child is free for them. A call claimed ahead
waits about as long as a claim takes, and has not begun.

A claim also costs more than a short run. So if runs are short, several calls are claimed at once,
if all of them may run twice: nobody can tell whether a dead worker had begun what it had claimed.
"""

import math
import time
from collections import Counter
from collections.abc import Mapping

from toolpool.contract.spec import RunIn
from toolpool.workers.running.claimed_call import ClaimedCall

_STUCK_SECONDS = 3.0
"""A call that still runs this many seconds after it was told to stop counts as stuck."""


class Slots:
    """Counts slots by kind. The lease's thread reads them too."""

    def __init__(self, counts: Mapping[RunIn, int]) -> None:
        self.counts: Mapping[RunIn, int] = dict(counts)
        self._is_closed = False
        self._free = dict(counts)
        """Free slots by kind; negative if calls are claimed ahead."""
        self._ahead = ClaimAhead()
        self._stopping: set[ClaimedCall] = set()
        """Calls that were told to stop, or answered, and still occupy a slot."""

    def free(self) -> dict[RunIn, int]:
        """Free slots by kind, for new claims."""
        return {k: 0 if self._is_closed else max(0, free) for k, free in self._free.items()}

    def close(self) -> None:
        """Stop further claims."""
        self._is_closed = True

    def claimable(self, kind: RunIn, *, ahead: bool = True, rerunnable: bool = False) -> int:
        """How many calls to claim; `ahead`: calls for child processes may wait for a free child.

        `rerunnable`: they may all run twice.
        """
        free = self._free[kind]
        if not ahead or kind is not RunIn.PROCESS:
            return free
        slots = self.counts[kind]
        room = self._ahead.room(slots)
        if rerunnable and (many := self._ahead.room_of_short(slots)) > room:
            left = free + many
            return left if free > 0 or left * 2 >= many else 0  # else a claim of many comes soon
        return free + room

    def take(self, kind: RunIn, count: int) -> None:
        """Occupy slots for calls that are being claimed."""
        self._free[kind] -= count

    def give_back(self, kind: RunIn) -> None:
        """Free the slot of a call that was being claimed and is not run."""
        self._free[kind] += 1

    def claimed(self, seconds: float) -> None:
        """Record the duration of a claim."""
        self._ahead.claimed(seconds)

    def runs(self, seconds: float) -> None:
        """Record how long a run in a child process takes, which has not ended."""
        self._ahead.runs(seconds)

    def mark_stopping(self, running: ClaimedCall) -> None:
        """Record that a call was told to stop, or was answered while it runs."""
        if running.stop_requested_at is None:
            running.stop_requested_at = time.monotonic()
            self._stopping.add(running)

    def ended(self, running: ClaimedCall) -> None:
        """Free the slot of a call that has ended."""
        self._stopping.discard(running)
        if running.begun_at is not None and running.run_in is RunIn.PROCESS:
            self._ahead.ran(time.monotonic() - running.begun_at)
        self._free[running.run_in] += 1

    @property
    def ahead(self) -> int:
        """How many calls for child processes are claimed beyond the slots."""
        return -self._free.get(RunIn.PROCESS, 0)

    @property
    def are_busy(self) -> bool:
        """Whether any slot is occupied."""
        return any(self._free[kind] < count for kind, count in self.counts.items())

    @property
    def stuck(self) -> int:
        """The number of slots held by stuck calls."""
        return sum(self._stuck().values())

    @property
    def are_worn_out(self) -> bool:
        """Whether stuck calls hold half the slots of a kind."""
        return any(count * 2 >= self.counts[kind] for kind, count in self._stuck().items())

    def _stuck(self) -> Counter[RunIn]:
        long_ago = time.monotonic() - _STUCK_SECONDS
        stopping = list(self._stopping)
        return Counter(
            r.run_in
            for r in stopping
            if r.stop_requested_at is not None and r.stop_requested_at < long_ago
        )


_SLOW_SECONDS = 0.02
"""At latencies below this, one call per child is claimed, so that none waits for a slow run."""
_LONGEST_SECONDS = 1.0
_AT_MOST = 64
_MOMENT_SECONDS = 0.01
_LEAST_RUN_SECONDS = 0.0001
_LEARN = 0.2


class ClaimAhead:
    """Measures how long claims and runs take, in seconds."""

    def __init__(self) -> None:
        self._claim_seconds = 0.0
        self._run_seconds: float | None = None
        self._long_run_seconds = math.inf
        """Rises at once to the duration of a longer run, and falls slowly."""

    def claimed(self, seconds: float) -> None:
        """Record the duration of a claim."""
        seconds = min(seconds, _LONGEST_SECONDS)  # an outage says nothing about the link
        self._claim_seconds += _LEARN * (seconds - self._claim_seconds)

    def ran(self, seconds: float) -> None:
        """Record the duration of a run."""
        known = seconds if self._run_seconds is None else self._run_seconds
        self._run_seconds = known + _LEARN * (seconds - known)
        longest = seconds if self._long_run_seconds == math.inf else self._long_run_seconds
        self._long_run_seconds = max(seconds, longest + _LEARN * (seconds - longest))

    def runs(self, seconds: float) -> None:
        """Record how long a run takes that has not ended."""
        if self._long_run_seconds < seconds:
            self._long_run_seconds = seconds

    def room(self, slots: int) -> int:
        """How many calls `slots` children begin during one claim."""
        if self._run_seconds is None:
            return 0
        begun = slots * self._claim_seconds / max(self._run_seconds, _LEAST_RUN_SECONDS)
        return min(int(begun), slots if self._claim_seconds < _SLOW_SECONDS else _AT_MOST)

    def room_of_short(self, slots: int) -> int:
        """How many calls `slots` children run in a moment that makes no difference to a caller."""
        run_seconds = max(self._long_run_seconds, _LEAST_RUN_SECONDS)
        return min(int(slots * _MOMENT_SECONDS / run_seconds), _AT_MOST)

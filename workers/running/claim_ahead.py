"""How many calls to claim before a child process is free for them.

A claim takes a round trip to the server. If that takes longer than the runs, children would be idle
most of the time. A call claimed ahead waits about as long as a claim takes, and has not begun.
"""

_SLOW_SECONDS = 0.02
"""Below this latency one call per child is enough: a slow run then delays no other call."""
_LONGEST_SECONDS = 1.0
_AT_MOST = 64
_LEAST_RUN_SECONDS = 0.0001
_LEARN = 0.2


class ClaimAhead:
    """Measures how long claims and runs take, in seconds."""

    def __init__(self) -> None:
        self._claim_seconds = 0.0
        self._run_seconds: float | None = None

    def claimed(self, seconds: float) -> None:
        """Record the duration of a claim."""
        seconds = min(seconds, _LONGEST_SECONDS)  # an outage says nothing about the link
        self._claim_seconds += _LEARN * (seconds - self._claim_seconds)

    def ran(self, seconds: float) -> None:
        """Record the duration of a run."""
        known = seconds if self._run_seconds is None else self._run_seconds
        self._run_seconds = known + _LEARN * (seconds - known)

    def room(self, slots: int) -> int:
        """How many calls `slots` children begin during one claim."""
        if self._run_seconds is None:
            return 0
        begun = slots * self._claim_seconds / max(self._run_seconds, _LEAST_RUN_SECONDS)
        return min(int(begun), slots if self._claim_seconds < _SLOW_SECONDS else _AT_MOST)

"""How many calls to claim before there is a child process for them.

A claim takes a round trip to the server. Where that is longer than the runs, children would idle
for most of the time. What is claimed ahead waits for about as long as a claim takes, and has not
begun.
"""

_SLOW_SECONDS = 0.02
"""Where answers are quicker, one call for each child is enough: a run that takes longer than those
before holds up no more than that."""
_LONGEST_SECONDS = 1.0
_AT_MOST = 64
_LEAST_RUN_SECONDS = 0.0001
_LEARN = 0.2


class ClaimAhead:
    """Learns how long claims and runs take, in seconds."""

    def __init__(self) -> None:
        self._claim_seconds = 0.0
        self._run_seconds: float | None = None

    def claimed(self, seconds: float) -> None:
        """A claim was answered after so long."""
        seconds = min(seconds, _LONGEST_SECONDS)  # an outage says nothing about the link
        self._claim_seconds += _LEARN * (seconds - self._claim_seconds)

    def ran(self, seconds: float) -> None:
        """A call ran for so long."""
        known = seconds if self._run_seconds is None else self._run_seconds
        self._run_seconds = known + _LEARN * (seconds - known)

    def room(self, slots: int) -> int:
        """How many calls `slots` children begin while one claim is answered."""
        if self._run_seconds is None:
            return 0
        begun = slots * self._claim_seconds / max(self._run_seconds, _LEAST_RUN_SECONDS)
        return min(int(begun), slots if self._claim_seconds < _SLOW_SECONDS else _AT_MOST)

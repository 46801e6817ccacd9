"""Learns how many calls a message of a queue should hold from the calls that ran."""

from toolpool.contract.outcome import Outcome

_BATCH_SECONDS = 0.1
_LEARN = 0.1


class BatchSizing:
    """How many calls a message should hold: about `_BATCH_SECONDS` of work for one worker.

    Calls are claimed one by one, but the worker that takes a batch keeps it. Batches of slow calls
    must be small, or other workers idle; batches of fast calls large, or messages cost more than
    the calls.
    """

    def __init__(self, *, largest: int, first: int) -> None:
        self._largest = largest
        self._first = min(first, largest)
        self._run_seconds: float | None = None

    def note(self, outcome: Outcome) -> None:
        """Learn from the outcome of a call that a worker ran."""
        if outcome.worker:
            known = self._run_seconds
            new = outcome.duration
            self._run_seconds = new if known is None else known + _LEARN * (new - known)

    def batch_size(self, slots: int) -> int:
        """Return the batch size for workers with this many slots."""
        if self._run_seconds is None:
            return self._first
        size = int(_BATCH_SECONDS * slots / max(self._run_seconds, 1e-6))
        return max(1, min(size, self._largest))

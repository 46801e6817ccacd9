"""Decides how many calls the next message of a queue carries. Does no I/O."""

from collections.abc import Sequence

from toolpool.contract.outcome import Outcome

_BATCHES_PER_WORKER = 2


def next_batch(
    *, slots: Sequence[int], waiting: int, unstarted: int, largest: int, left: int | None = None
) -> int:
    """Return how many of `waiting` calls to send now; 0 to collect more first.

    `slots` are the slots of each live worker, `unstarted` the calls that were sent and not started,
    `largest` the size of a full batch, `left` what the tool's concurrency cap leaves.

    While workers have calls queued that they cannot start yet, sending a few more starts nothing
    sooner and costs a message. Such calls wait for a full batch, or until as many wait as are
    queued.
    """
    batch = largest
    if unstarted < sum(slots):  # some slots are idle: each worker gets its share
        batch = min(batch, max(1, -(-(waiting + unstarted) // len(slots))))
    room = sum(slots) + _BATCHES_PER_WORKER * batch * max(len(slots), 1) - unstarted
    if left is not None:
        room = min(room, left)
    elif room < min(waiting, batch):
        return 0
    if room <= 0 or waiting < min(batch, unstarted - sum(slots)):
        return 0
    return min(room, batch)


_BATCH_SECONDS = 0.1
_LEARN = 0.1


class BatchSizing:
    """How many calls a message should hold: about `_BATCH_SECONDS` of work for one worker.

    Calls are claimed one by one, but the worker that takes a batch keeps it. Batches of slow calls
    must be small, or other workers stay idle; batches of fast calls must be large, or messages cost
    more than the calls.
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

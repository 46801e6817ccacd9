"""Decides how many calls leave in the next message of a queue. Pure."""

from collections.abc import Sequence

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
    if unstarted < sum(slots):  # some slots are idle: each gets its share
        batch = min(batch, max(1, -(-(waiting + unstarted) // len(slots))))
    room = sum(slots) + _BATCHES_PER_WORKER * batch * max(len(slots), 1) - unstarted
    if left is not None:
        room = min(room, left)
    elif room < min(waiting, batch):
        return 0
    if room <= 0 or waiting < min(batch, unstarted - sum(slots)):
        return 0
    return min(room, batch)

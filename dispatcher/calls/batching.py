"""How many calls leave in the next message of a queue: a decision, without anything it acts on."""

from collections.abc import Sequence

_BATCHES_PER_WORKER = 2


def next_batch(
    *, slots: Sequence[int], waiting: int, unstarted: int, largest: int, left: int | None = None
) -> int:
    """How many of `waiting` calls to send now; 0 to gather a little more first.

    `slots` are those of each living worker, `unstarted` the calls that were sent and that nobody
    has started, `largest` the size of a full batch, `left` what a cap of the tool's leaves.

    While workers have calls ahead of them that they cannot start yet, to send a few more starts
    nothing sooner and costs a message, so those wait for company: for a full batch, or for as many
    as are ahead.
    """
    batch = largest
    if unstarted < sum(slots):  # some are idle: each is to have its share
        batch = min(batch, max(1, -(-(waiting + unstarted) // len(slots))))
    room = sum(slots) + _BATCHES_PER_WORKER * batch * max(len(slots), 1) - unstarted
    if left is not None:
        room = min(room, left)
    elif room < min(waiting, batch):
        return 0
    if room <= 0 or waiting < min(batch, unstarted - sum(slots)):
        return 0
    return min(room, batch)

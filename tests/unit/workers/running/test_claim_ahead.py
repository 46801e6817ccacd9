"""How many calls a worker claims before it can start them."""

import pytest

from toolpool.workers.running.slots import ClaimAhead


@pytest.mark.parametrize(
    ("claim", "run", "slots", "room"),
    [
        (0.002, 0.01, 8, 1),  # a near server: a run takes longer than a claim
        (0.002, 0.0001, 8, 8),  # and where it does not, one for each child
        (0.1, 0.01, 2, 20),  # what two children begin while a claim is answered
        (0.1, 1.0, 2, 0),  # slow tools: a claim takes no time beside a run
        (0.1, 0.0, 2, 64),
        (0.5, 0.001, 16, 64),  # and never more than some
    ],
)
def test_what_is_claimed_ahead_begins_within_a_claim_s_time(
    claim: float, run: float, slots: int, room: int
) -> None:
    ahead = ClaimAhead()
    for _ in range(60):
        ahead.claimed(claim)
        ahead.ran(run)
    assert ahead.room(slots) == pytest.approx(room, abs=1)


def test_nothing_is_claimed_ahead_of_what_is_not_known() -> None:
    ahead = ClaimAhead()
    ahead.claimed(1.0)
    assert ahead.room(16) == 0

"""How many calls a worker claims before it can start them."""

import pytest

from toolpool.contract.spec import RunIn
from toolpool.workers.running.slots import ClaimAhead, Slots


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


def short_runs() -> Slots:
    """The slots of two children whose claims take as long as ten runs."""
    slots = Slots({RunIn.PROCESS: 2})
    for _ in range(60):
        slots.claimed(0.002)
    ahead = slots._ahead
    for _ in range(60):
        ahead.ran(0.001)
    return slots


def test_calls_of_short_runs_are_claimed_many_at_a_time() -> None:
    slots = short_runs()
    many = slots.claimable(RunIn.PROCESS, rerunnable=True)
    assert many == pytest.approx(22, abs=1)
    slots.take(RunIn.PROCESS, many)
    assert slots.claimable(RunIn.PROCESS, rerunnable=True) == 0
    for _ in range(many // 2):
        slots.give_back(RunIn.PROCESS)
    assert slots.claimable(RunIn.PROCESS, rerunnable=True) == pytest.approx(many / 2, abs=1)


def test_a_call_that_may_not_run_twice_is_not_claimed_with_many_others() -> None:
    """If its worker died, nobody could tell whether it had begun."""
    assert short_runs().claimable(RunIn.PROCESS) == pytest.approx(4, abs=1)


def test_one_long_run_ends_claims_of_many() -> None:
    slots = short_runs()
    slots._ahead.ran(0.5)
    assert slots.claimable(RunIn.PROCESS, rerunnable=True) <= 2


def test_a_run_that_goes_on_ends_claims_of_many_and_does_not_count_twice() -> None:
    slots = short_runs()
    for _ in range(20):
        slots.runs(5.0)
    assert slots.claimable(RunIn.PROCESS, rerunnable=True) == slots.claimable(RunIn.PROCESS)
    assert slots.claimable(RunIn.PROCESS) == pytest.approx(4, abs=1)

"""Fleet time, and how a jump of the server's clock is told from a slow answer."""

import pytest

from toolpool.contract.clock import ServerClock, elapsed


def read(clock: ServerClock, at: float, asked: float, answered: float, state: str = "r") -> bool:
    return clock.read(at, state, asked, answered)


def test_the_first_reading_is_taken_as_it_is() -> None:
    clock = ServerClock()
    now = elapsed()
    assert clock.agreement() == ("", "", "")
    assert not read(clock, 5_000_000.0, now, now)
    assert 0.0 <= clock.time() - 5_000_000.0 < 5.0
    assert clock.agreement()[1:] == ("", "")


@pytest.mark.parametrize(
    ("reading", "asked", "answered", "jumped"),
    [
        (1010.0, 10.0, 10.0, False),
        (1010.0, 10.0, 17.0, False),  # the answer came late
        (1017.0, 10.0, 17.0, False),  # or the server stood still before it
        (1010.9, 10.0, 10.0, False),  # clocks go a little apart
        (1011.5, 10.0, 10.0, True),
    ],
)
def test_what_may_have_passed_here_is_taken(
    reading: float, asked: float, answered: float, jumped: bool
) -> None:
    clock = ServerClock()
    read(clock, 1000.0, 0.0, 0.0)
    assert read(clock, reading, asked, answered) is jumped
    assert not clock.is_disputed


@pytest.mark.parametrize(
    ("jump", "state", "corrected"),
    [
        (3600.0, "r", "r -3600000"),
        (-3600.0, "r", "r 3600000"),
        (-60.0, "r 3600000 999000", "r 3660000"),
        (3600.0, "r 0 1000000", "r -3600000"),  # agreed before the jump
    ],
)
def test_a_jump_is_corrected_and_not_followed(jump: float, state: str, corrected: str) -> None:
    clock = ServerClock()
    now = elapsed()
    read(clock, 1000.0, now, now, state)
    assert read(clock, 1001.0 + jump, now + 1, now + 1, state)
    assert clock.is_disputed
    assert clock.agreement()[1:] == (state, corrected)
    assert abs(clock.time() - 1000.0) < 1.0
    offset = corrected.split()[1]
    assert read(clock, 1001.0, now + 1, now + 1, f"r {offset} 1001000")
    assert not clock.is_disputed
    assert clock.agreement()[1:] == ("", "")


def test_a_jump_that_another_process_corrected_is_still_told() -> None:
    clock = ServerClock()
    read(clock, 1000.0, 0.0, 0.0, "r 0 1000000")
    assert read(clock, 1001.0, 1.0, 1.0, "r -3600000 1001000")
    assert not clock.is_disputed
    assert not read(clock, 1002.0, 2.0, 2.0, "r -3600000 1002000")


def test_a_process_that_was_suspended_follows_the_others() -> None:
    clock = ServerClock()
    now = elapsed()
    read(clock, 1000.0, now, now)
    assert read(clock, 1600.0, now + 1, now + 1, "r 0 1599000")
    assert not clock.is_disputed
    assert clock.time() > 1598.0


def test_fleet_time_that_is_behind_is_corrected_whoever_agreed() -> None:
    """A monotonic clock may have stood still, but is never fast."""
    clock = ServerClock()
    read(clock, 1000.0, 0.0, 0.0, "r 0 1000000")
    assert read(clock, 901.0, 1.0, 1.0, "r 0 900500")
    assert clock.agreement()[1:] == ("r 0 900500", "r 100000")


def test_a_jump_beyond_what_the_server_remembers_is_a_loss_of_data() -> None:
    clock = ServerClock(forgets_after=60.0)
    read(clock, 1000.0, 0.0, 0.0, "r 0 1000000")
    read(clock, 1101.0, 1.0, 1.0, "r 0 1000000")
    random, offset = clock.agreement()[2].split()
    assert (random != "r", offset) == (True, "-100000")


def test_what_cannot_be_corrected_is_followed() -> None:
    """A server that takes no writes."""
    clock = ServerClock()
    read(clock, 1000.0, 0.0, 0.0)
    for _ in range(3):
        assert read(clock, 4601.0, 1.0, 1.0)
        assert clock.is_disputed
    assert read(clock, 4601.0, 1.0, 1.0)
    assert not clock.is_disputed
    assert not read(clock, 4602.0, 2.0, 2.0)


def test_a_value_of_another_form_has_no_offset() -> None:
    clock = ServerClock()
    assert not read(clock, 1000.0, 0.0, 0.0, "a b c")
    assert not read(clock, 1001.0, 1.0, 1.0, "")

"""Fleet time, and how a jump of the server's clock is told from a slow answer."""

import pytest

from toolpool.contract.fleet_clock import FleetClock, elapsed
from toolpool.contract.signing import Keyring

KEYRING = Keyring.local()


def signed(state: str, keyring: Keyring = KEYRING, prefix: str = "") -> str:
    """A value of the epoch key with its offset signed."""
    random, offset, agreed = (*state.split(), *["0"] * 2)[: max(3, len(state.split()))]
    body = f"{prefix} {random} {offset} {agreed}".encode()
    signature = keyring.sign("clock", body)[: -len(body) - 1].decode()
    return f"{random} {offset} {agreed} version {signature}"


def read(clock: FleetClock, at: float, asked: float, answered: float, state: str = "r") -> bool:
    """Take a reading of fleet time, whose offset somebody with the key has set."""
    offset = float((*state.split(), "0")[1]) / 1000
    return clock.read(at - offset, signed(state), asked, answered)


def grown(clock: FleetClock) -> FleetClock:
    """As it is some seconds after its first reading."""
    clock._read_since -= 10.0
    return clock


def right(clock: FleetClock) -> str:
    """The random key and the offset that a clock asks for."""
    return " ".join(clock.agreement()[2].split()[:2])


def test_the_first_reading_is_taken_as_it_is() -> None:
    clock = FleetClock(KEYRING)
    now = elapsed()
    assert clock.agreement() == ("", "", "")
    assert not read(clock, 5_000_000.0, now, now)
    assert 0.0 <= clock.time() - 5_000_000.0 < 5.0
    assert clock.agreement()[1] == ""
    assert right(grown(clock)) == "r 0"


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
    clock = FleetClock(KEYRING)
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
    clock = FleetClock(KEYRING)
    now = elapsed()
    read(clock, 1000.0, now, now, state)
    assert read(clock, 1001.0 + jump, now + 1, now + 1, state)
    assert clock.is_disputed
    assert clock.agreement()[1] == signed(state)
    assert right(clock) == corrected
    assert abs(clock.time() - 1000.0) < 1.0
    offset = corrected.split()[1]
    assert read(clock, 1001.0, now + 1, now + 1, f"r {offset} 1001000")
    assert not clock.is_disputed
    assert clock.agreement()[1] == ""


def test_a_clock_jump_that_another_process_corrected_is_still_reported() -> None:
    clock = FleetClock(KEYRING)
    read(clock, 1000.0, 0.0, 0.0, "r 0 1000000")
    assert read(clock, 1001.0, 1.0, 1.0, "r -3600000 1001000")
    assert not clock.is_disputed
    assert not read(clock, 1002.0, 2.0, 2.0, "r -3600000 1002000")


def test_a_process_that_was_suspended_follows_the_others() -> None:
    clock = FleetClock(KEYRING)
    now = elapsed()
    read(clock, 1000.0, now, now)
    assert read(clock, 1600.0, now + 1, now + 1, "r 0 1599000")
    assert not clock.is_disputed
    assert clock.time() > 1598.0


def test_fleet_time_that_is_behind_is_corrected_regardless_of_votes() -> None:
    """A monotonic clock may have stood still, but is never fast."""
    clock = FleetClock(KEYRING)
    read(clock, 1000.0, 0.0, 0.0, "r 0 1000000")
    assert read(clock, 901.0, 1.0, 1.0, "r 0 900500")
    assert clock.agreement()[1] == signed("r 0 900500")
    assert right(clock) == "r 100000"


def test_a_jump_beyond_what_the_server_remembers_is_a_loss_of_data() -> None:
    clock = FleetClock(KEYRING, forgets_after=60.0)
    read(clock, 1000.0, 0.0, 0.0, "r 0 1000000")
    read(clock, 1101.0, 1.0, 1.0, "r 0 1000000")
    random, offset = right(clock).split()
    assert (random != "r", offset) == (True, "-100000")


@pytest.mark.parametrize("jump", [3600.0, -3600.0, 60.0])
def test_a_process_that_starts_behind_a_jump_waits_until_others_have_corrected_it(
    jump: float,
) -> None:
    clock = FleetClock(KEYRING)
    now = elapsed()
    assert not read(clock, 5000.0 + jump, now, now, "r 0 5000000")
    assert clock.is_doubtful
    assert clock.agreement() == ("", "", "")
    assert not read(clock, 5000.0, now, now, f"r {-jump * 1000:.0f} 5000000")
    assert not clock.is_doubtful
    assert abs(clock.time() - 5000.0) < 1.0


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_a_process_that_just_started_follows_a_correction_and_vouches_for_nothing(
    jump: float,
) -> None:
    """Also where nobody had agreed, as after a loss of data."""
    clock = FleetClock(KEYRING)
    now = elapsed()
    read(clock, 5000.0 + jump, now, now)
    assert clock.agreement() == ("", "", "")
    assert read(clock, 5001.0, now + 1, now + 1, f"r {-jump * 1000:.0f} 5001000")
    assert not clock.is_disputed
    assert abs(clock.time() - 5000.0) < 2.0


def test_a_process_that_starts_alone_long_after_the_others_takes_the_time_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FleetClock(KEYRING)
    now = elapsed()
    read(clock, 9000.0, now, now, "r 0 5000000")
    assert clock.is_doubtful
    monkeypatch.setattr("toolpool.contract.fleet_clock._PATIENCE_SECONDS", 0.0)
    read(clock, 9000.0, now, now, "r 0 5000000")
    assert not clock.is_doubtful
    assert abs(clock.time() - 9000.0) < 1.0


def test_what_cannot_be_corrected_is_followed() -> None:
    """A server that takes no writes."""
    clock = FleetClock(KEYRING)
    read(clock, 1000.0, 0.0, 0.0)
    for _ in range(3):
        assert read(clock, 4601.0, 1.0, 1.0)
        assert clock.is_disputed
    assert read(clock, 4601.0, 1.0, 1.0)
    assert not clock.is_disputed
    assert not read(clock, 4602.0, 2.0, 2.0)


@pytest.mark.parametrize(
    "state",
    [
        "r -3600000",
        "r -3600000 1000000 version",
        signed("r -3600000", Keyring(["a key of somebody else"])),
        signed("r -3600000", prefix="another"),
        signed("r -60000").replace("-60000", "-3600000"),
        signed("q -3600000").replace("q", "r"),
    ],
)
def test_an_unsigned_offset_is_not_followed_and_is_removed(state: str) -> None:
    fresh = FleetClock(KEYRING)
    now = elapsed()
    fresh.read(5000.0, state, now, now)
    assert abs(fresh.time() - 5000.0) < 1.0
    assert fresh.is_disputed
    assert fresh.agreement()[1] == state
    assert right(fresh) == "r 0"
    assert not fresh.read(5000.0, signed("r 0"), now, now)
    assert not fresh.is_disputed

    known = FleetClock(KEYRING)
    read(known, 5060.0, now, now, "r 60000")
    for _ in range(3):
        known.read(5001.0, state, now + 1, now + 1)
        assert known.is_disputed
        assert right(known) == "r 60000"
    known.read(5001.0, state, now + 1, now + 1)  # it cannot be undone
    assert not known.is_disputed
    assert abs(known.time() - 5060.0) < 1.0


def test_an_unsigned_creeping_offset_moves_no_process() -> None:
    clock = FleetClock(KEYRING)
    now = elapsed()
    read(clock, 5000.0, now, now)
    for step in range(1, 100):
        clock.read(5000.0, f"r {-step * 1000} 0 version x.y", now, now)
    assert abs(clock.time() - 5000.0) < 1.0


def test_a_signature_that_was_taken_away_is_put_back() -> None:
    clock = FleetClock(KEYRING)
    now = elapsed()
    read(clock, 5060.0, now, now, "r 60000")
    assert not clock.read(5000.0, "r 60000 5060000 version", now, now)
    assert not clock.is_disputed
    agreed, _, asked_for = grown(clock).agreement()
    assert signed(f"r 60000 {agreed}").endswith(asked_for.split()[2])


@pytest.mark.parametrize("agreed", [4_000_000, 8_599_000, 8_600_000])
def test_a_replayed_earlier_offset_moves_no_process(agreed: int) -> None:
    """It was signed an hour ago, or is said to have been agreed with just now."""
    clock = FleetClock(KEYRING)
    now = elapsed()
    read(clock, 5000.0, now, now)
    earlier = signed("r 3600000 4000000").replace("4000000", str(agreed))
    for _ in range(3):
        clock.read(5000.0, earlier, now, now)
        assert clock.is_disputed
        assert right(clock) == "r 0"
    clock.read(5000.0, earlier, now, now)  # it cannot be undone
    assert abs(clock.time() - 5000.0) < 1.0


def test_a_value_of_another_form_has_no_offset() -> None:
    clock = FleetClock(KEYRING)
    for state in ("a b c", "", "a 1e999", "a nan", "a 0x10", "a " + "9" * 400, "a 1 " + "9" * 400):
        assert not clock.read(1000.0, state, 0.0, 0.0)


def test_a_late_answer_does_not_replace_a_time_that_is_known_better() -> None:
    """The server may have read its clock at any time between request and answer."""
    clock = FleetClock(KEYRING)
    now = elapsed()
    read(clock, 1000.0, now, now + 0.002)
    exact = clock._offset
    read(clock, 1002.0, now + 2.0, now + 3.0)
    assert clock._offset == exact
    read(clock, 1004.001, now + 4.0, now + 4.003)
    assert clock._offset != exact


def test_a_late_answer_replaces_a_time_that_it_contradicts_or_that_is_old() -> None:
    clock = FleetClock(KEYRING)
    now = elapsed()
    read(clock, 1000.0, now, now)
    read(clock, 1002.3, now + 2.0, now + 2.2)
    assert clock._offset == pytest.approx(1000.2 - now, abs=0.001)
    read(clock, 1202.0, now + 202.0, now + 202.4)
    assert clock._offset == pytest.approx(999.8 - now, abs=0.001)

"""The server's clock, and how a jump of it is told from a slow answer."""

import time

import pytest

from toolpool.contract.clock import ServerClock


@pytest.mark.parametrize(
    ("reading", "asked_at", "answered_at", "jumped"),
    [
        (1010.0, 10.0, 10.0, False),
        (1010.0, 10.0, 17.0, False),  # the answer came late
        (1017.0, 10.0, 17.0, False),  # or the server stood still before it
        (1010.9, 10.0, 10.0, False),  # clocks go a little apart
        (1070.0, 10.0, 10.0, True),
        (950.0, 10.0, 10.0, True),
        (1410.0, 10.0, 17.0, True),
    ],
)
def test_a_jump_is_what_cannot_have_passed_here(
    reading: float, asked_at: float, answered_at: float, jumped: bool
) -> None:
    clock = ServerClock()
    assert not clock.read(1000.0, 0.0, 0.0)
    assert clock.read(reading, asked_at, answered_at) is jumped
    after = answered_at + 1.0
    assert not clock.read(reading + after - asked_at, after, after)


def test_the_time_is_the_server_s_whatever_this_host_s_clock_says() -> None:
    clock = ServerClock()
    now = time.monotonic()
    clock.read(5_000_000.0, now, now)
    assert 0.0 <= clock.time() - 5_000_000.0 < 5.0

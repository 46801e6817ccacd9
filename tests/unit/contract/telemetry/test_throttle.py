"""A flood of reports is capped, of each kind and in all, and what was held back is counted."""

from toolpool.contract.telemetry.throttle import Throttle


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def admitted(flood: Throttle, key: str, times: int) -> int:
    return sum(flood.admits(key) for _ in range(times))


def test_so_many_of_each_go_through_and_the_rest_is_counted() -> None:
    flood = Throttle(of_each=3, in_all=100, clock=Clock())
    assert admitted(flood, "a", 10) == 3
    assert admitted(flood, "b", 2) == 2
    assert flood.suppressed("a") == 7
    assert flood.suppressed("a") == 0
    assert flood.suppressed("b") == 0


def test_so_many_in_all_go_through() -> None:
    flood = Throttle(of_each=3, in_all=5, clock=Clock())
    assert sum(admitted(flood, key, 3) for key in "abcd") == 5
    assert flood.all_suppressed() == 7
    assert flood.all_suppressed() == 0


def test_room_comes_back_over_a_minute() -> None:
    clock = Clock()
    flood = Throttle(of_each=6, in_all=100, clock=clock)
    assert admitted(flood, "a", 20) == 6
    clock.now = 10.0
    assert admitted(flood, "a", 20) == 1
    clock.now = 3600.0
    assert admitted(flood, "a", 20) == 6


def test_what_one_cap_refuses_takes_nothing_of_the_other() -> None:
    flood = Throttle(of_each=1, in_all=2, clock=Clock())
    assert admitted(flood, "a", 50) == 1
    assert admitted(flood, "b", 50) == 1


def test_made_up_keys_take_no_memory_without_bound() -> None:
    flood = Throttle(of_each=1, in_all=1, clock=Clock())
    for number in range(5_000):
        flood.admits(number)
    assert len(flood._keys) <= 1_000
    assert len(flood._suppressed) <= 1_000

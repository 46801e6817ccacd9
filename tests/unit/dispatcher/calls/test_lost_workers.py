"""When a worker is gone: only what a server that answers could have shown says so (R8)."""

from collections.abc import Iterable

import msgspec
import pytest

from toolpool.contract.envelope import WorkerLease
from toolpool.dispatcher.calls.lost_workers import LostWorkers

GONE = 8.0


def lease(beat: int, *, ended: bool = False, subscribed: bool = False) -> WorkerLease:
    return WorkerLease(
        id="w", host="h", pid=1, version="1", started_at=0.0, slots={}, beat=beat, ended=ended,
        subscribed=subscribed,
    )  # fmt: skip


def watched(looks: Iterable[tuple[float, int | None]], **options: bool) -> LostWorkers:
    """A watch that was shown, at these times, the worker's beat (None: no lease)."""
    watch = LostWorkers(lease_ttl=GONE)
    for at, beat in looks:
        watch.look([] if beat is None else [lease(beat)], at, clock_jumped=False)
    return watch


def lost(
    watch: LostWorkers, now: float, *, known_since: float = 0.0, patience: float = 0.0
) -> bool:
    return watch.is_lost("w", known_since=known_since, patience=patience, now=now)


@pytest.mark.parametrize(
    ("looks", "is_lost"),
    [
        # seconds and beats, a look a second
        ([(t, t // 2 + 1) for t in range(20)], False),  # it is renewed
        ([(t, 1 if t < 3 else None) for t in range(12)], True),  # gone since 3
        ([(t, 1 if t < 3 else None) for t in range(8)], False),  # but not for long enough
        ([(t, 1) for t in range(12)], True),  # there, and never renewed: clocks may have jumped
        ([(t, None) for t in range(12)], True),  # never seen, as long as a lease lasts
        ([(0, 1), (1, 1), (30, None), (31, None)], False),  # nobody looked for a while
        ([(t, None) for t in range(4)], False),
    ],
)  # fmt: skip
def test_a_worker_is_gone_when_its_lease_could_have_been_renewed_and_was_not(
    looks: list[tuple[float, int | None]], is_lost: bool
) -> None:
    assert lost(watched(looks), looks[-1][0]) is is_lost


def test_a_worker_with_a_longer_lease_is_given_its_time() -> None:
    longer = msgspec.structs.replace(lease(1), ttl=3 * GONE)
    watch = LostWorkers(lease_ttl=GONE)
    for second in range(30):
        watch.look([longer] if second < 3 else [], second, clock_jumped=False)
        assert lost(watch, second) is (second > 3 * GONE)


def test_how_long_a_worker_may_stand_still_is_its_own_setting_too() -> None:
    """An exclusive call runs again only after its worker was ended."""
    watch = LostWorkers(lease_ttl=GONE, stall=10.0)
    assert watch.longest_stall("w") == 10.0
    watch.look([msgspec.structs.replace(lease(1), stall=60.0)], 0.0, clock_jumped=False)
    watch.look([], 30.0, clock_jumped=False)
    assert watch.longest_stall("w") == 60.0
    watch.look([msgspec.structs.replace(lease(2), stall=5.0)], 31.0, clock_jumped=False)
    assert watch.longest_stall("w") == 10.0


def test_an_outage_says_nothing_about_workers() -> None:
    """However long it took: a whole lease's time after it, the worker has to be seen."""
    watch = watched((t, t // 2 + 1) for t in range(10))
    watch.interrupted()
    for at in range(70, 78):
        watch.look([], at, clock_jumped=False)
        assert not lost(watch, at)
    watch.look([], 79, clock_jumped=False)
    assert lost(watch, 79)


def test_a_jump_of_the_server_s_clock_says_nothing_about_workers() -> None:
    watch = watched((t, t // 2 + 1) for t in range(10))
    watch.look([], 10, clock_jumped=True)
    for at in range(11, 18):
        watch.look([], at, clock_jumped=False)
        assert not lost(watch, at)


def test_what_may_not_run_again_waits_for_its_worker_to_come_back() -> None:
    watch = watched((t, t + 1 if t < 3 else None) for t in range(20))
    assert lost(watch, 19)
    assert not lost(watch, 19, patience=10.0)
    for at in range(20, 24):
        watch.look([], at, clock_jumped=False)
    assert lost(watch, 23, patience=10.0)


def test_a_call_that_came_later_waits_as_long() -> None:
    watch = watched((t, None) for t in range(20))
    assert not lost(watch, 19, known_since=15.0)


def test_a_worker_whose_end_was_seen_is_gone_at_once() -> None:
    watch = watched([(0, 1), (1, 1)])
    watch.look([lease(0, ended=True)], 2, clock_jumped=False)
    assert lost(watch, 2, patience=60.0)


def test_a_worker_of_an_older_version_lives_while_its_lease_is_there() -> None:
    watch = watched((t, 0) for t in range(30))
    assert not lost(watch, 29)


def closing(looks: Iterable[tuple[float, int, int | None]], **more: bool) -> LostWorkers:
    """A watch that was shown, at these times, the worker's beat and its channel's subscribers."""
    watch = LostWorkers(lease_ttl=GONE)
    for at, beat, count in looks:
        leases = [lease(beat, **{"subscribed": True, **more})]
        subscribed = {} if count is None else {"w": count}
        watch.look(leases, at, clock_jumped=False, subscribed=subscribed)
    return watch


SEEN = [(t, t, 1) for t in range(7)]


@pytest.mark.parametrize(
    ("looks", "is_lost"),
    [
        ([*SEEN, (7, 7, 0), (8, 7, 0)], True),  # closed, and silent since
        ([*SEEN, (7, 7, 0)], False),  # it may renew its lease
        ([*SEEN, (7, 7, 0), (8, 8, 0)], False),  # it did
        ([*SEEN, (7, 7, 0), (8, 7, 1), (9, 7, 0)], False),  # it came back in between
        ([*SEEN, (7, 7, None), (8, 7, None)], False),  # the user may not ask
        ([(t, 1, 0) for t in range(8)], False),  # it has not renewed its lease at this server
    ],
)
def test_a_worker_whose_channel_closed_is_gone_unless_it_renews_its_lease(
    looks: list[tuple[float, int, int | None]], is_lost: bool
) -> None:
    watch, now = closing(looks), looks[-1][0]
    said = watch.is_lost("w", known_since=0, patience=0, now=now, closed_patience=0)
    assert said is is_lost
    assert not watch.is_lost("w", known_since=0, patience=0, now=now), "this call waits longer"


def test_a_worker_that_says_it_is_not_subscribed_is_not_judged_by_its_channel() -> None:
    looks = [*SEEN, (7, 7, 0), (8, 7, 0)]
    watch = closing(looks, subscribed=False)
    assert not watch.is_lost("w", known_since=0, patience=0, now=8, closed_patience=0)


def test_after_an_outage_a_closed_channel_counts_once_the_lease_was_renewed() -> None:
    watch = closing(SEEN)
    watch.interrupted()
    for at in range(7, 13):
        beat = 6 if at < 10 else 10
        watch.look([lease(beat, subscribed=True)], at, clock_jumped=False, subscribed={"w": 0})
        said = watch.is_lost("w", known_since=0, patience=0, now=at, closed_patience=0)
        assert said is (at > 10)

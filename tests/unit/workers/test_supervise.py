"""When a worker counts as stalled, and when it only has much to do: no I/O, made-up times."""

from contract.envelope import WorkerLease
from workers.supervise import Backoff, Watch

STALL = 10.0
QUEUE = "toolpool.default.loop"


def lease(*, free: int, received: int) -> WorkerLease:
    return WorkerLease(
        id="w",
        host="h",
        pid=1,
        version="0",
        started_at=0.0,
        slots={QUEUE: 4},
        free={QUEUE: free},
        received=received,
    )


def watch() -> Watch:
    return Watch(started_at=0.0, stall_seconds=STALL)


def test_a_lease_that_is_not_renewed_is_a_stall() -> None:
    watching = watch()
    assert watching.look(lease(free=4, received=0), {}, 1.0) is None
    assert watching.look(None, {}, 5.0) is None
    reason = watching.look(None, {}, 11.5)
    assert reason is not None
    assert "lease" in reason


def test_a_worker_that_starts_has_time_to_load_its_tools() -> None:
    watching = watch()
    assert watching.look(None, {}, 60.0) is None
    assert watching.look(None, {}, 95.0) is not None


def test_messages_left_lying_with_slots_free_are_a_stall() -> None:
    watching = watch()
    for second in range(10):
        assert watching.look(lease(free=2, received=7), {QUEUE: 3}, float(second)) is None
    reason = watching.look(lease(free=2, received=7), {QUEUE: 3}, 11.5)
    assert reason is not None
    assert "took no message" in reason


def test_a_long_backlog_is_no_stall_while_it_is_worked_off() -> None:
    watching = watch()
    for second in range(100):
        look = watching.look(lease(free=2, received=second), {QUEUE: 5000}, float(second))
        assert look is None


def test_full_slots_are_no_stall() -> None:
    watching = watch()
    for second in range(100):
        assert watching.look(lease(free=0, received=7), {QUEUE: 5000}, float(second)) is None


def test_nothing_to_do_is_no_stall() -> None:
    watching = watch()
    for second in range(100):
        assert watching.look(lease(free=4, received=7), {QUEUE: 0}, float(second)) is None


def test_a_server_that_was_away_a_minute_ends_no_worker() -> None:
    watching = watch()
    assert watching.look(lease(free=4, received=0), {}, 1.0) is None
    for second in range(2, 62):
        watching.forgive(float(second))
    assert watching.look(None, {}, 65.0) is None
    assert watching.look(lease(free=4, received=0), {}, 66.0) is None
    assert watching.look(None, {}, 80.0) is not None


def test_a_crash_loop_backs_off_until_a_worker_lasts() -> None:
    backoff = Backoff()
    pauses = [backoff.after(2.0, has_stalled=False) for _ in range(7)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0]
    assert backoff.after(3600.0, has_stalled=False) == 0.25


def test_workers_that_stall_start_again_at_once_each_time() -> None:
    """Ten seconds without work have passed already; more would only be lost."""
    backoff = Backoff()
    assert {backoff.after(15.0, has_stalled=True) for _ in range(7)} == {0.25}

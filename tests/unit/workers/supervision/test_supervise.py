"""How long a supervisor waits before it starts a worker again."""

from toolpool.workers.supervision.supervise import Backoff


def test_a_crash_loop_backs_off_until_a_worker_lasts() -> None:
    backoff = Backoff()
    pauses = [backoff.after(2.0, has_stalled=False) for _ in range(7)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0]
    assert backoff.after(3600.0, has_stalled=False) == 0.25


def test_workers_that_stall_start_again_at_once_each_time() -> None:
    """Ten seconds without work have passed already; more would only be lost."""
    backoff = Backoff()
    assert {backoff.after(15.0, has_stalled=True) for _ in range(7)} == {0.25}

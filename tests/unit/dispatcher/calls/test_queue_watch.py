"""When a message counts as lost: what was seen of its queue, case by case."""

import time
from dataclasses import dataclass

import pytest

from toolpool.contract.envelope import WorkerLease
from toolpool.dispatcher.calls.queue_watch import QueueWatch

QUEUE = "q"
SENT = 100.0
"""When every message here was sent."""
LONG_AFTER = 50_000.0


@dataclass(frozen=True)
class Look:
    """What one survey showed of the queue: its messages, and what its worker has free."""

    at: float
    depth: int
    free: int = 0


def worker(free: int, queue: str = QUEUE) -> WorkerLease:
    return WorkerLease(
        id="w", host="h", pid=1, version="1", started_at=0.0, slots={queue: 4}, free={queue: free}
    )


def watch(*looks: Look, started: float | None = None) -> QueueWatch:
    """One that has seen this; `started` is when the last message was sent that a worker took."""
    made = QueueWatch()
    for look in looks:
        made.look({QUEUE: look.depth}, [worker(look.free)], look.at)
    if started is not None:
        made.started(QUEUE, started)
    return made


def is_overdue(
    made: QueueWatch, now: float, *, republished: int = 0, depths_known: bool = True
) -> bool:
    return made.is_overdue(
        QUEUE, published_at=SENT, republished=republished, depths_known=depths_known, now=now
    )


def assert_overdue_from(
    made: QueueWatch, moment: float, *, republished: int = 0, depths_known: bool = True
) -> None:
    for now, expected in ((moment - 0.1, False), (moment, True), (moment + 0.1, True)):
        assert (
            is_overdue(made, now, republished=republished, depths_known=depths_known) is expected
        ), now


@pytest.mark.parametrize(
    ("looks", "moment"),
    [
        pytest.param([Look(90, 0)], 103.0, id="it was empty before"),
        pytest.param([Look(100, 0)], 103.0, id="empty since it was sent"),
        pytest.param([Look(102, 0)], 105.0, id="empty only later"),
        pytest.param([Look(100, 0), Look(101, 0)], 103.0, id="seen empty twice"),
        pytest.param([Look(100, 0), Look(101, 1), Look(102, 0)], 105.0, id="not empty in between"),
    ],
)
def test_a_message_is_lost_where_its_queue_has_been_empty_for_a_while(
    looks: list[Look], moment: float
) -> None:
    """Its worker is busy with others, and may have taken it."""
    assert_overdue_from(watch(*looks), moment)


@pytest.mark.parametrize(
    ("started", "expected"), [(None, False), (99.0, False), (102.9, False), (103.0, True)]
)
def test_a_message_is_lost_where_others_that_were_sent_later_have_started(
    started: float | None, expected: bool
) -> None:
    """However many wait on the queue."""
    made = watch(Look(90, 5), started=started)
    assert is_overdue(made, LONG_AFTER) is expected
    assert not is_overdue(made, 102.9), "it was sent only now"


def test_a_message_on_a_queue_that_is_not_empty_waits_its_turn() -> None:
    assert not is_overdue(watch(Look(90, 1)), LONG_AFTER)


def test_a_message_on_a_queue_that_was_never_looked_at_is_not_suspected() -> None:
    assert not is_overdue(watch(), LONG_AFTER)


@pytest.mark.parametrize(
    ("republished", "moment"),
    [(0, 103.0), (1, 106.0), (2, 112.0), (10, 100.0 + 3 * 1024), (30, 100.0 + 3 * 1024)],
)
def test_each_time_it_was_sent_again_it_is_waited_for_twice_as_long(
    republished: int, moment: float
) -> None:
    assert_overdue_from(watch(Look(90, 0)), moment, republished=republished)


@pytest.mark.parametrize(
    ("looks", "moment"),
    [
        pytest.param([Look(90, 0, free=1)], 103.0, id="idle before"),
        pytest.param([Look(101, 0, free=1)], 104.0, id="idle only later"),
        pytest.param(
            [Look(90, 0, free=1), Look(101, 0), Look(102, 0, free=1)], 105.0, id="busy in between"
        ),
        pytest.param(
            [Look(90, 0, free=1), Look(101, 2, free=1), Look(102, 0, free=1)],
            105.0,
            id="messages in between",
        ),
    ],
)
@pytest.mark.parametrize("depths_known", [True, False])
@pytest.mark.parametrize("republished", [5, 9])
def test_where_a_worker_idles_beside_an_empty_queue_it_can_only_be_lost(
    looks: list[Look], moment: float, republished: int, depths_known: bool
) -> None:
    """However often it was sent, and whether or not the broker says what waits."""
    assert_overdue_from(watch(*looks), moment, republished=republished, depths_known=depths_known)


def test_a_worker_that_is_free_for_another_queue_is_not_idle() -> None:
    made = QueueWatch()
    made.look({QUEUE: 0}, [worker(4, "another")], 90.0)
    assert not is_overdue(made, 104.0, republished=1)


def test_one_idle_worker_among_busy_ones_is_enough() -> None:
    made = QueueWatch()
    made.look({QUEUE: 0}, [worker(0), worker(1), worker(0)], 90.0)
    assert_overdue_from(made, 103.0, republished=5)


@pytest.mark.parametrize(("republished", "moment"), [(0, 110.0), (1, 120.0), (3, 180.0)])
def test_where_the_broker_does_not_say_what_waits_only_time_tells(
    republished: int, moment: float
) -> None:
    assert_overdue_from(watch(), moment, republished=republished, depths_known=False)


def test_what_was_seen_of_other_queues_says_nothing() -> None:
    made = QueueWatch()
    made.look({"another": 0}, [worker(1, "another")], 90.0)
    made.started("another", LONG_AFTER)
    assert not is_overdue(made, LONG_AFTER)


def test_an_older_start_that_is_told_late_changes_nothing() -> None:
    made = watch(Look(90, 1), started=103.0)
    made.started(QUEUE, 50.0)
    assert is_overdue(made, LONG_AFTER)


@pytest.mark.parametrize("free", [0, 1])
def test_after_an_outage_the_queue_is_watched_anew(free: int) -> None:
    made = watch(Look(90, 0, free=free))
    made.forget()
    assert not is_overdue(made, LONG_AFTER)
    made.look({QUEUE: 0}, [worker(free)], 200.0)
    assert_overdue_from(made, 203.0)


def test_a_look_is_dated_by_this_process_s_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 150.0)
    made = QueueWatch()
    made.look({QUEUE: 0}, [])
    assert_overdue_from(made, 153.0)

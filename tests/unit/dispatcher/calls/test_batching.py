"""How many calls leave in the next message of a queue, case by case."""

import pytest
from hypothesis import given, strategies as st

from toolpool.dispatcher.calls.batching import next_batch

FULL = 8
"""The size of a full batch here."""


def leaving(slots: list[int], waiting: int, unstarted: int, left: int | None = None) -> int:
    """How many calls the next message holds."""
    size = next_batch(slots=slots, waiting=waiting, unstarted=unstarted, largest=FULL, left=left)
    return min(size, waiting)


@pytest.mark.parametrize(
    ("slots", "waiting", "unstarted", "expected"),
    [
        # An idle worker gets what there is, up to a full batch.
        ([4], 1, 0, 1),
        ([4], 3, 0, 3),
        ([4], 8, 0, 8),
        ([4], 100, 0, 8),
        # It has a few ahead, and slots left for more.
        ([4], 1, 3, 1),
        ([4], 2, 3, 2),
    ],
)
def test_an_idle_worker_is_sent_what_waits(
    slots: list[int], waiting: int, unstarted: int, expected: int
) -> None:
    assert leaving(slots, waiting, unstarted) == expected


@pytest.mark.parametrize(
    ("slots", "waiting", "unstarted", "expected"),
    [
        ([4, 4], 4, 0, 2),
        ([4, 4], 3, 0, 2),
        ([4, 4, 4, 4], 4, 0, 1),
        ([4, 4, 4, 4], 2, 0, 1),
        ([4, 4], 100, 0, 8),
        # What was sent and nobody has started yet counts: some of them will take it.
        ([4, 4], 3, 3, 3),
    ],
)
def test_idle_workers_get_a_share_each(
    slots: list[int], waiting: int, unstarted: int, expected: int
) -> None:
    """In one message all of it would be one worker's."""
    assert leaving(slots, waiting, unstarted) == expected


@pytest.mark.parametrize(
    ("slots", "waiting", "unstarted", "expected"),
    [
        # All slots are taken: a few calls leave with as many as are ahead of them, or none.
        ([4], 1, 5, 1),
        ([4], 1, 6, 0),
        ([4], 2, 6, 2),
        ([4], 2, 7, 0),
        ([4], 7, 11, 7),
        ([4], 6, 11, 0),
        # A full batch waits for no company.
        ([4], 8, 12, 8),
        ([4], 9, 12, 8),
        ([4, 4], 10, 20, 8),
    ],
)
def test_what_no_worker_could_start_yet_waits_for_company(
    slots: list[int], waiting: int, unstarted: int, expected: int
) -> None:
    assert leaving(slots, waiting, unstarted) == expected


@pytest.mark.parametrize(
    ("slots", "unstarted", "expected"),
    [
        # Two full batches beyond the slots of each worker.
        ([4], 12, 8),
        ([4], 13, 0),
        ([4], 20, 0),
        ([4], 1000, 0),
        ([4, 4], 32, 8),
        ([4, 4], 33, 0),
        ([1, 7], 32, 8),
    ],
)
def test_no_more_than_two_batches_a_worker_are_ahead(
    slots: list[int], unstarted: int, expected: int
) -> None:
    assert leaving(slots, 100, unstarted) == expected


@pytest.mark.parametrize(
    ("slots", "waiting", "unstarted", "left", "expected"),
    [
        ([4], 100, 0, 3, 3),
        ([4], 100, 0, 0, 0),
        ([4], 100, 0, -1, 0),
        ([4], 100, 0, 50, 8),
        ([4], 2, 1, 1, 1),
        # What the cap leaves is sent although it is less than a full batch.
        ([4], 100, 4, 2, 2),
        # A cap makes no room where there is none.
        ([4], 100, 20, 5, 0),
        ([4], 100, 13, 50, 7),
    ],
)
def test_a_cap_holds(
    slots: list[int], waiting: int, unstarted: int, left: int, expected: int
) -> None:
    assert leaving(slots, waiting, unstarted, left) == expected


@pytest.mark.parametrize(
    ("waiting", "unstarted", "expected"),
    [(1, 0, 1), (3, 0, 3), (100, 0, 8), (100, 8, 8), (3, 4, 0), (100, 9, 0)],
)
def test_without_workers_a_full_message_goes_and_one_behind_it(
    waiting: int, unstarted: int, expected: int
) -> None:
    assert leaving([], waiting, unstarted) == expected


@given(
    slots=st.lists(st.integers(1, 20), max_size=5),
    waiting=st.integers(1, 200),
    unstarted=st.integers(0, 200),
    left=st.none() | st.integers(-5, 200),
)
def test_a_message_is_never_more_than_it_may_be(
    slots: list[int], waiting: int, unstarted: int, left: int | None
) -> None:
    size = next_batch(slots=slots, waiting=waiting, unstarted=unstarted, largest=FULL, left=left)
    assert 0 <= size <= FULL
    assert left is None or size <= max(0, left)
    if unstarted < sum(slots) and (left is None or left > 0):
        assert size > 0, "a worker idles while calls wait"

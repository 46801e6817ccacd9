"""The line between a supervisor and its worker."""

import os
from collections.abc import Iterator

import pytest

from toolpool.workers.supervision.supervisor_link import Link, Recycle, Stalled, WorkerExited


@pytest.fixture
def ends() -> Iterator[tuple[Link, Link]]:
    ours, theirs = Link.pair()
    other = Link.inherited(theirs.detach())
    yield ours, other
    ours.close()
    other.close()


def test_what_one_end_says_the_other_hears_in_order_and_once(ends: tuple[Link, Link]) -> None:
    here, there = ends
    frames = [
        WorkerExited(worker="a", reason="exit"),
        Stalled(worker="b", reason="lease"),
        Recycle(),
    ]
    sent = [here.send(frame) for frame in frames]
    assert sent == [True, True, True]
    assert there.received() == frames
    assert there.received() == []


def test_what_is_no_frame_is_passed_over(ends: tuple[Link, Link]) -> None:
    here, there = ends
    os.write(here.fileno(), b"not json")
    os.write(here.fileno(), b'{"type": "odd"}')
    here.send(Recycle())
    assert there.received() == [Recycle()]


def test_an_end_that_is_gone_is_said_and_raises_nothing(ends: tuple[Link, Link]) -> None:
    here, there = ends
    there.close()
    assert here.send(Recycle()) is False
    assert here.received() == []

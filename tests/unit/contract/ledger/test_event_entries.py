"""Entries of the stream of events, as anybody who can write to the server may have made them."""

import pytest

from toolpool.contract.event_entries import Position
from toolpool.contract.ledger.event_stream import _entry


@pytest.mark.parametrize("count", [b"1", b"-3", b"x", b"", b"7", b"9" * 5_000])
def test_what_another_hand_wrote_is_an_entry_that_can_be_passed_over(count: bytes) -> None:
    for number in (0, 1, 5):
        entry = _entry(b"1700000000000-%d" % number, [b"n", count, b"b", b"{}"])
        before = Position(entry.last.start, entry.last.number - entry.events)
        assert Position.parse(before.bookmark) == before

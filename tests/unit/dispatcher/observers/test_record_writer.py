"""What waits to be written: in its order, bounded, and no row at the cost of another (R39)."""

import errno
import json
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until
from toolpool.contract.outcome import Executed
from toolpool.dispatcher.observers import record_writer
from toolpool.dispatcher.observers.record_file import NotAllWritten
from toolpool.dispatcher.observers.record_rows import Draft, Metadata
from toolpool.dispatcher.observers.record_writer import Writer


class Sink:
    """Keeps what is written, by session, and how many rows came at once."""

    def __init__(self) -> None:
        self.rows: dict[str | None, list[str]] = {}
        self.at_once: list[int] = []

    def write(self, session: str | None, lines: Sequence[bytes]) -> None:
        self.at_once.append(len(lines))
        for line in lines:
            assert line.endswith(b"\n")
            row = json.loads(line)
            self.rows.setdefault(session, []).append(row["content"][:8] or row["type"])

    def close(self) -> None:
        pass


def draft(session: str | None, body: bytes, fields: Any = None) -> Draft:
    metadata = Metadata(error=False, executed=Executed.YES, duration=0.0, attempts=1, fields=fields)
    return Draft(session, "id", None, 0, "tool_result", "t", body, metadata)


def add(keeps: Writer, drafts: Sequence[Draft]) -> None:
    for each in drafts:
        keeps.add(each)


def writer(sink: Any, **options: Any) -> Writer:
    return Writer(sink, **{"redact": None, **options})


def test_rows_of_a_session_keep_their_order_however_large_they_are() -> None:
    sink = Sink()
    keeps = writer(sink)
    large = b'"large' + b"x" * 10_000 + b'"'
    add(
        keeps,
        [
            draft("a", b'"1"'),
            draft("b", b'"1"'),
            draft("a", large),
            draft(None, b'"1"'),
            draft("a", b'"3"'),
            draft("b", b'"2"'),
        ],
    )
    keeps.start()
    keeps.close()
    assert sink.rows == {"a": ['"1"', '"largexx', '"3"'], "b": ['"1"', '"2"'], None: ['"1"']}


def test_a_row_that_is_no_json_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    sink = Sink()
    keeps = writer(sink)
    add(keeps, [draft("a", b'"1"'), draft("a", b'"2"', fields=object()), draft("a", b'"3"')])
    keeps.start()
    keeps.close()
    assert sink.rows["a"][:2] == ['"1"', '"3"']
    assert keeps.lost == 1
    assert sum("row_not_written" in line for line in caplog.messages) == 1
    assert not any("lost_at_the_end" in line for line in caplog.messages)


def test_rows_that_came_together_are_written_a_thousand_at_a_time_at_most() -> None:
    sink = Sink()
    keeps = writer(sink)
    add(keeps, [draft("a", b"%d" % number) for number in range(2_500)])
    keeps.start()
    wait_until(lambda: sum(sink.at_once) == 2_500, "all are written")
    keeps.close()
    assert max(sink.at_once) <= 1_000
    assert sink.rows["a"] == [str(number) for number in range(2_500)]


def test_how_many_rows_wait_is_told_with_those_that_came_together(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_writer, "_MAX_ROWS", 4)
    caplog.set_level(logging.WARNING)
    keeps = writer(Sink())
    add(keeps, [draft("a", b"1") for _ in range(7)])
    assert keeps.lost == 3
    assert [line.partition(", and")[0] for line in caplog.messages] == [
        "record_too_slow: 4 rows wait"
    ]


class Full(Sink):
    """Takes `left` lines before the disk is full."""

    left = 3

    def write(self, session: str | None, lines: Sequence[bytes]) -> None:
        super().write(session, lines[: self.left])
        if len(lines) > self.left:
            written, self.left = self.left, 0
            raise NotAllWritten(OSError(errno.ENOSPC, "full"), written, Path("records"))


def test_what_a_full_disk_did_not_take_is_written_once_there_is_room() -> None:
    sink = Full()
    keeps = writer(sink)
    add(keeps, [draft("a", b"%d" % number) for number in range(5)])
    keeps.start()
    wait_until(lambda: sink.left == 0, "it is full")
    sink.left = 100
    wait_until(lambda: len(sink.rows["a"]) == 5, "the rest is written")
    keeps.close()
    assert sink.rows["a"] == [str(number) for number in range(5)], "each once, in order"
    assert keeps.lost == 0


class Hanging(Sink):
    """Takes the first rows that it is given, and then hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()

    def write(self, session: str | None, lines: Sequence[bytes]) -> None:
        if self.at_once:
            self.goes_on.wait(60)
        super().write(session, lines)


def test_rows_that_a_hanging_disk_was_given_are_counted_as_lost_at_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(record_writer, "_CLOSE_SECONDS", 0.2)
    sink = Hanging()
    keeps = writer(sink)
    add(keeps, [draft("a", b"1")])
    keeps.start()
    wait_until(lambda: len(sink.at_once) == 1, "the first is written")
    add(keeps, [draft("a", b"%d" % number) for number in range(1_500)])
    keeps.close()
    lost = [line for line in caplog.messages if "record_rows_lost_at_close" in line]
    assert [line.partition(":")[0] for line in lost] == ["record_rows_lost_at_close count=1500"]
    sink.goes_on.set()

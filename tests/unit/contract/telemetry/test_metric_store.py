"""What metrics are counted in: sheets, the book that adds them up, and the page it gives."""

import mmap
import os

import pytest
from prometheus_client import CollectorRegistry

from tests.scraping import parsed, value
from toolpool.contract.telemetry import exposition, metric_store
from toolpool.contract.telemetry.exposition import Page, aggregate_in
from toolpool.contract.telemetry.metric_store import (
    Family,
    Kind,
    MetricAggregate,
    MetricShard,
    ToolNames,
)

COUNTER = Family("x_total", Kind.COUNTER, "Counted.", ("tool",))
SECONDS = Family("x_seconds", Kind.HISTOGRAM, "Taken.", ("tool",), (0.1, 1.0))
SUM = Family("x_open", Kind.SUM, "Open.")
MOST = Family("x_age_seconds", Kind.MOST, "The oldest.")
SINCE = Family("x_stall_seconds", Kind.SINCE, "Since.", grace=1.0)
FAMILIES = (COUNTER, SECONDS, SUM, MOST, SINCE)


def sheet_of(count: float, *, age: float = 0.0, is_open: float = 0.0) -> MetricShard:
    sheet = MetricShard()
    sheet.cells[sheet.place(COUNTER, "a")] += count
    sheet.observe(sheet.place(SECONDS, "a"), SECONDS.buckets, 0.5)
    sheet.cells[sheet.place(SUM)] = is_open
    sheet.cells[sheet.place(MOST)] = age
    return sheet


def test_counters_add_up_and_gauges_as_they_should() -> None:
    book = MetricAggregate(FAMILIES)
    book.add(sheet_of(2, age=5, is_open=3))
    book.add(sheet_of(3, age=9, is_open=4))
    totals = book.totals()
    assert totals["x_total"] == {("a",): [5.0]}
    assert totals["x_seconds"] == {("a",): [0.0, 2.0, 0.0, 1.0]}
    assert (totals["x_open"][()], totals["x_age_seconds"][()]) == ([7.0], [9.0])


def test_what_ended_stays_counted_and_stands_for_nothing() -> None:
    """A worker that was replaced: its counters stay, what it was doing does not."""
    book = MetricAggregate(FAMILIES)
    first, second = sheet_of(2, age=5, is_open=3), sheet_of(3, age=1, is_open=1)
    book.add(first)
    book.add(second)
    book.end(first)
    book.end(first)
    totals = book.totals()
    assert totals["x_total"] == {("a",): [5.0]}
    assert totals["x_seconds"][("a",)] == [0.0, 2.0, 0.0, 1.0]
    assert (totals["x_open"][()], totals["x_age_seconds"][()]) == ([1.0], [1.0])
    book.end(second)
    assert book.totals()["x_total"] == {("a",): [5.0]}
    assert "x_open" not in book.totals()


def test_what_a_killed_process_wrote_is_there() -> None:
    """Shared memory: the reader never asks the writer."""
    memory = mmap.mmap(-1, metric_store.SHEET_BYTES)
    book, reader = MetricAggregate(FAMILIES), MetricShard(memory)
    book.add(reader)
    pid = os.fork()
    if pid == 0:
        writer = MetricShard(memory)
        writer.cells[writer.place(COUNTER, "a")] += 7.0
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    assert book.totals()["x_total"] == {("a",): [7.0]}


def test_a_sheet_that_is_full_counts_nowhere_else() -> None:
    sheet = MetricShard(bytearray(8 * 200))
    for number in range(100):
        sheet.cells[sheet.place(COUNTER, f"tool-{number}")] += 1.0
    sheet.observe(sheet.place(SECONDS, "late"), SECONDS.buckets, 0.5)
    found = list(sheet.series())
    assert 0 < len(found) < 100
    assert all(cells == [1.0] for _, _, cells in found)


def test_the_time_since_the_last_sign_is_told_beyond_its_grace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    book, sheet = MetricAggregate(FAMILIES), MetricShard()
    book.add(sheet)
    sheet.cells[sheet.place(SINCE)] = 100.0
    monkeypatch.setattr(metric_store.time, "monotonic", lambda: 100.5)
    assert book.totals()["x_stall_seconds"][()] == [0.0]
    monkeypatch.setattr(metric_store.time, "monotonic", lambda: 105.0)
    assert book.totals()["x_stall_seconds"][()] == [4.0]


def test_so_many_tools_have_a_label_of_their_own_and_the_rest_share_one() -> None:
    names = ToolNames(2)
    assert [names.of(name) for name in ("a", "b", "c", "d", "a")] == [
        "a",
        "b",
        "other",
        "other",
        "a",
    ]


def test_the_page_is_what_prometheus_reads() -> None:
    registry = CollectorRegistry()
    book = aggregate_in(registry, FAMILIES)
    assert aggregate_in(registry, FAMILIES) is book
    sheet = sheet_of(2)
    sheet.cells[sheet.place(COUNTER, 'quo"te\n')] += 1.0
    book.add(sheet)
    for accepted in ("", "text/plain", "application/openmetrics-text; version=1.0.0"):
        content_type, _ = Page(registry).of(accepted)
        assert ("openmetrics" in content_type) is ("openmetrics" in accepted)
    read = parsed(Page(registry).of("")[1].decode())
    assert value(read, "x_total", tool="a") == 2
    assert value(read, "x_total", tool='quo"te\n') == 1
    assert value(read, "x_seconds_bucket", tool="a", le="0.1") == 0
    assert value(read, "x_seconds_bucket", tool="a", le="1.0") == 1
    assert value(read, "x_seconds_bucket", tool="a", le="+Inf") == 1
    assert value(read, "x_seconds_sum", tool="a") == 0.5


def test_a_page_is_made_once_for_many_who_ask_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    collect = exposition.BookCollector.collect
    monkeypatch.setattr(
        exposition.BookCollector, "collect", lambda self: made.append(1) or collect(self)
    )
    monkeypatch.setattr(exposition, "_SAME_PAGE_SECONDS", 60.0)
    registry = CollectorRegistry()
    aggregate_in(registry, FAMILIES)
    made.clear()
    page = Page(registry)
    assert len({page.of("")[1] for _ in range(50)}) == 1
    assert len(made) == 1

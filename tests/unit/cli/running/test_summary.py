"""Counting a run."""

import random
from io import StringIO

from rich.console import Console

from toolpool.cli.running.summary import Durations, Summary
from toolpool.contract.outcome import Code
from toolpool.contract.result import ToolResult


def result(name: str = "t", code: Code | None = None, duration: float = 0.1) -> ToolResult:
    return ToolResult(call_id="c", name=name, ok=code is None, code=code, duration=duration)


def test_calls_are_counted_by_tool_and_error_type() -> None:
    summary = Summary()
    summary.add([result(), result(code=Code.TIMEOUT)], broken=False)
    summary.add([result("u", Code.UNKNOWN_TOOL, 0.0)], broken=False)
    summary.add([], broken=True)
    told = summary.as_json()
    assert (summary.turns, summary.calls, summary.failed) == (3, 3, 2)
    assert told["broken_lines"] == 1
    assert told["tools"]["t"] == {
        "calls": 2,
        "ok": 1,
        "validation": 0,
        "runtime": 0,
        "logical": 0,
        "aborted": 1,
        "exception": 0,
        "p50": 0.1,
        "p95": 0.1,
    }
    assert told["tools"]["u"]["validation"] == 1
    assert told["tools"]["u"]["p50"] is None  # a rejection takes no time worth knowing


def test_names_that_models_invent_do_not_fill_the_table() -> None:
    summary = Summary()
    for number in range(1_000):
        summary.add([result(f"invented_{number}", Code.UNKNOWN_TOOL)], broken=False)
    tools = summary.as_json()["tools"]
    assert len(tools) == 101
    assert tools["(other tools)"]["calls"] == 900
    assert summary.calls == 1_000


def test_percentiles_are_those_of_a_bounded_sample() -> None:
    durations = Durations()
    for number in range(1, 101):
        durations.add(number / 100)
    assert (durations.percentile(50), durations.percentile(95)) == (0.5, 0.95)
    random.seed(7)
    for _ in range(50_000):
        durations.add(random.random())
    assert len(durations.sample) == 2_000
    assert 0.45 < (durations.percentile(50) or 0) < 0.55
    assert Durations().percentile(50) is None


def test_a_table_has_a_row_a_tool_and_markup_in_names_is_just_text() -> None:
    summary = Summary()
    summary.add([result("[red]x"), result("y")], broken=False)
    table = summary.table()
    assert table.row_count == 2
    assert str(table.columns[0]._cells[0]) == "[red]x"


def test_a_name_that_a_model_made_up_cannot_move_the_cursor() -> None:
    summary = Summary()
    summary.add([result("x\x1b[2J\x1b]0;title\x07", Code.UNKNOWN_TOOL)], broken=False)
    console = Console(file=StringIO(), force_terminal=True)
    console.print(summary.table())
    assert isinstance(console.file, StringIO)
    assert "x?[2J" in console.file.getvalue()
    assert "\x1b[2J" not in console.file.getvalue()

"""`toolpool replay`: what recorded calls would come to today (R39)."""

import asyncio
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import Ran
from toolpool import Dispatcher, SessionRecord, tool

Run = Callable[..., Ran]

_numbers = itertools.count()  # a module's name is taken once in a process

TOOLS = """
from toolpool import tool

@tool(effects="read")
async def find({arguments}) -> dict:
    "Find."
    return {returned}

@tool(effects="write")
async def store(value: int) -> str:
    "Store."
    return "{stored}"
"""


@tool(effects="read")
async def find(key: int) -> dict[str, int]:
    """Find."""
    return {"key": key}


@tool(effects="write")
async def store(value: int) -> str:
    """Store."""
    return "stored"


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """Two calls that went well, one that was rejected."""

    async def run() -> None:
        target = SessionRecord(tmp_path / "record.jsonl")
        async with Dispatcher.in_memory([find, store], record=target) as dispatcher:
            for name, value in (("find", 1), ("find", "x"), ("store", 1)):
                asked = {"key": value} if name == "find" else {"value": value}
                await dispatcher.dispatch([{"id": "c", "name": name, "input": asked}], session="s")

    asyncio.run(run())
    return tmp_path / "record.jsonl"


def tools(folder: Path, **changed: Any) -> str:
    """A file of tools, as they were or changed."""
    given = {"arguments": "key: int", "returned": '{"key": key}', "stored": "stored", **changed}
    name = f"replayed_{next(_numbers)}.py"
    text = TOOLS
    for key, value in given.items():
        text = text.replace("{" + key + "}", value)
    (folder / name).write_text(text)
    return str(folder / name)


def replayed(toolpool: Run, *argv: str) -> tuple[int, dict[str, Any]]:
    ran = toolpool("replay", *argv, "--json")
    assert ran.err == ""
    return ran.code, json.loads(ran.out)


def test_the_same_tools_judge_the_same(toolpool: Run, record: Path, tmp_path: Path) -> None:
    code, told = replayed(toolpool, str(record), "--tools", tools(tmp_path))
    assert (code, told["same"], told["calls"], told["judged"]) == (0, True, 3, 3)


def test_what_a_changed_schema_would_do_is_shown(
    toolpool: Run, record: Path, tmp_path: Path
) -> None:
    code, told = replayed(
        toolpool, str(record), "--tools", tools(tmp_path, arguments="key: str", returned="{}")
    )
    assert code == 1
    assert [(each["tool"], each["what"]) for each in told["differences"]] == [
        ("find", "accepted before, rejected now"),
        ("find", "rejected before, accepted now"),
    ]
    assert "expected string" in told["differences"][0]["now"]


def test_another_text_is_a_difference(toolpool: Run, record: Path, tmp_path: Path) -> None:
    changed = tools(tmp_path, arguments="key: float, more: int = 1", returned="{}")
    code, told = replayed(toolpool, str(record), "--tools", changed)
    assert (code, [each["what"] for each in told["differences"]]) == (
        1, ["rejected with another text"],
    )  # fmt: skip


def test_a_tool_that_is_gone_is_a_difference(toolpool: Run, record: Path, tmp_path: Path) -> None:
    source = Path(tools(tmp_path))
    source.write_text(source.read_text().replace("def find", "def found"))
    code, told = replayed(toolpool, str(record), "--tools", str(source))
    assert [each["what"] for each in told["differences"]] == [
        "accepted before, rejected now",
        "validation.arguments before, validation.unknown_tool now",
    ]
    assert code == 1


def test_what_a_tool_said_cannot_move_the_cursor(
    toolpool: Run, record: Path, tmp_path: Path
) -> None:
    rows = record.read_text().replace("find", "find\\\\u001b[2J\\\\nno difference")
    record.write_text(rows)
    ran = toolpool("replay", str(record), "--tools", tools(tmp_path))
    assert "find?[2J?no difference" in ran.out
    assert "\x1b" not in ran.out


@pytest.mark.long
def test_reads_are_run_again_and_writes_only_if_asked(
    toolpool: Run, record: Path, tmp_path: Path
) -> None:
    """With a server and workers of the command's own."""
    changed = tools(tmp_path, returned='{"key": 2}', stored="another")
    code, told = replayed(toolpool, str(record), "--tools", changed, "--run")
    assert (code, told["run"]) == (1, 1)
    [difference] = told["differences"]
    assert (difference["tool"], difference["what"]) == ("find", "another result")
    assert (difference["before"], difference["now"]) == ('{"key":1}', '{"key":2}')
    code, told = replayed(toolpool, str(record), "--tools", changed, "--run", "--all")
    assert (code, told["run"], len(told["differences"])) == (1, 2, 2)


def test_torn_and_foreign_lines_are_passed_over(
    toolpool: Run, record: Path, tmp_path: Path
) -> None:
    rows = record.read_text()
    torn = rows.splitlines()[0][:30]
    deep = "[" * 100_000
    record.write_text(f'{torn}\n[1]\n"x"\n{{"type": "tool_call"}}\n{deep}\n{rows}{torn}')
    module = tools(tmp_path)
    ran = toolpool("replay", str(record), "--tools", module)
    assert ran.code == 0
    assert "3 calls, 3 judged, 0 differ, 5 lines are not valid rows" in ran.out
    checked = toolpool("tools", "check", "--from", str(record), "--tools", module)
    assert "lines are not valid rows" in checked.out


def test_metadata_that_is_no_object_is_none(toolpool: Run, record: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    record.write_text("".join(json.dumps(row | {"metadata": [1]}) + "\n" for row in rows))
    code, told = replayed(toolpool, str(record), "--tools", tools(tmp_path))
    assert (code, told["calls"], told["unread"]) == (0, 3, 0)


def test_a_pipe_in_a_folder_is_not_waited_for(toolpool: Run, record: Path, tmp_path: Path) -> None:
    (folder := tmp_path / "records").mkdir()
    os.mkfifo(folder / "p.jsonl")
    record.rename(folder / "s.jsonl")
    assert replayed(toolpool, str(folder), "--tools", tools(tmp_path))[1]["calls"] == 3


def test_a_folder_is_read_with_what_was_put_away(
    toolpool: Run, record: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "records"
    (shard := folder / "3f").mkdir(parents=True)
    rows = record.read_text().splitlines(keepends=True)
    (shard / "s.jsonl.1").write_text("".join(rows[:3]))
    (shard / "s.jsonl").write_text("".join(rows[3:]))
    code, told = replayed(toolpool, str(folder), "--tools", tools(tmp_path))
    assert (code, told["calls"], told["unread"]) == (0, 3, 0)
    checked = toolpool(
        "tools", "check", "--from", str(folder), "--tools", tools(tmp_path), "--json"
    )
    assert "1 of 2 calls were rejected" in checked.out


def test_what_is_no_record_is_told(toolpool: Run, tmp_path: Path) -> None:
    for path in (tmp_path / "missing.jsonl", tmp_path):
        ran = toolpool("replay", str(path))
        assert (ran.code, "record" in ran.err) == (2, True)
    assert toolpool("replay", "x", "--all").code == 2

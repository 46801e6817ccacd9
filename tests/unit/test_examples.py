"""The recorded turns in `examples/`: what they cover, and that their order is no matter.

The main job runs them on real workers; here the tools are called directly.
"""

import asyncio
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from toolpool.contract.errors import ToolError
from toolpool.workers.context import ToolContext
from toolpool.workers.signature import ArgumentsRefused
from toolpool.workers.tool import Tool
from toolpool.workers.tool_loading import Catalog
from toolpool.workers.tools.configured import settings

EXAMPLES = Path(__file__).parents[2] / "examples"
TURNS: list[dict[str, Any]] = [
    json.loads(line) for line in (EXAMPLES / "turns.jsonl").read_text().splitlines()
]

# Calls that end in a timeout or in a dead process are for real workers only.
DEADLY = [("convert_report", "pdf"), ("check_stock", "north"), ("forecast_demand", 120)]


def _calls(turn: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    if "choices" in turn:
        message = turn["choices"][0]["message"]
        for call in message.get("tool_calls", ()):
            yield call["id"], call["function"]["name"], call["function"]["arguments"]
    elif "content" in turn:
        for block in turn["content"]:
            if block["type"] == "tool_use":
                yield block["id"], block["name"], block["input"]
    else:
        yield turn["id"], turn["name"], turn["input"]


@pytest.fixture(scope="module")
def tools() -> dict[str, Tool]:
    return dict(Catalog.load(["toolpool.workers.tools", str(EXAMPLES / "tools.py")]).tools)


def _ending(tools: dict[str, Tool], name: str, raw: Any) -> str:
    """How a call comes out before it runs, or `runs`."""
    try:
        arguments = json.loads(raw or "{}") if isinstance(raw, str) else raw
    except ValueError:
        return "unparseable"
    if not isinstance(arguments, dict):
        return "unparseable"
    if name not in tools:
        return "unknown tool"
    schema = tools[name].spec.input_schema
    assert schema is not None
    if not jsonschema.Draft202012Validator(schema).is_valid(arguments):
        return "invalid arguments"
    try:
        tools[name].signature.bind(arguments, ToolContext(call_id="c", tool=name))
    except ArgumentsRefused:
        return "refused by type"
    if any((name, value) in DEADLY for value in arguments.values()):
        return "deadly"
    return "runs"


def test_there_are_many_turns_in_every_format() -> None:
    anthropic = [turn for turn in TURNS if "content" in turn]
    openai = [turn for turn in TURNS if "choices" in turn]
    bare = [turn for turn in TURNS if "input" in turn]
    assert len(TURNS) >= 60
    assert len(anthropic) >= 25
    assert len(openai) >= 25
    assert len(bare) >= 2
    assert len(TURNS) == len(anthropic) + len(openai) + len(bare)
    assert sum(len(list(_calls(turn))) > 1 for turn in TURNS) >= 20


def test_ids_are_unique() -> None:
    ids = [call_id for turn in TURNS for call_id, *_ in _calls(turn)]
    assert len(set(ids)) == len(ids)
    assert len({turn["id"] for turn in TURNS}) == len(TURNS)


def test_every_tool_is_used_and_every_mistake_is_made(tools: dict[str, Tool]) -> None:
    calls = [call for turn in TURNS for call in _calls(turn)]
    endings = [_ending(tools, name, raw) for _, name, raw in calls]
    for ending in ("unparseable", "unknown tool", "invalid arguments", "refused by type", "deadly"):
        assert endings.count(ending) >= 1, ending
    assert endings.count("deadly") == 3
    assert endings.count("runs") >= 90
    assert {name for _, name, _ in calls} >= set(tools)


def _answers(
    turns: list[dict[str, Any]], tools: dict[str, Tool], copy: Path, patch: pytest.MonkeyPatch
) -> dict[str, Any]:
    shutil.copytree(EXAMPLES / "workspace", copy)
    patch.setenv("TOOLPOOL_WORKSPACE", str(copy))
    settings.cache_clear()
    answers = {}
    for turn in turns:
        for call_id, name, raw in _calls(turn):
            if _ending(tools, name, raw) == "runs":
                arguments = json.loads(raw or "{}") if isinstance(raw, str) else raw
                answers[call_id] = _answer(tools[name], arguments)
    settings.cache_clear()
    return answers


def _answer(tool: Tool, arguments: dict[str, Any]) -> Any:
    bound = tool.signature.bind(arguments, ToolContext(call_id="c", tool=tool.name))
    try:
        value = tool(**bound)
        return asyncio.run(value) if tool.is_coroutine else value
    except ToolError as error:
        return {"reported": str(error), "recommendations": error.recommendations}
    except KeyError as error:
        return {"raised": repr(error)}


def test_answers_do_not_depend_on_the_order_of_turns_or_the_place_of_the_copy(
    tools: dict[str, Tool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _answers(TURNS, tools, tmp_path / "first", monkeypatch)
    second = _answers(TURNS[::-1], tools, tmp_path / "second place", monkeypatch)
    shuffled = random.Random(1).sample(TURNS, len(TURNS))
    third = _answers(shuffled, tools, tmp_path / "third", monkeypatch)
    assert first == second == third
    assert any("raised" in a for a in first.values() if isinstance(a, dict))
    failed = [a for a in first.values() if isinstance(a, dict) and "reported" in a]
    assert 10 <= len(failed) <= 20, [a["reported"] for a in failed]
    assert "passwd" in json.dumps(failed)
    assert str(tmp_path) not in json.dumps(first)

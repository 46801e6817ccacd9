"""`toolpool tools check`: what a record shows, unions, and names that providers refuse (R43)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from contract.spec import ToolSpec
from tests.unit.cli.conftest import Ran
from tests.unit.dispatcher.test_analytics import RECORD
from toolpool.cli.soundness import check_tool

Run = Callable[..., Ran]


def test_a_record_shows_what_to_improve(toolpool: Run, tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    path.write_text("\n".join(RECORD))
    ran = toolpool("tools", "check", "--from", str(path))
    assert ran.code == 0
    said = " ".join(ran.out.split())
    assert "edit: 2 of 4 calls were rejected; 1 of 1 were right at the first retry" in said
    assert "by model: m 1 of 1" in said
    assert "limit (type), once: say in its description which type and form it takes" in said
    assert "3 lines are no rows of a record" in said


def test_a_record_that_is_not_there_is_one_line(toolpool: Run) -> None:
    ran = toolpool("tools", "check", "--from", "absent.jsonl")
    assert ran.code == 2
    assert "cannot read the record absent.jsonl" in ran.err
    assert ran.err.count("\n") == 1


CIRCLE = {"properties": {"kind": {"const": "circle"}, "r": {"type": "number"}}}
SQUARE = {"properties": {"kind": {"const": "square"}, "r": {"type": "number"}}}
PLAIN = {"properties": {"r": {"type": "number"}}}


@pytest.mark.parametrize(
    ("union", "warns"),
    [
        ({"anyOf": [CIRCLE, SQUARE]}, False),
        ({"oneOf": [CIRCLE, PLAIN]}, True),
        ({"anyOf": [PLAIN, {"type": "null"}]}, False),
        ({"items": {"anyOf": [PLAIN, {"properties": {"s": {}}}]}}, True),
    ],
)
def test_a_union_that_nothing_tells_apart(union: dict[str, object], warns: bool) -> None:
    schema = {"properties": {"shape": {"description": "A shape.", **union}}}
    problems = check_tool(ToolSpec(name="t", description="d", input_schema=schema))
    found = [p.message for p in problems if "nothing to tell them apart" in p.message]
    assert len(found) == warns
    if warns:
        assert found[0].startswith("shape takes several kinds of object")


def test_a_name_that_providers_refuse_says_how_it_is_mapped() -> None:
    [problem] = check_tool(
        ToolSpec(name="files.read", description="d", input_schema={"properties": {}})
    )
    assert problem.level == "hint"
    assert problem.message.startswith(
        "anthropic, bedrock, openai_chat, openai_responses refuse this name: it is offered and "
        "called as 'files_read_"
    )
    assert problem.message.endswith("there, and led back to 'files.read'")

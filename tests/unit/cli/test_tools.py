"""`toolpool tools list|show|export` from modules."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Ran
from toolpool.dispatcher.admission.catalog import read_file

Run = Callable[..., Ran]


def test_list_shows_the_built_in_tools_without_a_url(toolpool: Run) -> None:
    ran = toolpool("tools", "list")
    assert ran.code == 0
    assert "fs_read" in ran.out
    names = [tool["name"] for tool in json.loads(toolpool("tools", "list", "--json").out)]
    assert "fs_read" in names
    assert names == sorted(names)


def test_show_gives_one_tool(toolpool: Run) -> None:
    ran = toolpool("tools", "show", "fs_read")
    assert '"properties"' in ran.out
    assert json.loads(toolpool("tools", "show", "fs_read", "--json").out)["name"] == "fs_read"


DECLARED = '''
from toolpool import tool

@tool(title="Find it", strict=True, allowed_callers=["direct"], input_examples=[{"query": "a"}])
async def find(query: str) -> dict[str, int]:
    """Find it.

    Args:
        query: What to look for.
    """
'''


def test_what_a_tool_declares_is_shown_and_exported(toolpool: Run, tmp_path: Path) -> None:
    module = tmp_path / "declared_tools.py"
    module.write_text(DECLARED)
    shown = toolpool("tools", "show", "find", "--tools", str(module)).out
    for said in (
        "find (Find it)", 'strict: true\nallowed_callers: ["direct"]',
        'input_examples: [{"query": "a"}]', "What to look for.", "returns:",
    ):  # fmt: skip
        assert said in shown
    path = tmp_path / "catalog.json"
    toolpool("tools", "export", "--out", str(path), "--tools", str(module))
    [spec] = read_file(path)
    assert (spec.title, spec.strict, spec.allowed_callers) == ("Find it", True, ("direct",))
    assert spec.output_schema == {"type": "object", "additionalProperties": {"type": "integer"}}
    [listed] = json.loads(toolpool("tools", "list", "--json", "--tools", str(module)).out)
    assert spec.digest == listed["digest"]
    assert "output_schema" in listed
    checked = json.loads(toolpool("tools", "check", "--json", "--tools", str(module)).out)
    assert checked["ok"]


GUARDED = '''
from toolpool import ToolContext, tool

@tool(effects="write", approval=True, rate="10/min", rate_per="tenant", concurrency=2,
      concurrency_scope="fleet", secrets=["bank"], retries=2)
async def pay(cents: int, ctx: ToolContext) -> str:
    """Pay."""
    return "paid"

@tool(effects="read", rate="5/s", concurrency=3, retries=1)
async def look() -> str:
    """Look."""
    return "seen"
'''


def test_what_holds_a_tool_back_is_shown(toolpool: Run, tmp_path: Path) -> None:
    module = tmp_path / "guarded_tools.py"
    module.write_text(GUARDED)
    shown = toolpool("tools", "show", "pay", "--tools", str(module)).out
    for said in (
        "approval: a person has to approve each call", "rate: 10/min for each tenant",
        "concurrency: 2 at once in the fleet", "secrets: bank",
        "retries: 2, not used: it is neither a read nor idempotent",
    ):  # fmt: skip
        assert said in shown
    shown = toolpool("tools", "show", "look", "--tools", str(module)).out
    assert "rate: 5/s\nconcurrency: 3 at once in each dispatcher\nretries: 1\n" in shown
    assert "approval" not in shown
    assert "secrets" not in shown


def test_an_unknown_name_gets_the_closest(toolpool: Run) -> None:
    ran = toolpool("tools", "show", "fs_raed")
    assert (ran.code, ran.err) == (
        1,
        "toolpool: there is no tool 'fs_raed'; did you mean fs_read?\n",
    )


def test_an_exported_catalog_can_be_read_by_a_dispatcher(toolpool: Run, tmp_path: Path) -> None:
    path = tmp_path / "catalog.json"
    ran = toolpool("tools", "export", "--out", str(path))
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    specs = read_file(path)
    listed = json.loads(toolpool("tools", "list", "--json").out)
    assert [(spec.name, spec.digest) for spec in specs] == [
        (tool["name"], tool["digest"]) for tool in listed
    ]
    assert json.loads(toolpool("tools", "export").out) == json.loads(path.read_text())


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["list", "--tools", "absent"], 2, "there is no tools module 'absent'"),
        (["list", "--tools", "absent.py"], 2, "there is no tools file absent.py"),
        (["list", "--tools", "json"], 2, "json has no tools"),
        (["export", "--out", "absent/catalog.json"], 2, "cannot write absent/catalog.json"),
        (["remove", "fs_read"], 2, "no Redis URL"),
        (["show"], 2, "missing argument 'name'"),
    ],
)
def test_what_cannot_work_is_one_line(
    toolpool: Run, arguments: list[str], code: int, complaint: str
) -> None:
    ran = toolpool("tools", *arguments)
    assert ran.code == code
    assert ran.err.startswith("toolpool: ")
    assert complaint in ran.err
    assert ran.err.count("\n") == 1
    assert ran.out == ""

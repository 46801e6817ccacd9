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

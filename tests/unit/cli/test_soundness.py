"""`toolpool tools check`."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.spec import ToolSpec
from tests.unit.cli.conftest import Ran
from toolpool.cli.soundness import Level, check_tool

Run = Callable[..., Ran]

GOOD = '''
from typing import Annotated
from pydantic import Field
from toolpool import tool

@tool
async def {name}(city: Annotated[str, Field(description="Where.", max_length=80)]) -> str:
    """Tell the weather."""
    return city
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current directory whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    known, path = set(sys.modules), list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - known:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith(str(tmp_path)):
            del sys.modules[name]


def spec(schema: dict[str, Any] | None, description: str = "Does it.") -> ToolSpec:
    return ToolSpec(name="t", description=description, input_schema=schema)


def levels(problems: list[Any]) -> dict[str, str]:
    return {problem.message: problem.level.value for problem in problems}


def test_a_good_tool_has_no_problem(toolpool: Run, folder: Path) -> None:
    (folder / "weather_check.py").write_text(GOOD.format(name="weather"))
    ran = toolpool("tools", "check", "--tools", "weather_check.py")
    assert (ran.code, ran.out) == (0, "1 tools, 0 broken, 0 more to look at\n")


def test_every_source_and_module_is_looked_at(toolpool: Run, folder: Path) -> None:
    package = folder / "shop_check"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text(GOOD.format(name="weather"))
    (package / "b.py").write_text(GOOD.format(name="weather"))
    (package / "fails.py").write_text("import nothing_of_this_name\n")
    (package / "plain.py").write_text("x = 1\n")
    (package / "untyped.py").write_text(
        "from toolpool import tool\n@tool\ndef f(x: object.__class__.__mro__): ...\n"
    )
    ran = toolpool("tools", "check", "--json", "--tools", "shop_check", "--tools", "absent.py")
    assert ran.code == 1
    report = json.loads(ran.out)
    broken = {p["where"]: p["message"] for p in report["problems"] if p["level"] == "broken"}
    assert set(broken) == {"shop_check.fails", "shop_check.untyped", "absent.py", "weather"}
    assert "nothing_of_this_name" in broken["shop_check.fails"]
    assert "shop_check.a and shop_check.b" in broken["weather"]
    assert report["ok"] is False
    assert report["tools"] == 1


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "object", "properties": {"a": {"type": "strnig"}}}, "properties.a.type"),
        ({"type": "array"}, "asks for array"),
        ({"$ref": "https://example.com/schema.json"}, "does not compile"),
        ({"properties": {"a": {"$ref": "#/$defs/absent"}}}, "does not compile"),
        ({"$schema": "https://example.com/dialect"}, "no dialect of JSON Schema"),
        ({"properties": {"a": {"type": "string", "pattern": "("}}}, ""),
    ],
)
def test_a_schema_that_cannot_be_used_is_broken(schema: dict[str, Any], message: str) -> None:
    problems = [p for p in check_tool(spec(schema)) if p.level is Level.BROKEN]
    assert len(problems) == 1
    assert message in problems[0].message


@pytest.mark.parametrize(
    "dialect",
    [
        "http://json-schema.org/draft-04/schema#",
        "http://json-schema.org/draft-07/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema",
    ],
)
def test_every_dialect_from_draft_4_on_is_taken(dialect: str) -> None:
    assert check_tool(spec({"$schema": dialect, "type": "object"})) == []


def test_what_a_model_would_miss_is_a_warning_and_no_limits_a_hint() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "b": {"type": "string", "enum": ["x"], "description": "B."},
        },
    }
    assert levels(check_tool(spec(schema, ""))) == {
        "no description: write a docstring for the model": "warning",
        "no description of a: the model sees only the names": "warning",
        "a may be of any length: maxLength sets a limit": "hint",
    }
    assert levels(check_tool(spec(None))) == {
        "no schema: any object is taken as its arguments": "hint"
    }

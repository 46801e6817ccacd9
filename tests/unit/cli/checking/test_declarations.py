"""`toolpool tools check`."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.cli.conftest import Ran
from toolpool.cli.checking.declarations import Level, check_tool
from toolpool.contract.schema.validator import SchemaCache
from toolpool.contract.spec import ToolSpec

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
    assert (ran.code, ran.out) == (0, "1 tool, 0 broken, 0 more to look at\n")


def test_tools_that_the_workers_do_not_take_are_named(toolpool: Run, folder: Path) -> None:
    (folder / "kinds_check.py").write_text(
        GOOD.format(name="there") + GOOD.format(name="here").replace("async def", "def")
    )
    check = ("tools", "check", "--tools", "kinds_check.py")
    assert "--run-in" not in toolpool(*check).out
    assert "--run-in" not in toolpool(*check, "--run-in", "loop,process").out
    ran = toolpool(*check, "--run-in", "loop")
    assert (ran.code, ran.out.count("warning")) == (0, 1)
    assert (
        "here: it runs in process, and a worker with --run-in loop does not take it: declare it "
        "`async def`, or start another with --run-in process"
    ) in " ".join(ran.out.split())
    assert toolpool(*check, "--run-in", "moon").code == 2


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (
            "@tool(effects='wirte')\ndef f(): ...\n",
            "effects is one of 'read', 'write', not 'wirte'",
        ),
        ("@tool(name='task_list')\ndef f(): ...\n", "the pool has a tool of this name"),
        ("class A:\n    @tool\n    def f(self): ...\n", "it is a method of A"),
        (
            "@tool(input_schema={'properties': {'town': {}}})\ndef f(city=''): ...\n",
            "input_schema has 'town', and the function has no parameter of this name",
        ),
    ],
)
def test_a_declaration_that_cannot_be_meant_is_broken(
    toolpool: Run, folder: Path, declared: str, message: str
) -> None:
    (folder / "meant_check.py").write_text(f"from toolpool import tool\n{declared}")
    ran = toolpool("tools", "check", "--json", "--tools", "meant_check.py")
    [problem] = json.loads(ran.out)["problems"]
    assert (ran.code, problem["level"]) == (1, "broken")
    assert message in problem["message"]


def test_a_module_that_fails_is_shown_with_class_file_line_and_text(
    toolpool: Run, folder: Path
) -> None:
    (folder / "fails_check.py").write_text("class Gone(Exception): ...\nraise Gone('no licence')\n")
    said = f"Gone in {folder.resolve() / 'fails_check.py'}, line 2: no licence"
    ran = toolpool("tools", "check", "--json", "--tools", "fails_check.py")
    assert said in json.loads(ran.out)["problems"][0]["message"]
    assert said in toolpool("tools", "list", "--tools", "fails_check.py").err


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
        ({"type": "array"}, "takes no object"),
        ({"anyOf": [{"type": "string"}]}, "takes no object"),
        ({"const": 1}, "takes no object"),
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
    "schema",
    [
        {"type": ["object", "null"], "properties": {}},
        {"type": "OBJECT", "properties": {}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}},
    ],
)
def test_a_schema_that_dispatchers_take_is_not_broken(schema: dict[str, Any]) -> None:
    SchemaCache().validator(spec(schema))
    assert not [p for p in check_tool(spec(schema)) if p.level is Level.BROKEN]


def test_an_output_schema_that_cannot_be_used_is_broken() -> None:
    good = replace(spec({"type": "object"}), output_schema={"type": "array"})
    assert check_tool(good) == []
    for schema, said in (
        ({"type": "strnig"}, "its output schema is not valid JSON Schema: type"),
        ({"$ref": "https://example.com/s.json"}, "its output_schema does not compile"),
    ):
        [problem] = check_tool(replace(good, output_schema=schema))
        assert problem.level is Level.BROKEN
        assert said in problem.message


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


def model(**fields: Any) -> dict[str, Any]:
    properties = {name: {"description": "D.", **field} for name, field in fields.items()}
    return {"type": "object", "properties": properties}


TEXT = {"type": "string"}
SHORT = {"type": "string", "maxLength": 9}


@pytest.mark.parametrize(
    ("field", "paths"),
    [
        (TEXT, "a"),
        (SHORT, None),
        ({"type": "string", "format": "date"}, None),
        ({"type": ["string", "null"]}, "a"),
        ({"anyOf": [TEXT, {"type": "null"}]}, "a"),
        ({"type": "array", "items": TEXT}, "a.*"),
        ({"type": "object", "additionalProperties": TEXT}, "a.*"),
        (model(b=TEXT, c=SHORT), "a.b"),
        ({"$ref": "#/$defs/text"}, "a"),
        ({"$ref": "#/$defs/tree"}, "a.name"),
    ],
)
def test_a_string_without_bounds_is_found_wherever_it_is(
    field: dict[str, Any], paths: str | None
) -> None:
    tree = model(name=TEXT, children={"type": "array", "items": {"$ref": "#/$defs/tree"}})
    schema = {**model(a=field), "$defs": {"text": TEXT, "tree": tree}}
    found = [message.partition(" may be")[0] for message in levels(check_tool(spec(schema)))]
    assert found == ([] if paths is None else [paths])


def test_a_field_without_a_description_is_found_below_others() -> None:
    schema = model(a={"type": "array", "items": {"properties": {"b": {"type": "integer"}}}})
    assert list(levels(check_tool(spec(schema)))) == [
        "no description of a.*.b: the model sees only the names"
    ]
    many = {"properties": {f"f{n}": {"type": "integer"} for n in range(20)}}
    [message] = levels(check_tool(spec(many)))
    assert "f7 and 12 more: the model" in message


A, B = model(x={"type": "integer"}), model(y={"type": "integer"})
C, D = model(kind={"const": "c"}), model(kind={"enum": ["d", "e"]})


@pytest.mark.parametrize(
    ("union", "is_ambiguous"),
    [
        ({"anyOf": [A, B]}, True),
        ({"oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}]}, True),
        ({"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/A"}, B]}}, True),
        ({"anyOf": [C, A]}, True),
        ({"anyOf": [C, D]}, False),
        ({"anyOf": [{"$ref": "#/$defs/C"}, {"$ref": "#/$defs/D"}]}, False),
        ({"anyOf": [A, {"type": "null"}]}, False),
        ({"anyOf": [{"type": "integer"}, {"type": "boolean"}]}, False),
    ],
)
def test_a_union_that_nothing_tells_apart_is_found(
    union: dict[str, Any], is_ambiguous: bool
) -> None:
    """As pydantic writes them, too: by reference."""
    schema = {**model(u=union), "$defs": {"A": A, "B": B, "C": C, "D": D}}
    found = [message for message in levels(check_tool(spec(schema))) if "several kinds" in message]
    assert [message.split()[0] for message in found] == (
        [("u.*" if "items" in union else "u")] if is_ambiguous else []
    )


def test_a_name_that_providers_refuse_is_shown_with_its_way_there_and_back() -> None:
    schema = model(a={"type": "integer"})
    tool = ToolSpec(name="mcp.files/read", description="Read.", input_schema=schema)
    [problem] = check_tool(tool)
    assert problem.level is Level.HINT
    assert problem.message == (
        "anthropic, anthropic_agents, bedrock, cohere, gemini, gemini_interactions, "
        "gemini_live, langchain, ollama, openai_agents, openai_chat, openai_realtime, "
        "openai_responses, pydantic_ai refuse this name: it is offered there as "
        "'mcp_files_read_bfc520', and calls of that are mapped to it"
    )


def test_a_reference_to_elsewhere_says_what_to_do() -> None:
    schema = model(a={"$ref": "https://example.com/a.json"})
    [problem] = check_tool(spec(schema))
    assert problem.message == (
        "its input_schema does not compile: it refers to https://example.com/a.json, and nothing "
        "is fetched; put that under $defs"
    )
    [problem] = check_tool(spec({"properties": {"a": {"type": "strnig"}}}))
    assert "properties.a.type: 'strnig' is not one of ['array', 'boolean'," in problem.message


def test_the_built_in_tools_leave_nothing_to_look_at(toolpool: Run) -> None:
    ran = toolpool("tools", "check")
    assert (ran.code, ran.out) == (0, "8 tools, 0 broken, 0 more to look at\n")

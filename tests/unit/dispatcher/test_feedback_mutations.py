"""Valid calls made wrong on purpose: the class, the path and the hint are right each time."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract.call import ToolCall
from contract.outcome import Code
from contract.result import ToolResult
from contract.schema import SchemaValidator
from contract.shapes import json_type
from contract.spec import ToolSpec, sealed
from dispatcher.catalog import Catalog
from dispatcher.feedback import Wording
from dispatcher.validate import validate

EXAMPLES = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
WRONG: dict[str, Any] = {
    "string": 7,
    "integer": "not a number",
    "number": "not a number",
    "boolean": "not a boolean",
    "array": 7.5,
    "object": 7.5,
}


@cache
def calls(path: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Schema and arguments of every valid call that has arguments; other fields are refused."""
    rows = map(json.loads, path.read_text().splitlines())
    return [
        ({**row["tool"]["input_schema"], "additionalProperties": False}, row["arguments"])
        for row in rows
        if row["valid"] and row["arguments"]
    ]


@pytest.fixture(scope="module")
def valid(shared_data: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return calls(shared_data / "bfcl_calls.jsonl")


def judged(schema: dict[str, Any], arguments: Any, *, repairs: bool = False) -> Any:
    catalog = Catalog()
    catalog.replace([sealed(ToolSpec(name="t", input_schema=schema))])
    call = ToolCall(index=0, id="c", name="t", arguments=arguments)
    return validate(call, catalog.offers, None, Wording(), repairs=repairs)


def rejected(schema: dict[str, Any], arguments: Any) -> str:
    verdict = judged(schema, arguments)
    assert isinstance(verdict, ToolResult)
    assert verdict.code is Code.INVALID_ARGUMENTS
    return str(verdict.error)


def line_of(text: str, path: str) -> str:
    lines = text.partition("Errors: ")[2].split("; ")
    return next(line.removeprefix(f"{path}: ") for line in lines if line.startswith(f"{path}: "))


PICK = st.integers(0, 10**6)


@EXAMPLES
@given(PICK, PICK)
def test_a_dropped_field_is_required(valid: Any, which: int, field: int) -> None:
    schema, arguments = valid[which % len(valid)]
    required = [name for name in schema.get("required", ()) if name in arguments]
    if not required:
        return
    name = required[field % len(required)]
    text = rejected(schema, {key: value for key, value in arguments.items() if key != name})
    assert line_of(text, name).startswith("Required")


@EXAMPLES
@given(PICK, PICK)
def test_a_retyped_field_says_what_was_expected(valid: Any, which: int, field: int) -> None:
    schema, arguments = valid[which % len(valid)]
    name = list(arguments)[field % len(arguments)]
    kind = schema["properties"].get(name, {}).get("type")
    if kind not in WRONG:
        return
    text = rejected(schema, {**arguments, name: WRONG[kind]})
    line = line_of(text, name)
    assert "expected" in line
    assert kind in line or (kind == "object" and "{" in line)
    assert line.endswith(f"got {json_type(WRONG[kind])}")
    assert str(WRONG[kind]) not in line


@EXAMPLES
@given(PICK, PICK, st.sampled_from(["swap", "drop", "double", "camel", "dash"]))
def test_a_misspelt_field_names_the_right_one(
    valid: Any, which: int, field: int, slip: str
) -> None:
    schema, arguments = valid[which % len(valid)]
    name = list(arguments)[field % len(arguments)]
    middle = len(name) // 2
    wrong = {
        "swap": name[: middle - 1] + name[middle] + name[middle - 1] + name[middle + 1 :],
        "drop": name[:middle] + name[middle + 1 :],
        "double": name[:middle] + name[middle] + name[middle:],
        "camel": name.title().replace("_", ""),
        "dash": name.replace("_", "-"),
    }[slip]
    if len(name) < 5 or wrong in schema["properties"] or "." in wrong:
        return
    problems = SchemaValidator(schema).problems(
        {wrong if key == name else key: value for key, value in arguments.items()}
    )
    [found] = [problem for problem in problems if problem.path == (wrong,)]
    assert found.kind == "additionalProperties"
    assert found.closest in {key for key in schema["properties"] if key not in arguments} | {name}
    if len(schema["properties"]) == 1:
        assert found.closest == name


@EXAMPLES
@given(PICK, st.sampled_from(["arguments", "input", "parameters"]))
def test_nested_arguments_are_an_unknown_field_and_missing_ones(
    valid: Any, which: int, holder: str
) -> None:
    schema, arguments = valid[which % len(valid)]
    if holder in schema["properties"]:
        return
    problems = SchemaValidator(schema).problems({holder: arguments})
    assert {problem.kind for problem in problems} <= {"additionalProperties", "required"}
    assert (holder,) in {problem.path for problem in problems}
    missing = {problem.path[0] for problem in problems if problem.kind == "required"}
    assert missing == set(schema.get("required", ()))


@EXAMPLES
@given(PICK, PICK)
def test_a_stringified_field_is_put_right_exactly(valid: Any, which: int, field: int) -> None:
    schema, arguments = valid[which % len(valid)]
    name = list(arguments)[field % len(arguments)]
    value = arguments[name]
    kind = schema["properties"].get(name, {}).get("type")
    if isinstance(value, str) or value is None or kind not in WRONG or kind == "string":
        return
    sent = {**arguments, name: json.dumps(value)}
    assert "expected" in line_of(rejected(schema, sent), name)
    verdict = judged(schema, sent, repairs=True)
    if isinstance(verdict, ToolResult):
        assert isinstance(value, float)  # more digits than are certain
    else:
        assert verdict[0].arguments == arguments
        assert json.dumps(verdict[0].arguments) == json.dumps(arguments) or kind == "number"
        assert f"{name} was" in str(verdict[0].note)

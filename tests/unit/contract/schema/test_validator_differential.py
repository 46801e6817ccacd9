"""jsonschema-rs, which decides, against jsonschema, which is read by everybody (R20)."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jsonschema import validators
from referencing import Registry

from tests.unit.contract.schema.suite import groups
from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.contract.schema.validator import SchemaValidator

# The suite is against jsonschema here, and with us.
WRONG_THERE = {
    (
        "draft2019-09",
        "unevaluatedProperties.json",
        "unevaluatedProperties with adjacent non-bool additionalProperties",
    )
}


def oracle(schema: dict[str, Any]) -> Any:
    return validators.validator_for(schema, validators.Draft202012Validator)(
        schema, registry=Registry()
    )


def differing(schema: dict[str, Any], values: list[Any]) -> Iterator[Any]:
    ours, theirs = SchemaValidator(schema), oracle(schema)
    for value in values:
        try:
            expected = theirs.is_valid(value)
        except re.error:  # the pattern is ECMAScript's, and jsonschema reads it as Python's
            continue
        if (not ours.problems(value)) is not expected:
            yield value


def test_both_say_the_same_of_the_suite(shared_data: Path) -> None:
    """Formats aside, which are asserted here and left to a checker there."""
    found = []
    for group in groups(shared_data):
        if not group.fetches and group.file != "format.json":
            values = [test["data"] for test in group.tests]
            found += [
                (group.draft, group.file, group.name, value)
                for value in differing(group.schema, values)
            ]
    assert {key[:3] for key in found} == WRONG_THERE


def test_both_say_the_same_of_every_bfcl_call(shared_data: Path) -> None:
    for line in (shared_data / "bfcl_calls.jsonl").read_text().splitlines():
        row = json.loads(line)
        schema = row["tool"]["input_schema"]
        validator = oracle(schema)
        assert validator.is_valid(row["arguments"]) is row["valid"]
        problems = SchemaValidator(schema).problems(row["arguments"])
        assert bool(problems) is not row["valid"]
        if problems:
            errors = list(validator.iter_errors(row["arguments"]))
            paths = {tuple(error.absolute_path) for error in errors}
            for problem in problems:
                path = problem.path[:-1] if problem.kind == "required" else problem.path
                assert path in paths


def test_both_refuse_the_same_schemas(shared_data: Path) -> None:
    """Of real servers: every one compiles here, as it does there."""
    for line in (shared_data / "mcp_tools.jsonl").read_text().splitlines():
        schema = json.loads(line)["inputSchema"]
        oracle(schema).check_schema(schema)
        SchemaValidator(schema)
    for broken in ({"type": "objekt"}, {"required": "a"}, {"properties": {"a": 3}}):
        try:
            SchemaValidator(broken)
        except ToolDeclarationInvalid:
            continue
        raise AssertionError(broken)

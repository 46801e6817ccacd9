"""What a rejection says of fields that several parts of a schema speak of at once."""

from typing import Any

import pytest

from toolpool.contract.schema.validator import SchemaValidator
from toolpool.dispatcher.messages import argument_paths, texts
from toolpool.dispatcher.messages.wording import Wording

INTEGER, STRING = {"type": "integer"}, {"type": "string"}


def told(schema: dict[str, Any], sent: Any) -> str:
    validator = SchemaValidator({"type": "object", **schema})
    problems = validator.problems(sent)
    wording = Wording(style="brief")
    return texts.invalid_arguments(problems, wording, validator.shapes, arguments=sent)


MODE = {"properties": {"mode": {"const": "url"}}}
THEN = {"required": ["port"]}


@pytest.mark.parametrize(
    "rule",
    [
        {"if": MODE, "then": THEN},
        {"allOf": [{"if": MODE, "then": THEN}]},
        {"allOf": [{"if": MODE, "else": {}, "then": {"$ref": "#/$defs/then"}}]},
        {"dependentSchemas": {"mode": THEN}},
    ],
)
@pytest.mark.parametrize("is_deep", [False, True])
def test_a_field_that_a_rule_requires_is_described_where_the_object_names_it(
    rule: dict[str, Any], *, is_deep: bool
) -> None:
    schema = {"type": "object", "properties": {"mode": STRING, "port": INTEGER}, **rule}
    sent: Any = {"mode": "url"}
    at = ""
    if is_deep:
        schema, sent, at = {"properties": {"to": schema}}, {"to": sent}, "to."
    text = told({**schema, "$defs": {"then": THEN}}, sent)
    assert text == f"Invalid parameters: {at}port: Required, expected integer"


def test_a_field_of_the_object_around_it_is_another() -> None:
    inner = {"type": "object", "properties": {"mode": STRING}, "if": MODE, "then": THEN}
    schema = {"properties": {"port": INTEGER, "to": inner}}
    assert told(schema, {"to": {"mode": "url"}}) == "Invalid parameters: to.port: Required"


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"a": "x", "b": 1}, "a: expected integer, got string; b: expected string, got integer"),
        ({"a": "x", "b": "y"}, "a: expected integer, got string"),
        ({"a": 1}, "b: Required"),
    ],
)
@pytest.mark.parametrize("is_reference", [False, True])
def test_a_known_field_is_not_called_unknown_because_it_or_another_is_wrong(
    sent: dict[str, Any], expected: str, *, is_reference: bool
) -> None:
    """A part of a schema that does not fit evaluates no field."""
    some = {"properties": {"a": INTEGER, "b": STRING}, "required": ["b"]}
    parts = [{"$ref": "#/$defs/some"}] if is_reference else [some, {"properties": {"c": STRING}}]
    schema = {"allOf": parts, "unevaluatedProperties": False, "$defs": {"some": some}}
    assert told(schema, sent) == f"Invalid parameters: {expected}"
    assert "z: unknown field" in told(schema, {**sent, "z": 1})


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("user.id", '"user.id"'),
        ("", '""'),
        ("a, b", '"a, b"'),
        ('say "hi"', r'"say \"hi\""'),
        ("a.b\n", r'"a.b\n"'),
        ("two words", "two words"),
        ("a-b_c$", "a-b_c$"),
    ],
)
def test_a_name_that_could_be_read_as_a_way_stands_in_quotes(name: str, written: str) -> None:
    inner = {"type": "object", "properties": {name: INTEGER}, "required": [name]}
    assert told(inner, {}) == f"Invalid parameters: {written}: Required, expected integer"
    around = {"properties": {"to": inner}}
    text = f"Invalid parameters: to.{written}: Required, expected integer"
    assert told(around, {"to": {}}) == text


def test_a_pointer_has_escapes_of_its_own() -> None:
    assert argument_paths.several([("a.b", 0, "c/d")], pointer=True) == ["/a.b/0/c~1d"]
    assert argument_paths.several([("a.b", 0), ("a.b", 1)]) == ['"a.b".0…1']

"""Caps hold for the whole text: what one error does not use another may (R23, R52)."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.unit.dispatcher.messages.test_texts import STYLES
from toolpool.contract.call import Flaw
from toolpool.contract.outcome import Code
from toolpool.contract.schema.problem import Problem
from toolpool.contract.schema.validator import SchemaValidator
from toolpool.dispatcher.messages import locales, texts
from toolpool.dispatcher.messages.wording import Caps, Wording

MONTHS = ["January", "February", "March", "April", "May", "June",
          "July", "August", "September", "October", "November", "December"]  # fmt: skip
WIDE: dict[str, Any] = {
    "type": "object",
    "properties": {f"long_field_name_{n}": {"type": "string"} for n in range(1, 9)},
    "required": ["long_field_name_8"],
}
LONG = "a-member-that-is-longer-than-a-line-of-one-hundred-characters-" * 2


def field(schema: dict[str, Any], value: Any, **wording: Any) -> str:
    """What is said about the field `a`, in the shortest style unless another is named."""
    validator = SchemaValidator({"type": "object", "properties": {"a": schema}})
    found = validator.problems({"a": value})
    wording = {"style": "brief", **wording}
    text = texts.invalid_arguments(found, Wording(**wording), validator.shapes)
    return text.removeprefix(Wording(**wording).words.head[wording["style"]])


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"enum": MONTHS}, "Febuary",
         'a: did you mean "February"? expected one of "January", "February", "March", "April", '
         '"May", "June", "July", "August", "September", "October", "November", "December", '
         "got another string"),
        ({"enum": [LONG]}, 1, f'a: expected string, one of "{LONG}", got integer'),
        ({"pattern": f"^{LONG}{LONG}$"}, "x", f"a: expected text matching ^{LONG}{LONG}$"),
        ({"type": "array", "items": {"type": "string"}}, "x, y",
         "a: expected array of string, got string that holds a list, send an array"),
        ({"type": "array", "items": {"enum": ["x"]}}, "[x]",
         'a: expected array ["x"], got string that holds an array, send it without quotes'),
        ({"type": "object", "required": ["b"]}, "{'b': 1}",
         "a: expected object {b: any, ...}, got string that holds an object, "
         "send it without quotes"),
        ({"type": ["array", "string"]}, 1, "a: expected string or array, got integer"),
    ],
)  # fmt: skip
def test_what_is_expected_has_the_room_that_there_is(
    schema: dict[str, Any], value: Any, expected: str
) -> None:
    assert field(schema, value) == expected


def test_a_long_list_is_cut_where_there_is_no_room_and_what_came_is_still_said() -> None:
    months = Problem(("a",), "enum", "string", "string", tuple(f'"{m}"' for m in MONTHS))
    wording = Wording(Caps(characters=80, shape_characters=100), style="brief")
    assert texts.invalid_arguments([months], wording) == (
        'Invalid parameters: a: expected one of "January", "February", "March", …, got another '
        "string"
    )


def test_a_short_error_leaves_its_room_to_a_long_one() -> None:
    months = Problem(("month",), "enum", "string", "string", tuple(f'"{m}"' for m in MONTHS))
    short = Problem(("day",), "type", "integer", "string")
    wording = Wording(Caps(characters=100, shape_characters=180), style="brief")
    assert texts.invalid_arguments([short, months], wording) == (
        "Invalid parameters: day: expected integer, got string; "
        'month: expected one of "January", "February", "March", "April", "May", "June", "July", '
        '"August", …, '
        "got another string"
    )


def test_one_fault_in_many_items_is_one_line() -> None:
    """R52."""
    item = {"type": "object", "properties": {"qty": {"type": "integer"}}}
    schema = {"type": "array", "items": item}
    wrong, right = {"qty": "1"}, {"qty": 1}
    got = "qty: expected integer, got string"
    assert field(schema, [wrong] * 5) == f"a.0…4.{got}"
    assert field(schema, [wrong, right, wrong, wrong]) == f"a.0,2…3.{got}"
    assert field(schema, [wrong] * 5, style="pointer") == "- /a/0…4/qty: must be integer"
    assert field(schema, [wrong, {"qty": None}]) == (
        f"a.0.{got}; a.1.qty: expected integer (or leave it out), got null"
    )


def test_many_empty_fields_are_one_line() -> None:
    names = [f"filter_{n}" for n in range(12)]
    kinds = ["string", "integer", "number", "boolean"]
    schema = {"properties": {name: {"type": kinds[n % 4]} for n, name in enumerate(names)}}
    validator = SchemaValidator(schema)
    found = validator.problems(dict.fromkeys(names))
    text = texts.invalid_arguments(found, shapes=validator.shapes)
    assert text == (
        "Please rewrite the tool input with valid arguments. Errors: filter_0, filter_1, filter_2, "
        "filter_3, filter_4, filter_5, filter_6, filter_7, filter_8, filter_9, filter_10, "
        "filter_11: null is not accepted, leave it out"
    )


def test_unknown_fields_share_one_list() -> None:
    schema = {"additionalProperties": False, "properties": {}}
    validator = SchemaValidator(schema)
    found = validator.problems({"verbose": 1, "debug": 2})
    assert texts.invalid_arguments(found, shapes=validator.shapes) == (
        "Please rewrite the tool input with valid arguments. Errors: verbose, debug: unknown "
        "field, leave it out"
    )


def test_a_shape_that_has_no_room_keeps_what_is_required() -> None:
    schema = {"type": "object", "properties": {"a": WIDE}, "required": ["a"]}
    validator = SchemaValidator(schema)
    found = validator.problems({"a": {"b": 1}})
    wording = Wording(Caps(characters=150, shape_characters=200))
    text = texts.invalid_arguments(found, wording, validator.shapes)
    assert text == (
        "Please rewrite the tool input with valid arguments. Errors: a.long_field_name_8: Required"
    )
    closed = SchemaValidator({**schema, "additionalProperties": False})
    text = texts.invalid_arguments(closed.problems({"b": 1}), wording, closed.shapes)
    assert text.endswith("Expected arguments: {a: {long_field_name_8: string, …, ...}}")
    assert len(text) <= 200


def test_a_problem_is_one_line_whatever_the_model_sent() -> None:
    schema = {"additionalProperties": False, "properties": {}}
    text = texts.invalid_arguments(SchemaValidator(schema).problems({"a\n- b\u2028": 1}))
    assert text.endswith("Errors: a\\n- b\\u2028: unknown field, leave it out")
    assert texts.unknown_tool("fs\nread", []).startswith("Tool 'fs\\nread' not found.")
    flaw = Flaw(Code.UNPARSEABLE, "not_json.value", {"at": 1, "of": 9, "near": "{\n\t'x"})
    assert texts.flawed(flaw).startswith(
        "The arguments are not valid JSON: a value is missing, or has no double quotes, at "
        "character 1 of 9, near `{\\n\\t'x`."
    )


def test_a_deep_path_keeps_its_ends() -> None:
    path = ("orders", 12, *["an_inner_object_with_a_long_name"] * 6, "limit")
    text = texts.invalid_arguments([Problem(path, "type", "number", "string")])
    assert text.endswith("Errors: " + ".".join(map(str, path)) + ": expected number, got string")
    caps = Caps(characters=80, shape_characters=160)
    text = texts.invalid_arguments([Problem(path, "type", "number", "string")], Wording(caps))
    assert text.endswith(
        "Errors: orders.12.an_inn…ner_object_with_a_long_name.limit: expected number, got string"
    )


@given(
    st.lists(
        st.builds(
            Problem,
            st.lists(st.text(max_size=60) | st.integers(0, 100), max_size=8).map(tuple),
            st.sampled_from(["type", "required", "additionalProperties", "pattern", "anyOf"]),
            st.text(max_size=300),
            st.just("string"),
            st.lists(st.text(max_size=70), max_size=5).map(tuple),
            st.none() | st.text(max_size=60),
            st.none() | st.text(max_size=300),
        ),
        min_size=1,
        max_size=9,
    ),
    st.sampled_from(STYLES),
    st.sampled_from(locales.names()),
    st.integers(80, 400),
)
def test_no_text_is_longer_than_its_cap(
    problems: list[Problem], style: str, locale: str, characters: int
) -> None:
    wording = Wording(Caps(characters=80, shape_characters=characters), locale, style)
    assert len(texts.invalid_arguments(problems, wording)) <= characters


@given(
    st.dictionaries(st.text(max_size=12), st.none() | st.integers() | st.text(), max_size=12),
    st.sampled_from(STYLES),
    st.integers(160, 400),
)
def test_no_text_with_a_shape_is_longer_than_its_cap(
    arguments: dict[str, Any], style: str, characters: int
) -> None:
    schema = {
        "type": "object",
        "properties": {"a": WIDE, "b": {"enum": MONTHS}, "c": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    validator = SchemaValidator(schema)
    found = validator.problems(arguments)
    wording = Wording(Caps(characters=120, shape_characters=characters), style=style)
    assert len(texts.invalid_arguments(found, wording, validator.shapes)) <= characters

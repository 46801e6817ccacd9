"""What is expected is shortened so that what came has room: exact text (R23, R25)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.dispatcher.words.test_feedback import STYLES
from toolpool.contract.call import Flaw
from toolpool.contract.outcome import Code
from toolpool.contract.schema.problem import Problem
from toolpool.contract.schema.validator import SchemaValidator
from toolpool.dispatcher.words import feedback, locales
from toolpool.dispatcher.words.wording import Caps, Wording

WIDE: dict[str, Any] = {
    "type": "object",
    "properties": {f"long_field_name_{n}": {"type": "string"} for n in range(1, 9)},
}
CARD: dict[str, Any] = {"type": "object", "properties": {"number_of_the_card": {"type": "string"}}}
LONG = "a-member-that-is-longer-than-a-line-of-one-hundred-characters-" * 2
MEMBER = LONG[:63]


def field(schema: dict[str, Any], value: Any, **wording: Any) -> str:
    """The line about the field `a`, in the pinned style unless another is named."""
    problems = SchemaValidator({"type": "object", "properties": {"a": schema}}).problems(
        {"a": value}
    )
    text = feedback.invalid_arguments(problems, Wording(style="brief", **wording))
    return text.removeprefix(Wording(**wording).words.head["brief"])


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        (WIDE, 1.5,
         "a: expected object {long_field_name_1: string, long_field_name_2: string, …}, "
         "got number"),
        ({"type": "array", "items": WIDE}, "x",
         "a: expected array of {long_field_name_1: string, long_field_name_2: string, …}, "
         "got string"),
        ({"type": "object", "properties": {"b": WIDE, "c": {"type": "integer"}}}, 1,
         "a: expected object {b: {long_field_name_1: string, long_field_name_2: string, …}, …}, "
         "got integer"),
        ({"type": "object", "properties": {"x": {"enum": ["a, {", "b"]}, "y": CARD, "z": WIDE}}, 1,
         'a: expected object {x: one of "a, {", "b", y: {number_of_the_card: string}, …}, '
         "got integer"),
        ({"enum": [LONG]}, 1,
         'a: expected string, one of "a-member-that-is-longer-than-a-line-of-one-hundred-charact…, '
         "got integer"),
        ({"enum": [LONG, "b"]}, "x",
         'a: expected one of "a-member-that-is-longer-than-a-line-of-one-hundred-chara…, …, '
         "got another string"),
        ({"enum": [MEMBER, "b"]}, MEMBER[:-1],
         'a: did you mean "a-member-that-is-longer-than-a-line-of-one…"? expected one of …, '
         "got another string"),
        ({"anyOf": [WIDE, CARD]}, 1,
         "a: expected {long_field_name_1: string, long_field_name_2: string, …} or …, "
         "got integer"),
        ({"anyOf": [CARD, {"type": "string"}, WIDE]}, 1,
         "a: expected {number_of_the_card: string} or string or …, got integer"),
        ({"anyOf": [{"type": "object", "properties": {"k": {"const": "x|y"}}}, CARD]}, 1,
         'a: expected {k: "x|y"} or {number_of_the_card: string}, got integer'),
    ],
)  # fmt: skip
def test_what_came_is_always_said(schema: dict[str, Any], value: Any, expected: str) -> None:
    said = field(schema, value)
    assert said == expected
    assert len(said) <= 100


def test_a_shape_is_shortened_in_chinese_too() -> None:
    assert field(WIDE, 1, locale="zh") == (
        "a: 应为 object {long_field_name_1: string, long_field_name_2: string, …}，实际为 integer"
    )


def test_an_optional_object_is_no_null() -> None:
    """The alternatives of a field of a shape are looked up where they are only referred to."""
    options = {"anyOf": [{"$ref": "#/$defs/range"}, {"type": "null"}]}
    schema = {
        "properties": {"a": {"type": "object", "properties": {"range": options}}},
        "$defs": {"range": {"properties": {"start": {"type": "integer"}}}},
    }
    [problem] = SchemaValidator(schema).problems({"a": 1})
    assert problem.shape == "{range: object or null}"


def test_a_schema_that_is_its_own_alternative_has_a_shape() -> None:
    schema = {
        "properties": {"a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}}},
        "$defs": {"b": {"anyOf": [{"$ref": "#/$defs/b"}, {"type": "string"}]}},
    }
    [problem] = SchemaValidator(schema).problems({"a": 1})
    assert problem.shape == "{b: string}"


def test_a_list_of_fields_ends_with_a_whole_name() -> None:
    schema = {**WIDE, "additionalProperties": False}
    text = feedback.invalid_arguments(SchemaValidator(schema).problems({"zz": 1}))
    assert text.endswith(
        "zz: unknown field; allowed: long_field_name_1, long_field_name_2, long_field_name_3, …"
    )


def test_a_problem_is_one_line_whatever_the_model_sent() -> None:
    schema = {"additionalProperties": False, "properties": {}}
    text = feedback.invalid_arguments(SchemaValidator(schema).problems({"a\n- b\u2028": 1}))
    assert text.endswith("Errors: a\\n- b\\u2028: unknown field, leave it out")
    assert feedback.unknown_tool("fs\nread", []).startswith("Tool 'fs\\nread' not found.")
    flaw = Flaw(Code.UNPARSEABLE, "not_json.value", {"at": 1, "of": 9, "near": "{\n\t'x"})
    assert feedback.flawed(flaw).startswith(
        "The arguments are not valid JSON: a value is missing, or has no double quotes, at "
        "character 1 of 9, near `{\\n\\t'x`."
    )


def test_a_deep_path_keeps_its_ends() -> None:
    path = ("orders", 12, *["an_inner_object_with_a_long_name"] * 6, "limit")
    text = feedback.invalid_arguments([Problem(path, "type", "number", "string")])
    assert text.endswith(
        "Errors: orders.12.an_inn…ner_object_with_a_long_name.limit: expected number, got string"
    )


@given(
    st.text(st.sampled_from('abc{}", |'), max_size=60),
    st.lists(st.sampled_from(["x", '"a, b"', '"{"', "{y: z, u: v}", "array of w"]), max_size=6),
    st.integers(3, 60),
)
def test_a_shortened_text_has_room(text: str, types: list[str], characters: int) -> None:
    for whole in (text, "{" + ", ".join(f"f{n}: {t}" for n, t in enumerate(types)) + "}"):
        short = shortened(whole, characters)
        assert len(short) <= characters
        assert short == whole or "…" in short


@given(
    st.lists(st.text(max_size=60) | st.integers(0, 100), max_size=8).map(tuple),
    st.sampled_from(["type", "enum", "required", "additionalProperties", "pattern", "anyOf"]),
    st.lists(st.text(max_size=70), min_size=1, max_size=5),
    st.sampled_from(STYLES),
    st.sampled_from(locales.names()),
    st.integers(40, 140),
)
def test_no_line_is_longer_than_its_cap(
    path: tuple[str | int, ...],
    kind: str,
    said: list[str],
    style: str,
    locale: str,
    characters: int,
) -> None:
    shape = "{" + ", ".join(f"{name}: string" for name in said) + "}"
    problem = Problem(
        path, kind, "|".join(said), "string", tuple(said), said[0] or None, shape, len(said)
    )
    wording = Wording(Caps(characters=characters), locale, style)
    text = feedback.invalid_arguments([problem], wording)
    line = text.removeprefix(wording.words.head[style]).removesuffix(wording.words.tail[style])
    assert len(line.removeprefix("1. ").removeprefix("- ")) <= characters

"""The rejection is enough: errors first, then the shape of the part that is off (R52)."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.dispatcher.messages.test_texts import errors, rejected
from toolpool.contract.schema.validator import SchemaValidator
from toolpool.dispatcher.messages import texts
from toolpool.dispatcher.messages.wording import Caps, Wording

STRING = {"type": "string"}


def closed(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


LINE = closed(
    {"sku": STRING, "qty": {"type": "integer", "minimum": 1}, "unit": {"enum": ["kg", "lb"]}},
    "sku",
    "qty",
)
AIR = closed({"mode": {"const": "AIR"}, "awb": STRING}, "mode", "awb")
SEA = closed({"mode": {"const": "SEA"}, "port": STRING}, "mode", "port")
ORDER = closed(
    {
        "title": STRING,
        "limit": {"type": "integer"},
        "lines": {"type": "array", "items": LINE},
        "ship": {"oneOf": [AIR, SEA]},
        "pay": {"anyOf": [closed({"iban": STRING}, "iban"), closed({"card": STRING}, "card")]},
    },
    "title",
)
LINES_SHAPE = '{sku: string, qty: integer 1.., unit?: "kg"|"lb"}'
SHIP_SHAPE = '{mode: "AIR", awb: string} | {mode: "SEA", port: string}'
ORDER_SHAPE = (
    f"{{title: string, limit?: integer, lines?: [{LINES_SHAPE}], ship?: {SHIP_SHAPE}, "
    "pay?: {iban: string} | {card: string}}"
)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        # the errors say everything: no shape
        ({}, "title: Required"),
        ({"title": "x", "lines": [{"sku": "a", "qty": "1"}] * 5},
         "lines.0…4.qty: expected integer, got string"),
        ({"title": "x", "lines": [{"sku": "a"}]}, "lines.0.qty: Required, expected integer 1.."),
        ({"titel": "x"}, "titel: unknown field, did you mean 'title'?"),
        ({"title": "x", "ship": {"mode": "AIR", "awb": 1}},
         "ship.awb: expected string, got integer"),
        ({"title": "x", "ship": {"mode": "aie", "awb": "1"}},
         'ship.mode: expected one of the values below. Expected ship: ' + SHIP_SHAPE),
        ({"title": "x", "ship": {"mode": "air", "awb": "1"}},
         'ship.mode: did you mean "AIR"? expected one of "AIR", "SEA", got another string'),
        ({"title": "x", "lines": "a; b"},
         f"lines: expected array [{LINES_SHAPE}], got string that holds a list, send an array"),
        ({"title": "x", "ship": "AIR"}, f"ship: expected {SHIP_SHAPE}, got string"),
        # a name is unknown: the smallest part that holds it
        ({"title": "x", "lines": [{"sku": "a", "amount": 1}]},
         "lines.0.qty: Required; lines.0.amount: unknown field. "
         f"Expected lines.0: {LINES_SHAPE}"),
        ({"title": "x", "lines": [{"sku": "a", "amount": 1}, {"sku": "b", "quantity": 2}]},
         "lines.0…1.qty: Required; lines.0.amount, lines.1.quantity: unknown field. "
         f"Expected lines.0…1: {LINES_SHAPE}"),
        # a branch that is certain by its tag, and a union where none is
        ({"title": "x", "ship": {"mode": "SEA", "harbour": "X"}},
         "ship.port: Required; ship.harbour: unknown field. "
         'Expected ship: {mode: "SEA", port: string}'),
        ({"title": "x", "ship": {"kind": "AIR"}},
         f"ship.mode: Required; ship.kind: unknown field. Expected ship: {SHIP_SHAPE}"),
        ({"title": "x", "ship": {}}, f"ship.mode: Required. Expected ship: {SHIP_SHAPE}"),
        ({"title": "x", "pay": {"bank": "1"}},
         "pay.bank: unknown field. Expected pay: {iban: string} | {card: string}"),
        ({"title": "x", "pay": {}},
         "pay: expected {iban: string} | {card: string}, got another object"),
        # two parts, each on its own where that is shorter
        ({"title": "x", "ship": {"mode": "SEA", "harbour": "X"}, "pay": {"bank": "1"}},
         "ship.port: Required; ship.harbour, pay.bank: unknown field. "
         'Expected ship: {mode: "SEA", port: string}; pay: {iban: string} | {card: string}'),
        # the whole, and nothing beside it that it says as well
        ({"name": "x", "rows": []}, f"Expected arguments: {ORDER_SHAPE}"),
    ],
)  # fmt: skip
def test_the_errors_and_the_shape_of_what_is_off(arguments: Any, expected: str) -> None:
    assert errors(ORDER, arguments) == expected


LEAF = {"field": STRING, "op": {"enum": ["eq", "lt"]}}
CARD = {"number": STRING, "network": {"enum": ["visa", "amex"]}}
UNTAGGED: list[tuple[list[dict[str, Any]], dict[str, Any], str]] = [
    # a field with listed values in one branch only is no tag
    ([closed(LEAF, *LEAF), closed({"and": {"type": "array"}}, "and")], {"field": "a", "op": "gt"},
     'a.op: expected one of "eq", "lt", got another string'),
    ([{**closed(LEAF, *LEAF), "additionalProperties": True}, {"required": ["and"]}],
     {"field": "a", "op": "gt"}, 'a.op: expected one of "eq", "lt", got another string'),
    ([{"properties": CARD, "required": ["number", "network"]}, {"required": ["iban"]}],
     {"number": "1", "network": "Visa"},
     'a.network: did you mean "visa"? expected one of "visa", "amex", got another string'),
    # values that two branches share are no tag either
    ([closed({"k": {"enum": ["a", "b"]}, "x": STRING}, "k", "x"),
      closed({"k": {"enum": ["b", "c"]}, "y": STRING}, "k", "y")], {"k": "b"},
     'a: expected {k: "a"|"b", x: string} | {k: "b"|"c", y: string}, got another object'),
    # a tag is a value of any type
    ([closed({"v": {"const": 1}, "x": STRING}, "v", "x"),
      closed({"v": {"const": 2}, "y": STRING}, "v", "y")], {"v": 2, "x": ""},
     'a.y: Required; a.x: unknown field. Expected a: {v: 2, y: string}'),
    # other listed values of another branch are not those of this one
    ([closed({"kind": {"const": "A"}, "unit": {"enum": ["kg", "lb"]}}, "kind", "unit"),
      closed({"kind": {"const": "B"}, "unit": {"enum": ["m", "ft"]}}, "kind", "unit")],
     {"kind": "A", "unit": "KG"},
     'a.unit: did you mean "kg"? expected one of "kg", "lb", got another string'),
    # what one alternative lacks is not required
    ([{"properties": {"mail": STRING}, "required": ["mail"]},
      {"properties": {"phone": STRING, "land": STRING}, "required": ["phone", "land"]}],
     {"phone": "1"},
     "a: expected {mail: string, ...} | {phone: string, land: string, ...}, got another object"),
]  # fmt: skip


@pytest.mark.parametrize(("branches", "sent", "expected"), UNTAGGED)
def test_a_branch_is_explained_only_where_it_was_certainly_meant(
    branches: list[dict[str, Any]], sent: dict[str, Any], expected: str
) -> None:
    schema = closed({"a": {"anyOf": [{"type": "object", **branch} for branch in branches]}})
    assert errors(schema, {"a": sent}) == expected


@pytest.mark.parametrize(
    ("branches", "sent", "expected"),
    [
        ([{"type": "string", "enum": ["open", "shipped"]}, {"type": "null"}], "Open",
         'did you mean "open"? expected one of "open", "shipped", null, got another string'),
        ([{"enum": ["open", "shipped"]}, {"type": "null"}], "closed",
         'expected one of "open", "shipped", null, got another string'),
        ([{"const": "auto"}, {"type": "string", "pattern": "^[0-9]+px$"}], "Auto",
         'did you mean "auto"? expected "auto" | /^[0-9]+px$/, got another string'),
        ([{"const": "auto"}, {"type": "integer", "minimum": 1}], "Auto",
         'did you mean "auto"? expected "auto" | integer 1.., got another string'),
        ([{"const": "auto"}, {"type": "integer", "minimum": 1}], 0,
         "expected a number of at least 1"),
        ([{"const": "S"}, {"const": "M"}], "s",
         'did you mean "S"? expected one of "S", "M", got another string'),
        ([{"const": "S"}, {"const": "M"}], 1, 'expected "S"|"M", got integer'),
        ([{"const": f"c{n}"} for n in range(250)], "C249",
         'did you mean "c249"? expected one of "c0", "c1", '),
    ],
)  # fmt: skip
def test_listed_values_of_all_branches_are_told(
    branches: list[dict[str, Any]], sent: Any, expected: str
) -> None:
    text = errors({"type": "object", "properties": {"a": {"anyOf": branches}}}, {"a": sent})
    assert text.startswith(f"a: {expected}")


@pytest.mark.parametrize("count", [25, 150])
def test_no_unknown_field_is_passed_over(count: int) -> None:
    schema = closed({"a": STRING})
    problems = SchemaValidator(schema).problems({f"k{n}": 1 for n in range(count)})
    assert [problem.path for problem in problems] == [(f"k{n}",) for n in range(count)]


@pytest.mark.parametrize("count", [201, 1_000, 2_500])
@pytest.mark.parametrize(
    ("style", "locale", "told"),
    [
        ("default", "en", "k0, k1, k2, {more} more: unknown field, leave it out"),
        ("numbered", "en", "1. Field 'k0, k1, k2, {more} more' is not known, leave it out"),
        ("pointer", "en", "- /k0, /k1, {more} more: must not be present, leave it out"),
        ("brief", "zh", "k0, k1, k2, {more} 个: 未知字段"),
    ],
)
def test_of_very_many_unknown_fields_the_first_are_told_and_how_many_more(
    count: int, style: str, locale: str, told: str
) -> None:
    sent = {"a": "x", **{f"k{n}": 1 for n in range(count)}}
    text = rejected(closed({"a": STRING}), sent, style=style, locale=locale)
    first, more = told.split("{more}")
    assert first.rstrip(", ") in text
    assert more.partition(":")[0] in text
    [(last, left)] = re.findall(r"k(\d+)(?: and|\s?等，另有) (\d+) ", text)
    assert int(last) + 1 + int(left) == count


def test_of_unknown_fields_in_several_places_all_are_counted() -> None:
    line = closed({"a": STRING})
    schema = closed({"b": {"type": "array", "items": line}})
    sent = {"b": [{f"a_long_name_{n}": 1 for n in range(20)}] * 5}
    assert errors(schema, sent).startswith(
        "b.0…4.a_long_name_0, b.0…4.a_long_name_1, b.0…4.a_long_name_2, b.0…4.a_long_name_3 "
        "and 80 more: unknown field"
    )
    union = {"anyOf": [closed({"a": STRING}, "a"), closed({"c": STRING}, "c")]}
    text = errors(closed({"u": union}), {"u": {f"k{n}": 1 for n in range(500)}})
    [(last, left)] = re.findall(r"u.k(\d+) and (\d+) more: unknown field", text)
    assert int(last) + 1 + int(left) == 500


BASE = {"type": "object", "properties": {"id": STRING}, "required": ["id"]}


@pytest.mark.parametrize(
    ("schema", "arguments", "expected"),
    [
        ({"type": "object", "patternProperties": {"^[A-Z_]+$": STRING},
          "additionalProperties": False},
         {"path": "x"}, "path: unknown field. Expected arguments: {[key /^[A-Z_]+$/]: string}"),
        ({"allOf": [BASE], "properties": {"b": STRING}, "unevaluatedProperties": False},
         {"id": "1", "b": "x", "c": 2}, "c: unknown field. Expected arguments: "),
        (closed({"a": STRING}), {"a": "x", "c": 2}, "c: unknown field, leave it out"),
        ({**closed({"a": STRING}), "allOf": [BASE]}, {"a": "x", "id": "1"},
         "id: unknown field, leave it out"),
    ],
)  # fmt: skip
def test_a_field_is_to_be_left_out_only_where_no_other_name_is_taken(
    schema: dict[str, Any], arguments: dict[str, Any], expected: str
) -> None:
    assert errors(schema, arguments).startswith(expected)


TENANT = {
    "type": "object",
    "properties": {"tenant": STRING, "q": STRING},
    "required": ["tenant", "q"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "schema",
    [
        TENANT,
        {"$ref": "#/$defs/a", "$defs": {"a": TENANT}},
        {"$ref": "#/$defs/a", "type": "object", "$defs": {"a": TENANT}},
        {"type": "object", "allOf": [TENANT]},
        {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": TENANT}},
        {"type": "object", "anyOf": [TENANT, closed({"r": STRING}, "r")]},
        {"oneOf": [{"$ref": "#/$defs/a"}, closed({"r": STRING}, "r")], "$defs": {"a": TENANT}},
        {"anyOf": [{"oneOf": [TENANT, closed({"r": STRING}, "r")]}, {"type": "null"}]},
        {**TENANT, "anyOf": [{"required": ["tenant"]}, {"required": ["q"]}]},
        {**TENANT, "not": {"required": ["tenant", "zz"]}},
        {**TENANT, "if": {"required": ["tenant"]}, "then": {"required": ["q"]}},
        {**TENANT, "dependentRequired": {"q": ["tenant"], "zz": ["tenant"], "tenant": ["q"]}},
        {**TENANT, "dependentSchemas": {"tenant": {"required": ["q"]}}},
        {**TENANT, "propertyNames": {"enum": ["tenant", "q", "query"]}},
    ],
)
def test_no_shape_tells_of_a_hidden_field(schema: dict[str, Any]) -> None:
    validator = SchemaValidator(schema)
    problems = validator.problems({"tenant": "t", "query": "x"})
    text = texts.invalid_arguments(problems, Wording(), validator.shapes, ["tenant"])
    assert "{q: string}" in text
    assert "Expected" in text
    assert "tenant" not in text


@pytest.mark.parametrize(
    ("schema", "arguments", "expected"),
    [
        ({**closed({"a": STRING, "b": STRING}), "minProperties": 1}, {},
         "expected at least 1 fields. Expected arguments: {a?: string, b?: string} 1.."),
        ({**closed({"a": STRING, "b": STRING}), "not": {"required": ["a", "b"]}},
         {"a": "x", "b": "y"},
         "expected another value: this one is excluded. Expected arguments: "),
        ({"type": "object", "properties": {"a": {"contains": {"const": "x"}, "type": "array"}}},
         {"a": ["y"]},
         "a: expected an array with the wanted number of items of the wanted kind. "
         'Expected a: array containing ("x")'),
        ({"type": "object", "properties": {"a": {"prefixItems": [STRING], "type": "array",
          "unevaluatedItems": False}}}, {"a": ["y", 1]},
         "a: expected fewer items. Expected a: [string, ...nothing] 0.."),
        ({"type": "object", "propertyNames": {"maxLength": 2}}, {"abc": 1},
         "expected other field names. Expected arguments: object keys (string ..2 chars)"),
        ({"allOf": [BASE], "type": "object", "unevaluatedProperties": False}, {"id": "1", "c": 2},
         "c: unknown field. Expected arguments: (object & {id: string, ...}) with no other fields"),
        ({"oneOf": [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}]},
         {"a": "x", "b": "y"},
         "fits more than one alternative, leave out what belongs to only one of them. "
         "Expected arguments: exactly one of ({a: any, ...} | {b: any, ...})"),
    ],
)  # fmt: skip
def test_the_shape_says_what_a_rule_about_the_whole_leaves_open(
    schema: dict[str, Any], arguments: dict[str, Any], expected: str
) -> None:
    assert errors(schema, arguments).startswith(expected)


def test_none_of_the_alternatives_of_the_arguments_themselves_is_required() -> None:
    schema = closed({"id": STRING, "name": STRING, "n": {"type": "integer"}})
    schema["anyOf"] = [{"required": ["id"]}, {"required": ["name"]}]
    assert errors(schema, {"n": 1}) == (
        "expected one of the values below. Expected arguments: "
        "{id?: string, name?: string, n?: integer} & ({id: any, ...} | {name: any, ...})"
    )


STYLED = {
    ("numbered", "en"): (
        "Parameter validation failed:\n"
        "1. Field 'ship.port' is required but missing\n"
        "2. Field 'ship.harbour' is not known\n"
        'Expected ship: {mode: "SEA", port: string}\n'
        "Please fix the parameters and try again."
    ),
    ("pointer", "en"): (
        "Validation failed:\n"
        "- /ship/port: must be present\n"
        "- /ship/harbour: must not be present\n"
        'Expected /ship: {mode: "SEA", port: string}'
    ),
    ("brief", "en"): (
        "Invalid parameters: ship.port: Required; ship.harbour: unknown field. "
        'Expected ship: {mode: "SEA", port: string}'
    ),
    ("default", "zh"): (
        "请使用有效参数重写工具输入。错误：ship.port: 必填; ship.harbour: 未知字段。"
        '应为 ship: {mode: "SEA", port: string}'
    ),
    ("numbered", "zh"): (
        "参数校验失败：\n"
        "1. 字段 'ship.port' 为必填项，但缺失\n"
        "2. 字段 'ship.harbour' 不是已知字段\n"
        '应为 ship: {mode: "SEA", port: string}\n'
        "请修正参数后重试。"
    ),
}


@pytest.mark.parametrize(("style", "locale"), STYLED)
def test_a_shape_in_every_layout(style: str, locale: str) -> None:
    arguments = {"title": "x", "ship": {"mode": "SEA", "harbour": "X"}}
    text = rejected(ORDER, arguments, style=style, locale=locale)
    assert text == STYLED[style, locale]


def test_more_errors_than_are_told_are_in_the_shape() -> None:
    """After one rejection nothing may be wrong that was not said."""
    kinds = ["integer", "boolean", "array", "object", "number", "null", "integer"]
    schema = closed({f"f{n}": {"type": kind} for n, kind in enumerate(kinds)})
    text = errors(schema, {f"f{n}": "x" for n in range(7)})
    assert text.endswith(
        ". Expected arguments: {f0?: integer, f1?: boolean, f2?: array, f3?: object, "
        "f4?: number, f5?: null, f6?: integer}"
    )


def test_what_was_sent_right_is_not_said_again_where_the_rest_is_a_near_miss() -> None:
    fields = {f"a_field_with_quite_a_long_name_{n}": STRING for n in range(8)}
    schema = closed({**fields, "sort": {"enum": ["up", "down"]}})
    assert errors(schema, {**dict.fromkeys(fields, "x"), "order": "up"}) == (
        'order: unknown field. Expected arguments: {…, sort?: "up"|"down"}'
    )


def test_the_caps_are_settings() -> None:
    text = rejected(ORDER, {"name": "x"}, caps=Caps(characters=100, shape_characters=200))
    assert len(text) <= 200
    assert "title: string" in text
    assert "…" in text


def test_a_value_that_cannot_be_explained_is_answered_with_the_shape() -> None:
    node = closed(
        {"op": {"enum": ["x", "y"]}, "of": {"type": "array", "items": {"$ref": "#/$defs/c"}}},
        "op",
        "of",
    )
    branches = [{**node, "properties": {**node["properties"], f"f{n}": {}}} for n in range(6)]
    schema = {
        **closed({"c": {"$ref": "#/$defs/c"}}, "c"),
        "$defs": {"c": {"anyOf": [{"type": "string"}, *branches]}},
    }
    value: Any = 3
    for _ in range(5):
        value = {"op": "x", "of": [value, "a"]}
    text = errors(schema, {"c": value})
    assert text.startswith("expected another value: this one does not fit the tool's schema. ")
    assert 'Expected arguments: {c: C} where C = string | {op: "x"|"y", of: [C], f0?: any}' in text


def always_asked_for(node: Any, root: Any, seen: tuple[int, ...] = ()) -> Iterator[str]:
    """Names and values that every call, or every call that takes a branch, has to have."""
    while isinstance(node, dict) and "$ref" in node:
        node = root["$defs"][node["$ref"].rpartition("/")[2]]
    if not isinstance(node, dict) or id(node) in seen:
        return
    seen = (*seen, id(node))
    for value in [*node.get("enum", []), *([node["const"]] if "const" in node else [])]:
        yield json.dumps(value)
    for name in node.get("required", []):
        yield name
        yield from always_asked_for(node.get("properties", {}).get(name), root, seen)
    inner = [node.get("items"), node.get("additionalProperties")]
    for each in (*inner, *node.get("oneOf", []), *node.get("anyOf", [])):
        yield from always_asked_for(each, root, seen)


def test_a_blind_call_gets_the_whole_shape(shared_data: Path) -> None:
    """Of 16 tools that nobody knows: every name and value that is always asked for."""
    lengths = []
    for line in (shared_data / "blind_tools.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        validator = SchemaValidator(row["schema"])
        found = validator.problems(row["blind_call"])
        text = texts.invalid_arguments(found, Wording(), validator.shapes)
        for asked in always_asked_for(row["schema"], row["schema"]):
            assert re.search(rf"(?<!\w){re.escape(asked)}(?!\w)", text), (row["case"], asked)
        lengths.append(len(text))
    assert len(lengths) == 16
    assert sum(lengths) / len(lengths) < 480
    assert max(lengths) < 1_000

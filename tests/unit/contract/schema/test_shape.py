"""What a schema asks for in one line, and that the line says what the schema says (R52)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from tests.unit.contract.schema.instances import like, values
from tests.unit.contract.schema.shape_grammar import parse
from tests.unit.contract.schema.suite import DRAFTS, groups
from tests.unit.contract.schema.test_validator_attacks import BOUNDED
from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.contract.schema.dialect import plain
from toolpool.contract.schema.shape import Shape, Shapes
from toolpool.contract.schema.shape_writer import Writer
from toolpool.contract.schema.validator import SchemaValidator

Object = dict[str, Any]
STRING, INTEGER = {"type": "string"}, {"type": "integer"}


def closed(properties: Object, *required: str, **more: Any) -> Object:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
        **more,
    }


def shape(schema: Object) -> Shape:
    found = Shapes(schema).whole(schema, 100_000)
    assert found is not None
    return found


LINES: list[tuple[Object, str]] = [
    (closed({"a": STRING, "b": INTEGER}, "b"), "{b: integer, a?: string}"),
    ({"type": "object", "properties": {"a": STRING}}, "{a?: string, ...}"),
    ({"type": "object"}, "object"),
    (closed({}), "{}"),
    ({"type": "object", "additionalProperties": INTEGER}, "{[key]: integer}"),
    ({"type": "object", "additionalProperties": INTEGER, "minProperties": 1,
      "propertyNames": {"pattern": "^[A-Z]{2}$"}}, "{[key /^[A-Z]{2}$/]: integer} 1.."),
    (closed({"a b": STRING, "0": {}, "a?": {}}), '{"a b"?: string, "0"?: any, "a?"?: any}'),
    (closed({"a": STRING, "b": STRING}, dependentRequired={"a": ["b"]}),
     "{a?: string needs b, b?: string}"),
    ({"type": "string", "pattern": r"^\d{4}/\d{2}$"}, r"/^\d{4}\/\d{2}$/"),
    ({"type": "string", "minLength": 1, "maxLength": 9}, "string 1..9 chars"),
    ({"type": "string", "format": "date-time"}, "string date-time"),
    ({"type": ["string", "null"], "format": "date"}, "string date | null"),
    ({"type": "integer", "minimum": 1}, "integer 1.."),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 5, "multipleOf": 0.5},
     "number ..5 >0 multiple of 0.5"),
    ({"enum": ["AIR", "SEA"]}, '"AIR"|"SEA"'),
    ({"type": "string", "enum": ["AIR", 1, None]}, '"AIR"'),
    ({"enum": [1, None, {"a": [1]}]}, "1|null|{a: [1] 1..1}"),
    ({"const": "a\nb\u2028"}, '"a\\nb\\u2028"'),
    ({"type": "array", "items": STRING, "minItems": 1, "uniqueItems": True},
     "[string] 1.. unique"),
    ({"type": "array"}, "array"),
    ({"type": "array", "prefixItems": [STRING, INTEGER], "items": False, "minItems": 2},
     "[string, integer]"),
    ({"type": "array", "prefixItems": [STRING]}, "[string, ...any] 0.."),
    ({"anyOf": [STRING, {"type": "null"}]}, "string | null"),
    ({"oneOf": [closed({"k": {"const": "a"}, "x": STRING}, "k", "x"),
                closed({"k": {"const": "b"}}, "k")]}, '{k: "a", x: string} | {k: "b"}'),
    ({"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
     "exactly one of ({a: any, ...} | {b: any, ...})"),
    ({"allOf": [{"type": "object", "required": ["a"]}, {"required": ["b"]}]},
     "{a: any, ...} & {b: any, ...}"),
    ({"type": "string", "not": {"const": "x"}}, 'string & not ("x")'),
    ({"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}},
     "object & (if ({a: any, ...}) then ({b: any, ...}))"),
    ({"type": "array", "contains": STRING}, "array containing (string)"),
    ({"type": "array", "items": INTEGER, "maxItems": 9, "uniqueItems": True, "minContains": 2,
      "contains": {"enum": [1, 2, 3]}}, "[integer] ..9 unique containing 2.. (1|2|3)"),
    ({"type": "array", "contains": STRING, "minContains": 0, "maxContains": 2},
     "array containing ..2 (string)"),
    ({"type": "array", "contains": STRING, "maxContains": 2}, "array containing 1..2 (string)"),
    ({"type": "array", "contains": STRING, "minContains": 0}, "array"),
    ({"type": "object", "propertyNames": {"maxLength": 2}, "maxProperties": 2},
     "object ..2 keys (string ..2 chars)"),
    (closed({"a": STRING}, "a", additionalProperties=INTEGER, propertyNames={"enum": ["a", "b"]}),
     '{a: string, [key]: integer} keys ("a"|"b")'),
    ({"type": "object", "propertyNames": False}, "object keys (nothing)"),
    ({"type": "object", "dependentRequired": {"a": ["b"], "c": []}},
     "object & (if ({a: any, ...}) then ({b: any, ...}))"),
    ({**closed({"a": STRING, "b": INTEGER}), "dependentSchemas": {"a": {"required": ["b"]}}},
     "{a?: string, b?: integer} & (if ({a: any, ...}) then ({b: any, ...}))"),
    ({"$schema": DRAFTS["draft7"], "type": "object", "dependencies": {"a": ["b"]}},
     "object & (if ({a: any, ...}) then ({b: any, ...}))"),
    ({"type": "object", "properties": {"a": STRING}, "unevaluatedProperties": False,
      "allOf": [{"type": "object", "properties": {"b": INTEGER}}]},
     "({a?: string, ...} & {b?: integer, ...}) with no other fields"),
    ({"type": "object", "properties": {"a": STRING, "b": INTEGER}, "unevaluatedProperties": STRING,
      "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
     "({a?: string, b?: integer, ...} & ({a: any, ...} | {b: any, ...})) "
     "with other fields (string)"),
    ({"type": "object", "anyOf": [{"additionalProperties": True}, {"required": ["a"]}],
      "unevaluatedProperties": False},
     "(object & ({[key]: any} | {a: any, ...})) with no other fields (more rules)"),
    ({"type": "string", "format": "my format"}, 'string (more rules {"format":"my format"})'),
    ({"type": "string", "enum": ["a", "bb"], "minLength": 2},
     '("a"|"bb") (more rules {"minLength":2})'),
    ({"not": {"minimum": 3}}, 'any (more rules {"not":{"minimum":3}})'),
    ({"if": {"minLength": 3}, "then": {"pattern": "^a"}},
     'any (more rules {"if":{"minLength":3},"then":{"pattern":"^a"}})'),
    ({"not": {"$ref": "#/$defs/a"}, "$defs": {"a": {"minimum": 3}}}, "any (more rules)"),
    ({"$schema": DRAFTS["draft7"], "not": {"minimum": 3}},
     'any (more rules {"not":{"minimum":3}})'),
    ({"$schema": DRAFTS["draft6"], "not": {"minimum": 3}}, "any (more rules)"),
    ({"not": {"items": [{"minimum": 3}]}, "$schema": DRAFTS["draft7"]}, "any (more rules)"),
    (closed({"t": {"$ref": "#/$defs/node"}}, "t", **{"$defs": {"node": closed(
        {"v": INTEGER, "next": {"$ref": "#/$defs/node"}}, "v")}}),
     "{t: Node} where Node = {v: integer, next?: Node}"),
    (closed({"a": {"$ref": "#/$defs/p"}, "b": {"$ref": "#/$defs/p"}, "c": {"$ref": "#/$defs/q"}},
            "a", **{"$defs": {"q": INTEGER, "p": closed(
                {"x": INTEGER, "y": INTEGER, "z": INTEGER}, "x", "y")}}),
     "{a: P, b?: P, c?: integer} where P = {x: integer, y: integer, z?: integer}"),
    ({"type": "object", "properties": {"up": {"$ref": "#"}}},
     "Root where Root = {up?: Root, ...}"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "line"), LINES)
def test_the_line(schema: Object, line: str) -> None:
    assert shape(schema).line == line
    require_the_same(schema, [*values(schema, 1, 40)])


def require_the_same(schema: Object, instances: list[Any]) -> tuple[int, int]:
    """Reads the line back, and lets both schemas judge; gives how many were valid, and not."""
    found = shape(schema)
    assert found.line.isprintable()
    draft = DRAFTS["draft2020-12"] if "$schema" in schema else None
    read, says_all = parse(found.line, draft)
    assert says_all is not found.allows_more
    theirs, ours = SchemaValidator(schema), SchemaValidator(read)
    counts = [0, 0]
    for instance in instances:
        expected, told = not theirs.problems(instance), not ours.problems(instance)
        is_wider = found.allows_more and told
        is_narrower = found.allows_less and not told
        assert told is expected or is_wider or is_narrower, (found.line, instance, expected)
        counts[expected] += 1
    return counts[True], counts[False]


def tools(shared_data: Path) -> Iterator[tuple[Object, list[Any]]]:
    """Every tool schema of the recorded data, with arguments where there are some."""
    for row in _rows(shared_data / "blind_tools.jsonl"):
        yield row["schema"], [*like(row["example"], count=200), row["blind_call"]]
    for row in _rows(shared_data / "mcp_tools.jsonl"):
        yield row["inputSchema"], []
    for row in _rows(shared_data / "bfcl_calls.jsonl"):
        yield row["tool"]["input_schema"], like(row["arguments"], count=10)
    for row in _rows(shared_data / "provider_responses.jsonl"):
        for tool in row["tools"]:
            yield plain(tool["input_schema"]), []


def _rows(path: Path) -> Iterator[Any]:
    return map(json.loads, path.read_text(encoding="utf-8").splitlines())


@pytest.mark.long
@pytest.mark.timeout(300)  # thousands of schemas
def test_every_recorded_tool_says_the_same_in_its_shape(shared_data: Path) -> None:
    """And says all of it: none of them needs `(more rules)`."""
    count, valid, invalid = 0, 0, 0
    for schema, instances in tools(shared_data):
        found = shape(schema)
        assert not (found.allows_more or found.allows_less), found
        right, wrong = require_the_same(schema, [*instances, *values(schema, count, 6)])
        count, valid, invalid = count + 1, valid + right, invalid + wrong
    assert count > 4_000
    assert valid > 30_000
    assert invalid > 30_000


@pytest.mark.long
def test_the_schemas_of_the_test_suite_say_no_more_than_they_own_up_to(shared_data: Path) -> None:
    """Odd on purpose: where the shape is wider it says so, where it is narrower it is known."""
    count, exact = 0, 0
    for group in groups(shared_data):
        try:
            SchemaValidator(group.schema)
        except ToolDeclarationInvalid:
            continue
        tests = [test["data"] for test in group.tests]
        require_the_same(group.schema, [*tests, *values(group.schema, count, 10)])
        found = shape(group.schema)
        count, exact = count + 1, exact + (not found.allows_more and not found.allows_less)
    assert count > 1_300
    assert exact > 450


NAMES = st.sampled_from(["a", "b", "tag", "long name", "0"])
SOME_NAMES = st.lists(NAMES, unique=True, max_size=2)
SCALARS = st.sampled_from([None, True, 0, 3, 2.5, "", "a", "AB"])
LEAVES = st.one_of(
    st.sampled_from([{}, {"type": "boolean"}, {"type": "null"}, {"$ref": "#/$defs/d"}]),
    st.fixed_dictionaries(
        {"type": st.just("string")},
        optional={
            "pattern": st.sampled_from(["^a/b$", "^[A-Z]+$", "\\/"]),
            "minLength": st.integers(0, 3),
            "format": st.sampled_from(["date", "int32"]),
        },
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["integer", "number", ["integer", "null"]])},
        optional={"minimum": st.integers(-2, 3), "exclusiveMaximum": st.integers(2, 9),
                  "multipleOf": st.sampled_from([2, 0.5])},
    ),
    st.fixed_dictionaries({"enum": st.lists(SCALARS, min_size=1, max_size=3)}),
    st.fixed_dictionaries({"const": SCALARS}),
)  # fmt: skip


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(NAMES, inner, max_size=3)},
            optional={
                "required": SOME_NAMES,
                "additionalProperties": st.booleans() | inner,
                "minProperties": st.integers(0, 2),
                "maxProperties": st.integers(0, 2),
                "propertyNames": st.sampled_from(
                    [True, False, {"maxLength": 1}, {"enum": ["a", "b"]}, {"pattern": "^a"}]
                ),
                "dependentRequired": st.dictionaries(NAMES, SOME_NAMES, max_size=2),
                "dependentSchemas": st.dictionaries(NAMES, inner, max_size=2),
                "unevaluatedProperties": st.booleans() | inner,
                "allOf": several,
                "patternProperties": st.dictionaries(st.sampled_from(["^a", "z"]), inner),
            },
        ),
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": inner},
            optional={"minItems": st.integers(0, 2), "maxItems": st.integers(1, 3),
                      "uniqueItems": st.booleans(), "prefixItems": several, "contains": inner,
                      "minContains": st.integers(0, 2), "maxContains": st.integers(0, 2)},
        ),
        st.fixed_dictionaries({"anyOf": several}),
        st.fixed_dictionaries({"oneOf": several}),
        st.fixed_dictionaries({"allOf": several}),
        st.fixed_dictionaries({"type": st.sampled_from(["string", "object"]), "not": inner}),
        st.fixed_dictionaries({"if": inner, "then": inner}, optional={"else": inner}),
    )  # fmt: skip


SCHEMAS = st.recursive(LEAVES, _nested, max_leaves=8)


@given(SCHEMAS, SCHEMAS, st.integers(0, 1_000))
@example({"$ref": "#/$defs/d"}, {"$ref": "#/$defs/d"}, 0)
@example({"oneOf": [{"$ref": "#/$defs/d"}] * 2}, {"type": "string"}, 0)
@example({"oneOf": [{"type": "string"}, {"anyOf": [{}, {"type": "boolean"}]}]}, {}, 0)
@example({"allOf": [{"type": "string"}, {"anyOf": [{"type": ["integer", "null"]}] * 2}]}, {}, 1)
def test_generated_schemas_say_the_same_in_their_shapes(
    schema: Object, definition: Object, seed: int
) -> None:
    schema = {**schema, "$defs": {"d": definition}}
    require_the_same(schema, [*values(schema, seed, 12)])


WIDE = closed(
    {"id": {"type": "string", "pattern": "^[A-Z]{3}$"},
     "mode": {"enum": ["AIR", "SEA"]},
     "lines": {"type": "array", "items": closed({"sku": STRING, "note": STRING}, "sku")},
     "extra": closed({"one": STRING, "two": INTEGER}),
     "count": INTEGER},
    "id", "mode", "lines",
)  # fmt: skip


@pytest.mark.parametrize(
    ("at_most", "line"),
    [
        (170, '{id: /^[A-Z]{3}$/, mode: "AIR"|"SEA", lines: [{sku: string, note?: string}], '
         "extra?: {one?: string, two?: integer}, count?: integer}"),
        (120, '{id: /^[A-Z]{3}$/, mode: "AIR"|"SEA", lines: [{sku: string, note?: string}], '
         "extra?: …, count?: integer}"),
        (90, '{id: /^[A-Z]{3}$/, mode: "AIR"|"SEA", lines: [{sku: string, …}], …}'),
        (59, '{id: /^[A-Z]{3}$/, mode: "AIR"|"SEA", lines: […], …}'),
        (5, "{…}"),
    ],
)  # fmt: skip
def test_what_has_no_room_is_left_out_and_what_is_required_last(at_most: int, line: str) -> None:
    shapes = Shapes(WIDE)
    found = shapes.whole(WIDE, at_most) or shapes.shortened(WIDE, at_most)
    assert found.line == line
    assert found.is_whole is ("…" not in line)


def test_rules_that_have_no_room_are_only_mentioned() -> None:
    schema = closed({"a": {"not": {"minimum": 3}}, "b": {"not": {"pattern": "x" * 70}}}, "a", "b")
    assert Shapes(schema).shortened(schema, 130).line == (
        '{a: any (more rules {"not":{"minimum":3}}), b: any (more rules)}'
    )
    assert not Shapes(schema).shortened(schema, 130).is_whole


def test_fields_may_be_hidden_or_left_unsaid() -> None:
    shapes = Shapes(WIDE)
    some = shapes.whole(WIDE, 200, hidden=["extra", "lines"], known=["id", "mode"])
    assert some is not None
    assert some.line == "{…, count?: integer}"


def test_a_huge_schema_is_given_up_at_once_and_kept_short() -> None:
    huge = closed({f"field_{n}": {"enum": [f"m{n}_{m}" for m in range(9)]} for n in range(900)})
    shapes = Shapes(huge)
    assert shapes.whole(huge, 1_500) is None
    huge["required"] = list(huge["properties"])
    found = Shapes(huge).shortened(huge, 1_500)
    assert 1_000 < len(found.line) <= 1_500
    assert found.line.endswith("…}")


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("a chain of references", 1_000),
        ("many branches", 3_500),
        ("a choice of many values", 3_500),
        ("a long choice", 3_500),
    ],
)
def test_what_has_no_room_is_not_written_again_and_again(
    name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once in full, once cut: less detail in between would come out just as long."""
    written = 0
    either = Writer._either

    def counted(self: Writer, *arguments: Any) -> Any:
        nonlocal written
        written += 1
        return either(self, *arguments)

    monkeypatch.setattr(Writer, "_either", counted)
    one_of_many = {"anyOf": [{"enum": [f"member {n}"]} for n in range(4_000)]}
    schema = one_of_many if name == "a long choice" else BOUNDED[name][0]
    shapes = Shapes(schema)
    assert shapes.whole(schema, 1_500) is None
    shapes.shortened(schema, 1_500)
    assert 100 < written <= most


def test_a_choice_that_says_the_same_often_has_room() -> None:
    schema = {"anyOf": [{"type": "string", "description": f"{n}"} for n in range(90)]}
    found = Shapes(schema).whole(schema, 50)
    assert found is not None
    assert found.line == "string"


def test_names_are_told_apart() -> None:
    inner = closed({f"a_field_with_a_name_{n}": STRING for n in range(2)})
    places = ["a", "b", "c"]
    schema = {
        **closed({f"{place}{n}": {"$ref": f"#/{place}/p"} for place in places for n in (1, 2)}),
        **{place: {"p": dict(inner)} for place in places},
    }
    line = shape(schema).line
    assert line.startswith("{a1?: P, a2?: P, b1?: P2, b2?: P2, c1?: P3, c2?: P3} where P = ")

"""Schemas as they are published compile, and take the deep values that they are for (R54)."""

import copy
from typing import Any

import pytest

from tests.cost import cost
from tests.unit.contract.schema.test_validator_attacks import LIMIT, expression, nested
from toolpool.contract.schema.looks import Looks, TooMuch
from toolpool.contract.schema.validator import SchemaValidator

Object = dict[str, Any]


def ref(name: str) -> Object:
    return {"$ref": f"#/definitions/{name}"}


def of_names(value: Object) -> Object:
    return {"type": "object", "additionalProperties": value}


def condition(*operators: str) -> Object:
    """Filters as search tools have them: and, or and not over comparisons, tagged."""
    comparison = {
        "type": "object",
        "properties": {"op": {"const": "eq"}, "field": {"type": "string"}, "value": {}},
        "required": ["op", "field", "value"],
    }
    branches = [
        {
            "type": "object",
            "properties": {"of": {"type": "array", "items": ref("c")}, "op": {"const": operator}},
            "required": ["of", "op"],
        }
        for operator in operators
    ]
    return {
        "type": "object",
        "properties": {"filter": ref("c")},
        "definitions": {"c": {"oneOf": [comparison, *branches]}},
    }


LEAF = {"op": "eq", "field": "a", "value": 1}


@pytest.mark.parametrize("levels", [1, 3, 6, 12, 30])
@pytest.mark.parametrize("operators", [("and",), ("and", "or", "not"), tuple("abcdefgh")])
def test_a_condition_tree_is_taken_however_deep(operators: tuple[str, ...], levels: int) -> None:
    validator = SchemaValidator(condition(*operators))
    tree = nested(levels, LEAF, lambda c: {"op": operators[-1], "of": [c, LEAF, LEAF]})
    problems, spent = cost(lambda: validator.problems({"filter": tree}), most=LIMIT)
    assert problems == ()
    assert spent < LIMIT
    tree = nested(levels, {"op": "eq"}, lambda c: {"op": operators[-1], "of": [c, LEAF]})
    problems, spent = cost(lambda: validator.problems({"filter": tree}), most=LIMIT)
    assert problems
    assert problems[0].kind != "tooDeep"
    assert spent < LIMIT


def interface_description() -> Object:
    """As descriptions of HTTP interfaces are: many definitions that refer to each other."""
    schema_object = {
        "type": "object",
        "properties": {
            "type": {"type": "string"},
            "items": {"anyOf": [ref("schema"), {"type": "array", "items": ref("schema")}]},
            "allOf": {"type": "array", "items": ref("schema")},
            "properties": of_names(ref("schema")),
            "additionalProperties": {"anyOf": [ref("schema"), {"type": "boolean"}]},
            "externalDocs": ref("docs"),
        },
        "patternProperties": {"^x-": {}},
    }
    kinds = ["body", "header", "formData", "query", "path"]
    parameters = {
        f"{kind}Parameter": {
            "type": "object",
            "required": ["name", "in"],
            "properties": {
                "in": {"enum": [kind]},
                "name": {"type": "string"},
                "schema": ref("schema"),
                "items": ref("primitives"),
            },
            "patternProperties": {"^x-": {}},
        }
        for kind in kinds
    }
    methods = ["get", "put", "post", "delete", "options", "head", "patch"]
    return {
        "type": "object",
        "required": ["paths"],
        "properties": {
            "paths": of_names(ref("path")),
            "definitions": of_names(ref("schema")),
            "parameters": of_names(ref("parameter")),
            "responses": of_names(ref("response")),
        },
        "definitions": {
            "schema": schema_object,
            "docs": {"type": "object", "properties": {"url": {"type": "string"}}},
            "primitives": {
                "type": "object",
                "properties": {"type": {"type": "string"}, "items": ref("primitives")},
            },
            "parameter": {"oneOf": [ref(name) for name in parameters]},
            **parameters,
            "parameters": {
                "type": "array",
                "items": {"oneOf": [ref("parameter"), ref("pointer")]},
            },
            "pointer": {
                "type": "object",
                "required": ["$ref"],
                "properties": {"$ref": {"type": "string"}},
            },
            "header": {"type": "object", "properties": {"items": ref("primitives")}},
            "response": {
                "type": "object",
                "required": ["description"],
                "properties": {
                    "description": {"type": "string"},
                    "schema": {"oneOf": [ref("schema"), {"type": "string"}]},
                    "headers": of_names(ref("header")),
                },
            },
            "operation": {
                "type": "object",
                "required": ["responses"],
                "properties": {
                    "parameters": ref("parameters"),
                    "responses": of_names({"oneOf": [ref("response"), ref("pointer")]}),
                },
            },
            "path": {
                "type": "object",
                "properties": {
                    "parameters": ref("parameters"),
                    **{method: ref("operation") for method in methods},
                },
            },
        },
    }


RESPONSE = {
    "description": "found",
    "schema": {"type": "object", "properties": {"a": {"items": {"properties": {"b": {}}}}}},
}
INTERFACE = {
    "paths": {
        f"/a{n}": {
            "get": {
                "parameters": [{"in": "query", "name": "q"}, {"in": "header", "name": "h"}],
                "responses": {"200": RESPONSE, "404": {"description": "no"}},
            }
        }
        for n in range(10)
    }
}


def record_types() -> Object:
    """As schemas of serialised records are: every type may hold every other."""
    kinds = ["record", "enum", "array", "map", "fixed"]
    inside = {"record": "fields", "array": "items", "map": "values"}
    held = {"anyOf": [ref("name"), ref("union"), *map(ref, kinds)]}
    return {
        "type": "object",
        "properties": {"schema": held},
        "definitions": {
            "name": {"type": "string", "pattern": "^[a-z]+$"},
            "union": {"type": "array", "items": held, "minItems": 1},
            **{
                kind: {
                    "type": "object",
                    "required": ["type"],
                    "properties": {
                        "type": {"type": "string", "enum": [kind]},
                        inside.get(kind, "symbols"): (
                            {"type": "array", "items": {"type": "object", "properties": {
                                "type": held, "name": {"type": "string"}}}}
                            if kind == "record" else held if kind in inside else {}
                        ),
                    },
                }
                for kind in kinds
            },
        },
    }  # fmt: skip


RECORD = nested(
    5,
    "string",
    lambda inner: {"type": "record", "fields": [{"name": "a", "type": inner}, {"type": "long"}]},
)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (interface_description(), INTERFACE),
        (record_types(), {"schema": RECORD}),
        (record_types(), {"schema": ["null", {"type": "map", "values": RECORD}]}),
    ],
    ids=["interface", "record", "union"],
)
def test_what_is_published_compiles_and_takes_what_it_is_for(schema: Object, value: Any) -> None:
    validator, spent = cost(lambda: SchemaValidator(schema), most=LIMIT)
    assert isinstance(validator, SchemaValidator)
    assert spent < LIMIT
    problems, spent = cost(lambda: validator.problems(value), most=LIMIT)
    assert problems == ()
    assert spent < LIMIT


def test_looks_are_counted_and_a_pair_is_counted_once() -> None:
    looks = Looks(expression("and", "or"))
    assert looks.can_grow
    flat = {"op": "and", "args": ["x", "y"]}
    looks.require_few(flat, 40)
    deep = nested(40, "x", lambda inner: {"op": "or", "args": [inner]})
    looks.require_few(deep, 2_000)
    with pytest.raises(TooMuch):
        looks.require_few(deep, 2_000, is_explained=True)
    shared = nested(60, {"op": "and"}, lambda inner: {"op": "and", "args": [inner, inner]})
    with pytest.raises(TooMuch):
        looks.require_few(shared, 10**9)


def test_a_list_that_is_its_own_items_does_not_grow() -> None:
    tree = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}
    assert not Looks(tree).can_grow
    assert Looks(copy.deepcopy(tree)).at_one_value == 1

"""Schemas as they are published compile, and take the deep values that they are for (R54)."""

import copy
from typing import Any

import pytest

from tests.cost import cost
from tests.unit.contract.schema.test_validator_attacks import LIMIT, expression, nested
from toolpool.contract.schema.validation_cost import ValidationCost, ValidationTooCostly
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


EXTENSIONS = {"patternProperties": {"^x-": {}}}
PARAMETER_KINDS = ["body", "header", "formData", "query", "path"]
METHODS = ["get", "put", "post", "delete", "options", "head", "patch"]


def of_type(properties: Object, *required: str) -> Object:
    return {"type": "object", "required": list(required), "properties": properties}


def schemas_in_a_description() -> Object:
    """A schema for schemas, and what one of a single value may be."""
    schema = of_type({
        "type": {"type": "string"},
        "items": {"anyOf": [ref("schema"), {"type": "array", "items": ref("schema")}]},
        "allOf": {"type": "array", "items": ref("schema")},
        "properties": of_names(ref("schema")),
        "additionalProperties": {"anyOf": [ref("schema"), {"type": "boolean"}]},
        "externalDocs": ref("docs"),
    })  # fmt: skip
    return {
        "schema": {**schema, **EXTENSIONS},
        "docs": of_type({"url": {"type": "string"}}),
        "primitives": of_type({"type": {"type": "string"}, "items": ref("primitives")}),
    }


def parameters_in_a_description() -> Object:
    """One kind of parameter for each place that it may stand in."""
    kinds = {
        f"{kind}Parameter": {
            **of_type(
                {
                    "in": {"enum": [kind]},
                    "name": {"type": "string"},
                    "schema": ref("schema"),
                    "items": ref("primitives"),
                },
                "name",
                "in",
            ),
            **EXTENSIONS,
        }
        for kind in PARAMETER_KINDS
    }
    either = {"oneOf": [ref("parameter"), ref("pointer")]}
    return {
        **kinds,
        "parameter": {"oneOf": [ref(name) for name in kinds]},
        "parameters": {"type": "array", "items": either},
        "pointer": of_type({"$ref": {"type": "string"}}, "$ref"),
    }


def responses_in_a_description() -> Object:
    return {
        "header": of_type({"items": ref("primitives")}),
        "response": of_type(
            {
                "description": {"type": "string"},
                "schema": {"oneOf": [ref("schema"), {"type": "string"}]},
                "headers": of_names(ref("header")),
            },
            "description",
        ),
    }


def interface_description() -> Object:
    """As descriptions of HTTP interfaces are: many definitions that refer to each other."""
    responses = of_names({"oneOf": [ref("response"), ref("pointer")]})
    methods = {method: ref("operation") for method in METHODS}
    names = {
        "paths": "path",
        "definitions": "schema",
        "parameters": "parameter",
        "responses": "response",
    }
    return {
        **of_type({field: of_names(ref(name)) for field, name in names.items()}, "paths"),
        "definitions": {
            **schemas_in_a_description(),
            **parameters_in_a_description(),
            **responses_in_a_description(),
            "operation": of_type(
                {"parameters": ref("parameters"), "responses": responses}, "responses"
            ),
            "path": of_type({"parameters": ref("parameters"), **methods}),
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
    looks = ValidationCost(expression("and", "or"))
    assert looks.can_grow
    flat = {"op": "and", "args": ["x", "y"]}
    looks.require_few(flat, 40)
    deep = nested(40, "x", lambda inner: {"op": "or", "args": [inner]})
    looks.require_few(deep, 2_000)
    with pytest.raises(ValidationTooCostly):
        looks.require_few(deep, 2_000, is_explained=True)
    shared = nested(60, {"op": "and"}, lambda inner: {"op": "and", "args": [inner, inner]})
    with pytest.raises(ValidationTooCostly):
        looks.require_few(shared, 10**9)


def test_a_list_that_is_its_own_items_does_not_grow() -> None:
    tree = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}
    assert not ValidationCost(tree).can_grow
    assert ValidationCost(copy.deepcopy(tree)).at_one_value == 1

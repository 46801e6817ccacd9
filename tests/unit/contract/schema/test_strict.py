"""The strict form of schemas: closed, with every field named, and nothing certain left out."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import anthropic
import pytest
from jsonschema import Draft202012Validator
from openai.lib import _pydantic as openai_schemas
from pydantic import BaseModel, Field

from toolpool import tool
from toolpool.contract.schema.strict import ANTHROPIC, OPENAI, Form, NotStrict, strict_schema
from toolpool.contract.schema.validator import SchemaValidator


class Span(BaseModel):
    """A part of the text."""

    start: int
    end: int | None = None


class Circle(BaseModel):
    kind: Literal["circle"]
    radius: float


class Square(BaseModel):
    kind: Literal["square"]
    side: float


class Node(BaseModel):
    name: str
    next: Annotated["Node | None", Field(description="what follows")] = None


def schema_of(function: Any) -> dict[str, Any]:
    schema = tool(function).spec.input_schema
    assert schema is not None
    return schema


def draw(
    shape: Annotated[Circle | Square, Field(discriminator="kind")],
    spans: Annotated[list[Span], Field(min_length=1, description="where")],
    main: Annotated[Span, Field(description="the first")],
    name: Annotated[str, Field(max_length=20)] = "x",
    zoom: Annotated[float, Field(gt=0)] = 1.5,
    mode: Literal["fast", "slow"] | None = None,
) -> None: ...


def held_to_openai(schema: dict[str, Any]) -> None:
    """Raises where the SDK would still change it to make it strict."""
    copy = json.loads(json.dumps(schema))
    made = openai_schemas._ensure_strict_json_schema(copy, path=(), root=copy)
    assert made == schema


def test_the_form_of_openai_requires_every_field() -> None:
    made = strict_schema(schema_of(draw), OPENAI)
    span = {
        "description": "A part of the text.",
        "type": "object",
        "properties": {
            "start": {"type": "integer"},
            "end": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        },
        "required": ["start", "end"],
        "additionalProperties": False,
    }
    assert made["$defs"]["Span"] == span
    assert made["properties"] == {
        "shape": {"anyOf": [{"$ref": "#/$defs/Circle"}, {"$ref": "#/$defs/Square"}]},
        "spans": {
            "type": "array", "minItems": 1, "description": "where",
            "items": {"$ref": "#/$defs/Span"},
        },
        "main": {**span, "description": "the first"},
        "name": {"type": "string", "description": '(default: "x", maxLength: 20)'},
        "zoom": {"type": "number", "exclusiveMinimum": 0, "description": "(default: 1.5)"},
        "mode": {
            "anyOf": [{"type": "string", "enum": ["fast", "slow"]}, {"type": "null"}],
        },
    }  # fmt: skip
    assert made["required"] == ["shape", "spans", "main", "name", "zoom", "mode"]
    held_to_openai(made)


def test_the_form_of_anthropic_keeps_what_may_be_left_out_and_tells_bounds() -> None:
    made = strict_schema(schema_of(draw), ANTHROPIC)
    assert made["required"] == ["shape", "spans", "main"]
    assert made["properties"]["zoom"] == {
        "type": "number", "description": "(default: 1.5, exclusiveMinimum: 0)",
    }  # fmt: skip
    assert made["properties"]["spans"]["description"] == "where (minItems: 1)"
    taken = anthropic.transform_schema(made)
    assert taken["properties"]["zoom"] == made["properties"]["zoom"]
    assert taken["$defs"]["Span"] == made["$defs"]["Span"]


def test_a_schema_that_refers_to_itself_is_strict_where_that_is_taken() -> None:
    def walk(node: Annotated[Node, Field(description="the root")]) -> None: ...

    made = strict_schema(schema_of(walk), OPENAI)
    assert made["$defs"]["Node"]["required"] == ["name", "next"]
    assert made["properties"]["node"]["properties"]["next"]["anyOf"][0] == {"$ref": "#/$defs/Node"}
    SchemaValidator(made)
    with pytest.raises(NotStrict, match=r"node.next.\* refers to itself"):
        strict_schema(schema_of(walk), ANTHROPIC)


def of(field: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": field}, "required": ["a"], **more}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "array"}, "its root is not plainly an object"),
        ({"properties": {}}, "its root is not plainly an object"),
        (of({}), "a takes values of any type"),
        (of(True), "a takes any value, or none"),
        (of({"type": "object"}), "a takes fields that it does not name"),
        (of({"type": "string"}, additionalProperties=True), "it takes fields that it does not"),
        (of({"type": "object", "additionalProperties": {"type": "string"}}), "a takes fields"),
        (of({"type": "array"}), "a takes items of any kind"),
        (of({"type": "array", "items": {}}), "a.* takes values of any type"),
        (of({"type": "array", "prefixItems": []}), "a has 'prefixItems'"),
        (of({"not": {}}), "a has 'not', which strict schemas cannot say"),
        (of({"allOf": [{"type": "string"}, {"minLength": 1}]}), "a has 'allOf'"),
        (of({"$ref": "#/properties/b"}), "a refers to '#/properties/b', which is not a definition"),
        (of({"$ref": "#/$defs/none"}), "a refers to '#/$defs/none', which is not a definition"),
        (of({"type": "string"}, anyOf=[{"required": ["a"]}]), "it offers alternatives for all"),
        (of({"type": "string"}, required=["b"]), "it requires 'b', which it does not describe"),
        (of({"type": "string"}, required=[]),
         "a is optional, but has no default and does not accept null"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_strict_says_where_and_why(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotStrict) as caught:
        strict_schema(schema, OPENAI)
    assert reason in str(caught.value)


def test_no_arguments_are_strict_too() -> None:
    empty = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    assert strict_schema({"type": "object"}, OPENAI) == empty
    assert strict_schema({"type": "OBJECT", "properties": {}}, OPENAI) == empty


def test_a_definition_under_its_older_name_is_found() -> None:
    schema = of({"$ref": "#/definitions/a~1b"}, definitions={"a/b": {"enum": [1, "x", None]}})
    assert strict_schema(schema, OPENAI) == {
        **of({"$ref": "#/$defs/a~1b"}),
        "additionalProperties": False,
        "$defs": {"a/b": {"enum": [1, "x", None], "type": ["integer", "string", "null"]}},
    }


@pytest.mark.long
@pytest.mark.timeout(300)  # thousands of schemas
@pytest.mark.parametrize("form", [OPENAI, ANTHROPIC], ids=["openai", "anthropic"])
def test_real_schemas_are_strict_or_say_why_not(form: Form, shared_data: Path) -> None:
    """What was valid for a tool stays so, as far as the form has a place for it."""
    strict = 0
    for line in (shared_data / "bfcl_calls.jsonl").read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        schema = case["tool"]["input_schema"]
        try:
            made = strict_schema(schema, form)
        except NotStrict:
            continue
        strict += 1
        Draft202012Validator.check_schema(made)
        if form is OPENAI:
            held_to_openai(made)
        elif case.get("valid", True) and set(case["arguments"]) <= set(made["properties"]):
            problems = SchemaValidator(made).problems(case["arguments"])
            assert not [p for p in problems if p.kind != "additionalProperties"], case["id"]
    assert strict > 500

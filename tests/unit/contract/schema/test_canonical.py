"""Arguments as their schema determines them: what a policy judges, and what then runs."""

from typing import Any

import pytest

from toolpool.contract.schema.validator import SchemaValidator

LINE = {
    "type": "object",
    "properties": {"sku": {"type": "string"}, "gift": {"type": "boolean", "default": False}},
}
ID = {"type": "string", "format": "uuid"}
UPPER = "AAAAAAAA-AAAA-4AAA-8AAA-AAAAAAAAAAAA"


def field(schema: dict[str, Any], **root: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}, **root}


DETERMINED = [
    (field({"default": 5}), {}, {"x": 5}),
    (field({"default": None}), {}, {"x": None}),
    (field({"type": "string", "default": None}), {}, {}),  # a default that it would not take
    (field({"$ref": "#/$defs/L"}, **{"$defs": {"L": {"default": 7}}}), {}, {"x": 7}),
    (field({"$ref": "#/$defs/L"}, **{"$defs": {"L": LINE}}), {"x": {}}, {"x": {"gift": False}}),
    (field({"default": {}, **LINE}), {}, {"x": {"gift": False}}),
    (field({"type": "array", "items": LINE}), {"x": [{}]}, {"x": [{"gift": False}]}),
    (field({"prefixItems": [LINE], "items": True}), {"x": [{}, {}]}, {"x": [{"gift": False}, {}]}),
    (
        field({"items": [LINE, ID]}, **{"$schema": "http://json-schema.org/draft-07/schema#"}),
        {"x": [{}, UPPER]},
        {"x": [{"gift": False}, UPPER.lower()]},
    ),
    (field({"additionalProperties": LINE}), {"x": {"a": {}}}, {"x": {"a": {"gift": False}}}),
    (field({"patternProperties": {"^a": LINE}}), {"x": {"ab": {}}}, {"x": {"ab": {"gift": False}}}),
    (
        field({"patternProperties": {"^a": ID}, "additionalProperties": LINE}),
        {"x": {"a": UPPER, "b": {}}},
        {"x": {"a": UPPER.lower(), "b": {"gift": False}}},
    ),
    (field({"allOf": [LINE]}), {"x": {}}, {"x": {"gift": False}}),
    (field({"anyOf": [LINE, {"type": "null"}]}), {"x": {}}, {"x": {"gift": False}}),
    (field({"anyOf": [LINE, {"type": "null"}]}), {"x": None}, {"x": None}),
    (field({"anyOf": [LINE, {"type": "object"}]}), {"x": {}}, {"x": {}}),  # which, nobody knows
    (field({"oneOf": [ID, {"type": "integer"}]}), {"x": UPPER}, {"x": UPPER.lower()}),
    (field({"~/": {"a b%": LINE}}), {"x": 1}, {"x": 1}),
    (field({"type": "integer"}), {"x": 1.0}, {"x": 1}),
    (field({"type": "number"}), {"x": 1.0}, {"x": 1.0}),
    (field(ID), {"x": UPPER}, {"x": UPPER.lower()}),
    (
        field({"type": "string", "format": "date-time"}),
        {"x": "2026-01-02t03:04:05+00:00"},
        {"x": "2026-01-02T03:04:05Z"},
    ),
    (
        field({"type": "string", "format": "uri"}),
        {"x": "HTTPS://Shop.example/a/../b"},
        {"x": "https://shop.example/b"},
    ),
    (field({"type": "string"}), {"x": UPPER}, {"x": UPPER}),
    (field({"default": 5}, maxProperties=0), {}, {}),  # with it the arguments would not fit
]


@pytest.mark.parametrize(("schema", "sent", "determined"), DETERMINED)
def test_arguments_are_as_their_schema_determines_them(
    schema: dict[str, Any], sent: dict[str, Any], determined: dict[str, Any]
) -> None:
    found = SchemaValidator(schema).canonical(sent)
    assert found == determined
    assert [type(value) for value in found.values()] == [type(v) for v in determined.values()]


def test_names_of_fields_may_hold_the_signs_of_json_pointers() -> None:
    schema = {"properties": {"a/b~c %": {"anyOf": [LINE, {"type": "null"}]}}}
    assert SchemaValidator(schema).canonical({"a/b~c %": {}}) == {"a/b~c %": {"gift": False}}


def test_arguments_that_stay_as_they_are_are_not_copied() -> None:
    sent = {"x": {"sku": "a", "gift": True}}
    assert SchemaValidator(field(LINE)).canonical(sent) is sent


def test_a_default_is_not_shared_between_calls() -> None:
    validator = SchemaValidator(field({"default": []}))
    validator.canonical({})["x"].append(1)
    assert validator.canonical({}) == {"x": []}


def test_defaults_without_end_are_refused() -> None:
    endless = {"type": "object", "properties": {"x": {"$ref": "#", "default": {}}}}
    with pytest.raises(ValueError, match="without end"):
        SchemaValidator(endless).canonical({})

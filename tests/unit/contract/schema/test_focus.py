"""What a caller knows of a schema, from what was sent right and what was not."""

import json
from typing import Any

import pytest

from toolpool.contract.schema.error_scope import way_to
from toolpool.contract.schema.focus import Focus, focus_of
from toolpool.contract.schema.validator import SchemaValidator

Object = dict[str, Any]
STRING = {"type": "string"}
PLACE = {"type": "object", "properties": {"at": {"$ref": "#/$defs/spot"}, "land": STRING}}
SPOT = {"type": "object", "properties": {"x": STRING, "y": STRING}, "required": ["x"]}
SCHEMA: Object = json.loads(
    json.dumps(
        {
            "type": "object",
            "properties": {
                "id": STRING,
                "from": {"$ref": "#/$defs/place"},
                "to": {"$ref": "#/$defs/place"},
                "stops": {"type": "array", "items": {"$ref": "#/$defs/spot"}},
            },
            "required": ["id", "from"],
            "additionalProperties": False,
            "$defs": {"place": PLACE, "spot": SPOT},
        }
    )
)


def focus(sent: Any, schema: Object = SCHEMA) -> Focus:
    validator = SchemaValidator(schema)
    problems = validator.problems(sent)
    assert problems
    ways = [way_to(problem, validator.shapes.root) for problem in problems]
    return focus_of(problems, ways, schema, sent)


def right(sent: Any) -> dict[str, set[str]]:
    names = {id(SCHEMA): "root", **{id(node): name for name, node in SCHEMA["$defs"].items()}}
    return {names[key]: set(found) for key, found in focus(sent).right if key in names}


def test_a_field_is_right_where_nothing_is_wrong_with_it() -> None:
    assert right({"id": "1", "from": {"at": {"x": "1"}, "land": 1}}) == {
        "root": {"id"},
        "place": {"at"},
    }
    assert right({"id": 1, "from": {}}) == {"root": {"from"}}


def test_a_field_is_right_only_where_it_was_right_in_every_place() -> None:
    stops = [{"x": "1", "y": "1", "z": "1"}, {"x": "1", "y": 1}, {"x": 1, "y": "1"}]
    sent = {"id": "1", "from": {}, "stops": stops[:1]}
    assert "spot" not in right({**sent, "stops": stops})
    assert right({**sent, "stops": stops[1:2]}) == {"root": {"id", "from"}, "spot": {"x"}}


def test_what_is_wanted_where_it_was_not_sent_is_not_known() -> None:
    """Another place of the same type is missing: what was right in one is not left out of it."""
    stops = [{"x": "1", "y": 1}]
    assert right({"id": "1", "stops": stops}) == {"root": {"id"}}
    assert right({"id": "1", "from": {}, "stops": stops, "via": 1}) == {"root": {"id", "from"}}


def test_around_what_is_wrong_as_a_whole_nothing_is_known() -> None:
    schema = {**SCHEMA, "maxProperties": 1}
    found = focus({"id": "1", "from": {}}, schema)
    assert found.right == frozenset()
    assert id(schema) in found.wrong


def test_what_is_missing_and_what_it_requires_is_wanted() -> None:
    schema = json.loads(json.dumps({**SCHEMA, "required": ["to"]}))
    schema["$defs"]["place"]["required"] = ["at"]
    found = focus({"id": "1"}, schema).wrong
    assert id(schema["properties"]["to"]) in found
    assert id(schema["$defs"]["place"]["properties"]["at"]) in found
    assert id(schema["$defs"]["place"]["properties"]["land"]) not in found
    assert id(schema["properties"]["from"]) not in found


LONG = {f"a_rather_long_name_{n}": {"type": "integer"} for n in range(20)}
PORT = {"type": "object", "properties": LONG, "required": list(LONG)}
OTHERS = {f"other_{n}": {"type": "object", "properties": LONG} for n in range(30)}
RULE = {"if": {"properties": {"mode": {"const": "x"}}}, "then": {"required": ["port"]}}


@pytest.mark.parametrize("rule", [{"required": ["port"]}, RULE])
@pytest.mark.parametrize("is_focused", [True, False])
def test_a_shape_that_is_cut_always_leaves_room_for_its_end(
    rule: dict[str, Any], *, is_focused: bool
) -> None:
    """What did not fit by a character or two was left out altogether."""
    fields = {"mode": {"type": "string"}, "port": PORT}
    schema = json.loads(json.dumps({"type": "object", "properties": {**fields, **OTHERS}, **rule}))
    validator = SchemaValidator(schema)
    problems = validator.problems({"mode": "x"})
    ways = [way_to(problem, validator.shapes.root) for problem in problems]
    focus = focus_of(problems, ways, schema, {"mode": "x"}) if is_focused else Focus()
    for room in range(200, 1500, 10):
        line = validator.shapes.shortened(schema, room, focus=focus).line
        assert len(line) <= room
        assert "port" in line
        if is_focused:
            assert "a_rather_long_name_0: integer" in line

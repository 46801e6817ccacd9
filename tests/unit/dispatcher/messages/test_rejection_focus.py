"""Where a shape has no room, it is what was sent right that is not said again (R52)."""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolpool.contract.call import ToolCall
from toolpool.contract.result import ToolResult
from toolpool.contract.schema.validator import SchemaValidator
from toolpool.contract.spec import ToolSpec, sealed
from toolpool.dispatcher.admission.catalog import Catalog
from toolpool.dispatcher.admission.validate import validate
from toolpool.dispatcher.messages import texts
from toolpool.dispatcher.messages.wording import Caps, Wording

Object = dict[str, Any]
STRING = {"type": "string"}


def closed(properties: Object, *required: str, **more: Any) -> Object:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
        **more,
    }


def expected(schema: Object, sent: Any, room: int, *, is_known: bool = True) -> str:
    """The shape in the rejection, which is as long as the line is and the text around it."""
    schema = json.loads(json.dumps(schema))  # no part of it is another one as well
    validator = SchemaValidator(schema)
    caps = Caps(characters=60, shape_characters=room)
    text = texts.invalid_arguments(
        validator.problems(sent),
        Wording(caps, style="brief"),
        validator.shapes,
        arguments=sent if is_known else None,
    )
    assert len(text) <= room
    return text.partition("Expected ")[2]


PLACE = closed({"city": STRING, "land": {"enum": ["GB", "DE"]}}, "city", "land")
ORDER = closed(
    {
        "title": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
        "from": {"$ref": "#/$defs/place"},
        "size": {"enum": ["small", "medium", "large"]},
        "lines": {"type": "array", "items": closed({"sku": STRING, "qty": STRING}, "sku", "qty")},
        "note": STRING,
    },
    "title",
    "from",
    "size",
    **{"$defs": {"place": PLACE}},
)
RIGHT = {"title": "ABC-1234", "from": {"city": "x", "land": "GB"}, "note": "x", "width": 1}
LINES = "lines?: [{sku: string, qty: string}]"


@pytest.mark.parametrize(
    ("room", "shape"),
    [
        (300, '{title: /^[A-Z]{3}-[0-9]{4}$/, from: {city: string, land: "GB"|"DE"}, '
              f'size: "small"|"medium"|"large", {LINES}, note?: string}}'),
        (190, '{title: …, from: …, size: "small"|"medium"|"large", '
              'lines?: [{sku: …, qty: string}], note?: …}'),
        (155, '{…, size: "small"|"medium"|"large", lines?: [{…, qty: string}]}'),
    ],
)  # fmt: skip
def test_what_was_sent_right_gives_way_first(room: int, shape: str) -> None:
    sent = {**RIGHT, "lines": [{"sku": "a", "amount": "1"}]}
    assert expected(ORDER, sent, room) == f"arguments: {shape}"


def test_what_is_wrong_stays_where_all_that_is_optional_goes() -> None:
    schema = copy.deepcopy(ORDER)
    schema["properties"] |= {f"option_{n}": closed({"a": STRING}) for n in range(20)}
    sent = {**RIGHT, "lines": [{"sku": "a", "amount": "1"}]}
    shape = expected(schema, sent, 200)
    assert shape == 'arguments: {…, size: "small"|"medium"|"large", lines?: [{…, qty: string}], …}'
    shape = expected(schema, sent, 300, is_known=False)
    assert f'size: "small"|"medium"|"large", {LINES}, …}}' in shape


def test_what_is_wrong_stays_however_deep_it_is() -> None:
    inner = closed({"sku": STRING, **{f"x{n}": STRING for n in range(30)}}, "sku")
    schema = closed({"size": {"enum": ["small", "large"]}, "a": inner}, "size")
    beside = closed({f"y{n}": STRING for n in range(30)}, *(f"y{n}" for n in range(30)))
    for name in "bcdef":
        schema = closed({name: schema, "beside": beside, "size": {"enum": [1, 2]}}, "size", name)
    sent: Any = {"a": {"code": "x"}}
    for name in "bcdef":
        sent = {name: sent, "size": 1}
    shape = expected(schema, {**sent, "width": 3}, 350)
    assert 'size: "small"|"large"' in shape
    assert "sku: string" in shape


def test_of_a_union_the_branch_that_was_meant_stays() -> None:
    air = {"mode": {"const": "AIR"}, "flight": STRING, "pilot": STRING, "airline": STRING}
    ways = {"AIR": closed(air, "mode", "flight")}
    ways["SEA"] = closed({"mode": {"const": "SEA"}, "port": STRING}, "mode", "port")
    schema = closed(
        {"ship": {"oneOf": list(ways.values())}, "size": {"enum": ["s", "l"]}}, "ship", "size"
    )
    sent = {"ship": {"mode": "SEA", "harbour": "x"}, "width": 1}
    assert (
        expected(schema, sent, 139)
        == 'arguments: {ship: {mode: …, port: string} | …, size: "s"|"l"}'
    )


def test_what_is_missing_is_said_in_full_even_if_it_was_sent_right_elsewhere() -> None:
    schema = copy.deepcopy(ORDER)
    schema["properties"]["to"] = {"$ref": "#/$defs/place"}
    schema["required"].append("to")
    sent = {**RIGHT, "size": "small", "from": {"city": "x", "land": "FR", "zip": "1"}, "lines": []}
    assert expected(schema, sent, 165) == (
        'arguments: {…, from: Place, to: Place} where Place = {city: string, land: "GB"|"DE"}'
    )


def test_of_what_could_not_be_explained_nothing_is_known_to_be_right() -> None:
    sent = {**RIGHT, "lines": [{"sku": "a", "amount": "1"}] * 100}
    assert not SchemaValidator(ORDER).explains_all(sent)
    assert SchemaValidator(ORDER).explains_all({**RIGHT, "lines": [{"amount": "1"}] * 10})
    caps = Caps(characters=60, shape_characters=170)
    catalog = Catalog()
    catalog.replace([sealed(ToolSpec(name="t", input_schema=ORDER))])
    texts = []
    for count in (10, 100):
        arguments = {**RIGHT, "lines": [{"sku": "a", "amount": "1"}] * count}
        call = ToolCall(id="1", index=0, name="t", arguments=arguments)
        answer = validate(call, catalog.offers, None, Wording(caps, style="brief"))
        assert isinstance(answer, ToolResult)
        texts.append(str(answer.error))
    assert "{…, size: " in texts[0]
    assert "{size: " in texts[1]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], str]]:
    if isinstance(value, dict):
        for key in value:
            yield path, key
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*path, index))


def test_a_missing_field_is_named_even_in_the_shortest_message(shared_data: Path) -> None:
    """Of every recorded tool one field is left out at a time, and another sent that is unknown."""
    count = 0
    for line in (shared_data / "blind_tools.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        validator = SchemaValidator(row["schema"])
        whole = validator.shapes.whole(row["schema"], 10_000)
        assert whole is not None
        for path, name in list(places(row["example"])):
            sent = copy.deepcopy(row["example"])
            holder = sent
            for step in path:
                holder = holder[step]
            holder["an_unknown_field"] = holder.pop(name)
            problems = validator.problems(sent)
            wording = Wording(Caps(characters=120, shape_characters=max(350, len(whole.line) // 2)))
            text = texts.invalid_arguments(problems, wording, validator.shapes, arguments=sent)
            for problem in problems:
                if problem.kind == "required" and problem.shape and problem.shape != "…":
                    count += 1
                    assert re.search(rf"{re.escape(str(problem.path[-1]))}\??: ", text)
    assert count > 100

"""A rule that cannot be applied to a tool's arguments denies the tool, and operators are told."""

import asyncio
import json
from datetime import date, datetime, timedelta
from decimal import Decimal
from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import msgspec
import pytest
from pydantic import (
    UUID4,
    Base64Str,
    BaseModel,
    Field,
    Json,
    PostgresDsn,
    StringConstraints,
    TypeAdapter,
)

from tests.waiting import eventually
from toolpool import Code, Dispatcher, Hooks, tool
from toolpool.contract.schema.validator import SchemaValidator
from toolpool.dispatcher.observer import HookFailure, Observer
from toolpool.dispatcher.policy import schema_fit
from toolpool.dispatcher.policy.rule_file import RuleFile
from toolpool.dispatcher.policy.rules import parse

ID = "00000000-0000-4000-8000-00000000000a"
RAN: list[Any] = []


class Line(BaseModel):
    sku: str
    qty: int = 1


class Priced(BaseModel):
    id: UUID
    qty: int = 1


class Named(NamedTuple):
    sku: str
    qty: int = 1


@tool(effects="write")
async def order(
    account: UUID,
    amount: float,
    lines: list[Line],
    either: list[Line] | Line,
    by_zone: dict[str, Line],
    kind: str | None = None,
    limit: int = 10,
    price: Decimal = Decimal(0),
    anything: Any = None,
    mode: Annotated[str, "one of two"] = "fast",
    data: Base64Str | None = None,
    text: Json[dict[str, str]] | None = None,
) -> str:
    """Order."""
    RAN.append(lines)
    return "ordered"


MISFITS = [
    ('argument = "amount"\nmatches = "1"', "amount is no text"),
    ('argument = "data"\nequals = "evil"', "data is encoded"),
    ('argument = "text"\nmatches = "evil"', "text is encoded"),
    ('argument = "kind"\nabove = 1', "kind is no number"),
    ('argument = "amount"\nlonger_than = 1', "amount has no length"),
    ('argument = "lines[*].sku"\nat_most = 3', "lines[*].sku is no number"),
    ('argument = "either[*].sku"\nequals = "x"', "may be one object in place of a list"),
    ('argument = "anything[*].sku"\nequals = "x"', "may be anything"),
    ('argument = "anything.deep[0].down"\nequals = 1', "may be anything"),
    ('argument = "amuont"\nabove = 5', "its schema has no amuont"),
    ('argument = "lines[*].price"\nabove = 5', "its schema has no lines[*].price"),
    ('argument = "amount"\nequals = "5"', "amount never equals what it is compared with"),
    ('argument = "limit"\nmissing = true', "limit is never missing"),
    ('argument = "price"\nequals = 500', "may be a number or its text"),
    ('argument = "price"\nnone_of = ["500"]', "may be a number or its text"),
    (f'argument = "account"\nequals = "{ID.upper()}"', f"write it as {ID}"),
]
FITTING = [
    'argument = "lines[*].sku"\nmatches = "x"',
    'argument = "lines[0].qty"\nabove = 1',
    'argument = "by_zone[*].qty"\nabove = 1',
    'argument = "by_zone.north.qty"\nabove = 1',
    'argument = "either"\nlonger_than = 3',
    'argument = "kind"\nmissing = true',
    'argument = "anything.deep.down"\nequals = 1',
    'argument = "amount"\nequals = 5',
    'argument = "price"\nat_most = 5',
    'argument = "price"\nequals = "free"',
    f'argument = "account"\none_of = ["{ID}"]',
    'context = "amuont"\nabove = 5',
]


def misfit(condition: str, name: str = "order") -> str:
    text = f'[[rule]]\naction = "deny"\ntool = "{name}"\n{condition}'
    return parse(text, "p").misfit(order.spec)


@pytest.mark.parametrize(("condition", "told"), MISFITS)
def test_a_rule_that_cannot_be_held_to_a_schema_says_why(condition: str, told: str) -> None:
    assert told in misfit(condition)


@pytest.mark.parametrize("condition", FITTING)
def test_a_rule_that_can_be_held_to_a_schema(condition: str) -> None:
    assert misfit(condition) == ""


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ({"allOf": [{"type": "array", "items": {"type": "string"}}, {"minItems": 1}]}, ""),
        ({"allOf": [{"type": "array"}, {"items": {"type": "string"}}]}, ""),
        ({"$ref": "#/$defs/L", "description": "Lines."}, ""),
        ({"anyOf": [{"type": "array"}, {}]}, "may be anything"),
        ({"anyOf": [{"type": "array"}, {"type": "object"}]}, ""),
        ({"oneOf": [{"type": "array"}, {"$ref": "#/$defs/O"}]}, "one object in place"),
        ({"type": ["array", "object"], "properties": {"a": {}}}, "one object in place"),
        ({"prefixItems": [{"type": "integer"}], "type": "array", "items": False}, "no text"),
    ],
)
def test_what_a_schema_takes_is_found_wherever_it_says_so(lines: Any, told: str) -> None:
    defs = {
        "L": {"type": "array", "items": {"type": "string"}},
        "O": {"type": "object", "properties": {"sku": {}}, "additionalProperties": False},
    }
    schema = {"type": "object", "properties": {"lines": lines}, "$defs": defs}
    spec = msgspec.structs.replace(order.spec, input_schema=schema)
    text = '[[rule]]\naction = "deny"\nargument = "lines[*]"\nmatches = "x"'
    found = parse(text, "p").misfit(spec)
    assert told in found if told else not found


NO_SUCH_FIELD = [
    tuple[str, int],
    Named,
    list[str],
    {"type": "array", "prefixItems": [{"type": "string"}], "maxItems": 1},
    {"type": "array", "prefixItems": [{"type": "string"}], "unevaluatedItems": False},
    {"type": "array", "items": [{"type": "string"}], "additionalItems": False},
    {"type": "object", "patternProperties": {"^b": {}}, "additionalProperties": False},
    {"type": "object", "propertyNames": {"enum": ["other"]}},
    {"enum": [{"other": "X-9"}]},
    {"const": {"other": "X-9"}},
]


@pytest.mark.parametrize("kind", NO_SUCH_FIELD, ids=str)
def test_a_path_that_no_value_can_have_is_found(kind: Any) -> None:
    schema = kind if isinstance(kind, dict) else TypeAdapter(kind).json_schema()
    assert "its schema has no lines.sku" in of_lines(schema, "lines.sku")
    assert of_lines(schema, "lines.sku", tool="ord*") == ""


def test_a_path_to_a_position_ends_with_the_list() -> None:
    pair = TypeAdapter(tuple[str, int]).json_schema()
    assert of_lines(pair, "lines[0]") == ""
    assert "its schema has no lines[2]" in of_lines(pair, "lines[2]")
    fields = {"type": "object", "patternProperties": {"^sku": {"type": "string"}}}
    assert of_lines(fields, "lines.sku_2") == ""


class Noted(BaseModel):
    id: str
    memo: str | None = None


class Card(BaseModel):
    kind: Literal["card"]
    urgent: bool = False


class Transfer(BaseModel):
    kind: Literal["transfer"]
    urgent: bool = False


class Encoded(BaseModel):
    data: Base64Str


StrictStr3 = Annotated[str, StringConstraints(pattern="^[A-Z]{3}$")]
Code3 = Annotated[str, StringConstraints(pattern="^[A-Z]{2}$")]
CONSTANTS = [
    (dict[str, Decimal], {"a": 900}, "number or its text"),
    (list[Decimal], [900], "number or its text"),
    (list[UUID], [ID.upper()], f"write it as {ID}"),
    (Priced, {"id": ID.upper(), "qty": 1}, f"write it as {ID}"),
    (Priced, {"id": ID}, "without qty"),
    (Priced, {"id": ID, "qty": "x"}, "never equals"),
    (Priced, {"id": ID, "other": 1, "qty": 1}, "never equals"),
    (Priced, {"id": ID, "qty": 1}, ""),
    (list[Priced], [{"id": ID, "qty": 1}], ""),
    (datetime, "2026-01-02T03:04:05Z", "another offset"),
    (Any, {"a": [1, "b"]}, ""),
    (Noted, {"id": "a"}, "without memo"),
    (list[Noted], [{"id": "a"}], "compare its single fields"),
    (list[Card], [{"kind": "card"}], 'write it as [{"kind":"card","urgent":false}]'),
    (Noted, {"id": "a", "memo": "b"}, ""),
    (Annotated[Card | Transfer, Field(discriminator="kind")], {"kind": "card"}, "without urgent"),
    (Card | Noted, {"kind": "card", "urgent": False}, ""),
    ({"allOf": [{"$ref": "#/$defs/U"}]}, {"a": 1}, "without b"),
    (UUID4, ID.upper(), f"write it as {ID}"),
    (date, "2026-1-2", "has the format date, and this value does not"),
    (IPv4Network, "10.0.0.1/8", "has the format ipv4network"),
    (UUID4, "hello", "has the format uuid4"),
    (UUID4 | Literal["default"], "default", ""),
    (UUID4 | Literal["default"], "other", "has the format uuid4"),
    (UUID4 | str, "hello", ""),
    ({"$ref": "#elsewhere"}, 5, "an object in place of a value"),
    ({"anyOf": [{"const": ["a"]}, {"type": "string", "maxLength": 2}]}, "zzz", "never equals"),
    ({"properties": {"a": {}, "b": {"default": 1}}, "maxProperties": 1}, {"a": 1}, ""),
    ({"type": "array", "maxItems": 2}, ["b", "a"], ""),
    (StrictStr3, "usd", "never equals"),
    (timedelta, "PT24H", "write it as P1D"),
    (Path, "/srv/prod/", "write it as /srv/prod"),
    (IPv4Network, "10.0.0.0/255.0.0.0", "write it as 10.0.0.0/8"),
    (PostgresDsn, "postgres://CORE.bank/db", "only the tool's type knows"),
    (Encoded, {"data": "ZXZpbA=="}, "is encoded"),
]


@pytest.mark.parametrize("tool", ["order", "ord*"])
def test_each_of_several_constants_is_compared_in_the_spelling_that_is_judged(tool: str) -> None:
    schema = TypeAdapter(Noted).json_schema()
    several = [{"id": "a", "memo": "b"}, {"id": "a"}]
    told = of_lines(schema, "lines", tool=tool, constant=several, key="none_of")
    assert "without memo" in told


def test_one_constant_that_is_never_valid_is_enough_unless_the_schema_lists_its_values() -> None:
    days, modes = TypeAdapter(date).json_schema(), {"enum": ["fast", "slow"]}
    given = {"constant": ["2026-01-02", "2026-1-2"], "key": "one_of"}
    assert "has the format date" in of_lines(days, "lines", **given)
    assert of_lines(modes, "lines", constant=["fast", "other"], key="one_of") == ""
    some_listed = TypeAdapter(StrictStr3 | Literal["auto"]).json_schema()
    assert "never equals" in of_lines(some_listed, "lines", constant=["auto", "x"], key="one_of")
    assert "never equals" in of_lines(modes, "lines", constant=["x", "y"], key="one_of")


def test_a_set_has_no_position() -> None:
    schema = TypeAdapter(set[str]).json_schema()
    assert "has no order" in of_lines(schema, "lines[0]")
    assert of_lines(schema, "lines[*]") == ""


@pytest.mark.parametrize(("kind", "constant", "told"), CONSTANTS, ids=str)
def test_an_object_or_list_is_compared_in_the_spelling_that_is_judged(
    kind: Any, constant: Any, told: str
) -> None:
    schema = kind if isinstance(kind, dict) else TypeAdapter(kind).json_schema()
    found = of_lines(schema, "lines", constant=constant)
    assert told in found if told else not found


HIDDEN = [
    (Line | dict[Code3, Line], "lines.qty", "may be a map of objects"),
    (list[Line] | dict[Code3, Line | int], "lines[*].qty", "in place of"),
    (dict[Code3, Decimal], "lines[*]", "number or its text"),
    (dict[Code3, dict[Code3, Decimal]], "lines[*][*]", "number or its text"),
    ({"type": "object", "allOf": [{"$ref": "#/$defs/P"}]}, "lines.amount", "number or its text"),
    ({"type": "object", "$ref": "#/$defs/P"}, "lines.amount", "number or its text"),
    ({"type": "object", "oneOf": [{"$ref": "#/$defs/P"}]}, "lines.other", "has no lines.other"),
    ({"properties": {"sku": {"type": "string"}}}, "lines.sku", "in place of an object"),
    (Line | str | int | float | bool | list[Line] | None, "lines.sku", "in place of an object"),
    ({"anyOf": [{"const": str(n)} for n in range(600)]}, "lines", "too many branches"),
    (
        {"type": "string", "if": {}, "then": {"contentEncoding": "base64"}},
        "lines",
        "is encoded",
    ),
    (
        {
            "type": "object",
            "properties": {"a": {"type": "string"}},
            "additionalProperties": {"$ref": "#/$defs/D"},
        },
        "lines[*]",
        "number or its text",
    ),
]


EITHER_REQUIRED = {"anyOf": [{"type": "object", "required": [name]} for name in ("amount", "to")]}
WIRE = {
    "type": "object",
    "properties": {
        "amount": {"$ref": "#/$defs/D"},
        "to": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/P"}]},
    },
    **EITHER_REQUIRED,
}
HIDDEN += [
    (WIRE, "lines.amount", "number or its text"),
    (WIRE, "lines.to.amount", "in place of an object"),
    ({**WIRE, "anyOf": [{"required": ["to"]}, {}]}, "lines.amount", "number or its text"),
    ({"allOf": [{"type": "object"}, WIRE]}, "lines.amount", "number or its text"),
    ({"anyOf": [{"type": "object"}, WIRE]}, "lines.amount", "number or its text"),
]
BESIDE_A_PATTERN = {
    "type": "object",
    "properties": {"x_id": {"type": "string"}},
    "patternProperties": {"^x_": {"format": "uuid"}, "^y_": {"contentEncoding": "base64"}},
}


@pytest.mark.parametrize(
    ("schema", "path", "told"),
    [
        (WIRE, "lines.to", "an object in place of a value"),
        (TypeAdapter(str | list[Line]).json_schema(), "lines", "an object in place of a value"),
        (TypeAdapter(list[str | Line]).json_schema(), "lines", "an object in place of a value"),
        (BESIDE_A_PATTERN, "lines.x_id", f"write it as {ID}"),
        (BESIDE_A_PATTERN, "lines.y_b", "is encoded"),
    ],
    ids=str,
)
def test_a_text_may_stand_for_an_object_or_another_spelling(
    schema: dict[str, Any], path: str, told: str
) -> None:
    assert told in of_lines(schema, path, constant=ID.upper(), tool="ord*")


def test_each_element_of_a_list_may_be_compared_with_a_number() -> None:
    text = '[[rule]]\naction = "deny"\nargument = "lines"\nabove = 5'
    schema = {"properties": {"lines": {"type": "array", "items": {"type": "integer"}}}}
    spec = msgspec.structs.replace(order.spec, input_schema=schema)
    assert parse(text, "p").misfit(spec) == ""


@pytest.mark.parametrize(("kind", "path", "told"), HIDDEN, ids=str)
@pytest.mark.parametrize("tool", ["order", "ord*"])
def test_other_forms_are_found_wherever_the_schema_has_them(
    kind: Any, path: str, told: str, tool: str
) -> None:
    schema = kind if isinstance(kind, dict) else TypeAdapter(kind).json_schema()
    found = of_lines(schema, path, tool=tool, constant=900)
    assert told in found or (tool == "ord*" and told.startswith("has no") and not found)


def test_nothing_that_a_schema_refers_to_is_fetched() -> None:
    names = {"$ref": "http://127.0.0.1:9/names"}
    assert of_lines({"type": "object", "propertyNames": names}, "lines.sku") == ""


def of_lines(
    lines: dict[str, Any],
    path: str,
    *,
    tool: str = "order",
    constant: Any = "X-9",
    key: str = "equals",
) -> str:
    """Why a rule on this path cannot be applied to a tool whose `lines` have this schema."""
    decimal = {"anyOf": [{"type": "number"}, {"type": "string"}]}
    product = {"type": "object", "properties": {"amount": decimal}}
    with_default = {"type": "object", "properties": {"a": {}, "b": {"default": 1}}}
    defs = {"P": product, "D": decimal, "U": with_default, **lines.get("$defs", {})}
    schema = {"type": "object", "properties": {"lines": lines}, "$defs": defs}
    spec = msgspec.structs.replace(order.spec, input_schema=schema)
    text = f'[[rule]]\naction = "deny"\ntool = "{tool}"\nargument = "{path}"'
    return parse(f"{text}\n{key} = {toml_of(constant)}", "p").misfit(spec)


def toml_of(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml_of(each)}" for name, each in value.items()) + "}"
    return (
        "[" + ", ".join(map(toml_of, value)) + "]" if isinstance(value, list) else json.dumps(value)
    )


def test_a_rule_for_many_tools_needs_no_path_in_each_of_them() -> None:
    assert misfit('argument = "amuont"\nabove = 5', "*") == ""
    assert misfit('argument = "amount"\nequals = "5"', "ord*") == ""
    assert "no number" in misfit('argument = "kind"\nabove = 1', "ord*")


def test_a_schema_that_is_not_checked_says_nothing_of_a_list() -> None:
    unchecked = msgspec.structs.replace(order.spec, check_schema=False, digest="x")
    text = '[[rule]]\naction = "deny"\nargument = "lines[*].sku"\nmatches = "x"'
    assert "may be anything" in parse(text, "p").misfit(unchecked)


def test_a_rule_for_other_tools_is_not_looked_at() -> None:
    assert misfit('argument = "amuont"\nabove = 5', "other") == ""
    assert misfit('argument = "amuont"\nabove = 5\neffects = "read"') == ""


class Failures(Observer):
    """Keeps what failed."""

    def __init__(self) -> None:
        self.seen: list[HookFailure] = []

    def hook_failed(self, failure: HookFailure) -> None:
        """See `Observer.hook_failed`."""
        self.seen.append(failure)


async def test_a_tool_is_denied_by_a_rule_that_cannot_be_held_to_it(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(
        '[[rule]]\nname = "no knives"\ntool = "order"\naction = "deny"\n'
        'argument = "either[*].sku"\nequals = "knife"'
    )
    failures = Failures()
    line = {"sku": "knife"}
    arguments = {"account": ID, "amount": 1, "lines": [], "either": line, "by_zone": {}}
    async with Dispatcher.in_memory(
        [order], hooks=Hooks(policy=policy), observers=[failures]
    ) as dispatcher:
        await eventually(lambda: failures.seen, "operators are told before any call")
        [told] = failures.seen
        assert (told.hook, told.tool) == ("rule", "order") and "no knives" in told.why
        turn = await dispatcher.dispatch({"id": "c", "name": "order", "input": arguments})
        assert turn[0].code is Code.DENIED and RAN == []


def test_a_rule_that_can_decide_no_call_of_any_tool_is_idle() -> None:
    """Also where another tool has other effects."""
    other = msgspec.structs.replace(order.spec, name="look", effects="read")
    text = (
        '[[rule]]\nname = "typo"\naction = "deny"\neffects = "write"\nargument = "modee"\n'
        'equals = "x"\n[[rule]]\nname = "good"\naction = "deny"\neffects = "write"\n'
        'argument = "mode"\nequals = "x"\n'
    )
    assert parse(text, "p.toml").idle([order.spec, other]) == ["typo"]


RECURSIVE = {"type": "object", "properties": {"n": {"$ref": "#/$defs/N", "default": {}}}}


def test_a_schema_whose_defaults_recurse_without_end_is_no_fault() -> None:
    lines = {"$ref": "#/$defs/N", "$defs": {"N": RECURSIVE}}
    assert "recurses too deeply" in of_lines(lines, "lines", constant={})


def test_every_schema_that_applies_to_a_value_may_fill_in_a_default() -> None:
    """Also one that stands beside the value's own, in `allOf` of the whole."""
    with_default = {"properties": {"lines": {"properties": {"x": {"default": 1}}}}}
    schema = {"properties": {"lines": {"type": "object"}}, "allOf": [with_default]}
    spec = msgspec.structs.replace(order.spec, input_schema=schema)
    text = '[[rule]]\naction = "deny"\nargument = "lines"\nequals = {y = 1}'
    assert "without x" in parse(text, "p").misfit(spec)


def test_a_schema_is_compiled_once_for_all_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []

    class Counted(SchemaValidator):
        def __init__(self, schema: Any) -> None:
            compiled.append(schema)
            super().__init__(schema)

    monkeypatch.setattr(schema_fit, "SchemaValidator", Counted)
    names = [f"f{number}" for number in range(100)]
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    spec = msgspec.structs.replace(order.spec, input_schema=schema)
    text = "".join(
        f'[[rule]]\naction = "deny"\nargument = "{name}"\nequals = "x"\n' for name in names
    )
    rules = parse(text, "p")
    assert rules.misfit(spec) == ""
    assert len(compiled) == 1


async def test_the_file_is_followed_whatever_the_schemas_of_tools_are(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    rule = '[[rule]]\naction = "deny"\ntool = "a"\n'
    file.write_text(rule)
    followed, looked = RuleFile(file), list[int]()

    def look() -> None:
        looked.append(len(followed.rules))
        raise ValueError("a fault")

    following = asyncio.ensure_future(followed.follow(look))
    await eventually(lambda: looked, "it is looked at")
    file.write_text(rule * 2)
    await eventually(lambda: looked[-1] == 2, "the new rules hold")
    following.cancel()

"""A rule that cannot be applied to a tool's arguments denies the tool, and operators are told."""

import asyncio
import contextlib
import json
import sys
from datetime import date, datetime, time, timedelta
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

from tests.cost import cost
from tests.waiting import eventually
from toolpool import Code, Dispatcher, Hooks, tool
from toolpool.contract.schema.validator import SchemaValidator
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.observer import HookFailure, Observer
from toolpool.dispatcher.policy import conditions, schema_fit
from toolpool.dispatcher.policy.equality import RuleFailed
from toolpool.dispatcher.policy.rule_file import RuleFile
from toolpool.dispatcher.policy.rules import Rules, parse
from toolpool.dispatcher.policy.verdict_types import Allow, Deny, ProposedCall

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
    ('argument = "amuont"\nabove = 5', "its schema has no amuont"),
    ('argument = "lines[*].price"\nabove = 5', "its schema has no lines[*].price"),
    ('argument = "amount"\nequals = "5"', "amount never equals what it is compared with"),
    ('argument = "limit"\nmissing = true', "limit is never missing"),
    ('argument = "lines[0][*]"\nlonger_than = 5', "lines[0] is an object without elements"),
    ('argument = "lines[*][*]"\nmissing = true', "lines[*] is an object without elements"),
    ('argument = "lines[*][0]"\ndiffers_from = "a"', "lines[*] is an object without elements"),
]
FITTING = [
    'argument = "lines[*].sku"\nmatches = "x"',
    'argument = "lines[0].qty"\nabove = 1',
    'argument = "by_zone[*].qty"\nabove = 1',
    'argument = "by_zone.north.qty"\nabove = 1',
    'argument = "either"\nlonger_than = 3',
    'argument = "either[*].sku"\nequals = "x"',
    'argument = "anything[*].sku"\nequals = "x"',
    'argument = "anything.deep[0].down"\nequals = 1',
    'argument = "price"\nequals = 500',
    'argument = "price"\nnone_of = ["500"]',
    f'argument = "account"\nequals = "{ID.upper()}"',
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


class Card2(BaseModel):
    order: str
    urgent: bool = False


class Transfer2(BaseModel):
    order: str
    memo: str | None = None


class To(BaseModel):
    to: str | Line


class Encoded(BaseModel):
    data: Base64Str


StrictStr3 = Annotated[str, StringConstraints(pattern="^[A-Z]{3}$")]
Code3 = Annotated[str, StringConstraints(pattern="^[A-Z]{2}$")]
NEVER = [
    (Priced, {"id": ID, "qty": "x"}),
    (date, "2026-1-2"),
    (IPv4Network, "10.0.0.1/8"),
    (UUID4, "hello"),
    (UUID4 | Literal["default"], "other"),
    ({"anyOf": [{"const": ["a"]}, {"type": "string", "maxLength": 2}]}, "zzz"),
    (StrictStr3, "usd"),
]


@pytest.mark.parametrize(("kind", "constant"), NEVER, ids=str)
def test_a_constant_that_no_call_can_have_is_found(kind: Any, constant: Any) -> None:
    schema = kind if isinstance(kind, dict) else TypeAdapter(kind).json_schema()
    assert "never equals" in of_lines(schema, "lines", constant=constant)
    assert of_lines(schema, "lines", constant=constant, tool="ord*") == ""


def test_a_field_of_a_constant_that_the_schema_does_not_have_is_found() -> None:
    schema, constant = TypeAdapter(list[Priced]).json_schema(), {"id": ID, "other": 1, "qty": 1}
    for several in (constant, [constant]):
        assert "its schema has no lines.other" in of_lines(schema, "lines", constant=several)


def test_one_constant_that_is_never_valid_is_enough_unless_the_schema_lists_its_values() -> None:
    days, modes = TypeAdapter(date).json_schema(), {"enum": ["fast", "slow"]}
    given = {"constant": ["2026-01-02", "2026-1-2"], "key": "one_of"}
    assert "never equals" in of_lines(days, "lines", **given)
    assert of_lines(modes, "lines", constant=["fast", "other"], key="one_of") == ""
    some_listed = TypeAdapter(StrictStr3 | Literal["auto"]).json_schema()
    assert "never equals" in of_lines(some_listed, "lines", constant=["auto", "x"], key="one_of")
    assert "never equals" in of_lines(modes, "lines", constant=["x", "y"], key="one_of")


def test_too_many_objects_for_many_branches_are_not_compared() -> None:
    union = {"anyOf": [{"type": "object", "required": [f"f{n}"]} for n in range(100)]}
    objects = [{f"f{n}": n} for n in range(300)]
    rules, spec = rule_on(union, "", objects, key="one_of")
    assert "too many values" in rules.misfit(spec)
    rules, spec = rule_on(union, "", objects[:50], key="one_of")
    assert rules.misfit(spec) == ""
    rules, spec = rule_on({"type": "string"}, "", [f"n{n}" for n in range(5_000)], key="one_of")
    assert rules.misfit(spec) == ""


LIMITS = [
    ("at_least", "0.1", 0.1, True),
    ("at_least", "0.1", "0.1", True),
    ("at_least", "0.1", "0.09999999999999999999", False),
    ("above", "0.1", "0.1", False),
    ("above", "1.1", "1.1000000000000000001", True),
    ("above", "1.5", 2, True),
    ("above", "1.5", 1, False),
    ("at_least", "1.5", 2, True),
    ("at_least", "1.5", 1, False),
    ("below", "-1.5", -2, True),
    ("below", "-1.5", -1, False),
    ("at_most", "-1.5", -2, True),
    ("at_most", "-1.5", -1, False),
    ("at_most", "1e23", 1e23, True),
    ("above", "9007199254740993", 9007199254740992.0, False),
    ("below", "9007199254740993", 9007199254740992.0, True),
    ("above", "1e308", 10**400, True),
    ("at_most", "19.99", "19.99", True),
    ("at_most", "19.99", "19.990000000000000001", False),
    ("below", "0.3", "0.3", False),
    ("below", "0.3", "0.2999999999999999999999", True),
]


@pytest.mark.parametrize(("key", "limit", "sent", "holds"), LIMITS)
def test_a_limit_is_the_number_that_is_written(
    key: str, limit: str, sent: Any, holds: bool
) -> None:
    """A binary fraction would be another number than the text of a Decimal."""
    for action, expected in (("deny", holds), ("allow", not holds)):
        default = 'default = "deny"\n' if action == "allow" else ""
        text = f'{default}[[rule]]\naction = "{action}"\nargument = "lines"\n{key} = {limit}'
        spec = msgspec.structs.replace(order.spec, input_schema=with_lines(schema_of(Decimal)))
        assert isinstance(judged(parse(text, "p"), spec, sent), Deny) is expected


def test_large_integers_are_compared_with_a_limit_without_a_conversion() -> None:
    """A Decimal of thousands of digits takes milliseconds, and no step counts it."""
    test = conditions.Test(conditions.Condition(argument="a[*]", below=-0.5))
    numbers, converted = [10**4_000 + number for number in range(50)], list[Any]()

    class Counted(int):
        def __lt__(self, other: Any) -> bool:
            converted.append(other)
            return super().__lt__(other)

    assert not test.holds({"a": [Counted(number) for number in numbers]}, for_all=False)
    assert len(converted) == 50 and {type(each) for each in converted} == {int}


def test_a_set_has_no_position() -> None:
    schema = TypeAdapter(set[str]).json_schema()
    assert "has no order" in of_lines(schema, "lines[0]")
    assert of_lines(schema, "lines[*]") == ""


A_MAP_OF_DECIMALS = {"type": "object", "additionalProperties": {"$ref": "#/$defs/D"}}
EITHER_REQUIRED = {"anyOf": [{"type": "object", "required": [name]} for name in ("amount", "to")]}
WIRE = {
    "type": "object",
    "properties": {
        "amount": {"$ref": "#/$defs/D"},
        "to": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/P"}]},
    },
    **EITHER_REQUIRED,
}
BESIDE_A_PATTERN = {
    "type": "object",
    "properties": {"x_id": {"type": "string"}},
    "patternProperties": {"^x_": {"format": "uuid"}, "^y_": {"contentEncoding": "base64"}},
}
CUSTOMER = {"type": "object", "properties": {"id": {"type": "string"}}}
DEFAULT_BESIDE = {
    "properties": {"y": {}},
    "allOf": [{"properties": {"x": {"default": 1}}}],
}
MATCHED = [
    (Line | dict[Code3, Line], "qty", 900, {"qty": 900, "sku": "a"}),
    (list[Line] | dict[Code3, Line | int], "[*].qty", 900, {"AB": {"sku": "a", "qty": 900}}),
    (list[Line] | dict[Code3, Line], "[*].qty", 900, [{"sku": "a", "qty": 900}]),
    (dict[Code3, Decimal], "[*]", 900, {"AB": "9e2"}),
    (dict[Code3, dict[Code3, Decimal]], "[*][*]", 900, {"AB": {"CD": "900.0"}}),
    (Decimal, "", "900", "900.00"),
    (Decimal, "", 900, 900.0),
    (dict[str, Decimal], "", {"a": 900}, {"a": "900.0"}),
    (list[Decimal], "", [900], ["900.0"]),
    ({"type": "object", "allOf": [{"$ref": "#/$defs/P"}]}, "amount", 900, {"amount": "900"}),
    ({"type": "object", "$ref": "#/$defs/P"}, "amount", 900, {"amount": "900"}),
    ({**A_MAP_OF_DECIMALS, "properties": {"a": {"type": "string"}}}, "[*]", 900, {"b": "900"}),
    (WIRE, "amount", 900, {"amount": "900"}),
    ({**WIRE, "anyOf": [{"required": ["to"]}, {}]}, "amount", 900, {"amount": "900"}),
    ({"allOf": [{"type": "object"}, WIRE]}, "amount", 900, {"amount": "900"}),
    ({"anyOf": [{"type": "object"}, WIRE]}, "amount", 900, {"amount": "900"}),
    (UUID, "", ID.upper(), ID.upper()),
    (list[UUID], "", [ID.upper()], [ID]),
    (UUID4, "", ID.upper(), ID),
    (UUID4 | str, "", "hello", "hello"),
    (UUID4 | Literal["default"], "", "default", "default"),
    (Priced, "", {"id": ID.upper(), "qty": 1}, {"id": ID}),
    (Priced, "", {"id": ID}, {"id": ID.upper(), "qty": 1}),
    (Noted, "", {"id": "a"}, {"id": "a"}),
    (list[Noted], "", [{"id": "a"}], [{"id": "a", "memo": None}]),
    (list[Card], "", [{"kind": "card"}], [{"kind": "card", "urgent": False}]),
    (
        Annotated[Card | Transfer, Field(discriminator="kind")],
        "",
        {"kind": "card"},
        {"kind": "card", "urgent": False},
    ),
    (Card | Noted, "", {"kind": "card", "urgent": False}, {"kind": "card"}),
    ({"allOf": [{"$ref": "#/$defs/U"}]}, "", {"a": 1}, {"a": 1}),
    (DEFAULT_BESIDE, "", {"y": 1}, {"y": 1}),
    ({"properties": {"a": {}, "b": {"default": 1}}, "maxProperties": 1}, "", {"a": 1}, {"a": 1}),
    ({"type": "array", "maxItems": 2}, "", ["b", "a"], ["a", "b"]),
    (datetime, "", "2026-01-02T03:04:05Z", "2026-01-02T05:04:05+02:00"),
    (time, "", "03:04:05Z", "04:04:05+01:00"),
    (time, "", "03:04:05z", "04:04:05+01:00"),
    (time, "", "00:00:00Z", "23:00:00-01:00"),
    (datetime, "", "2026-01-02t03:04:05z", "2026-01-02T05:04:05+02:00"),
    (list[datetime], "", ["2026-01-02t03:04:05z"], ["2026-01-02T05:04:05+02:00"]),
    (timedelta, "", "PT24H", "P1D"),
    (Path, "", "/srv/prod/", "/srv/prod"),
    (Path, "", "/srv/prod", "//srv/prod"),
    (list[Path], "", ["/srv/prod"], ["//srv//prod"]),
    (Path | str, "", "//srv/prod", "/srv/prod"),
    (IPv4Network, "", "10.0.0.0/255.0.0.0", "10.0.0.0/8"),
    (Any, "", {"a": [1, "b"]}, {"a": [1, "b"]}),
    (Any, "", 900, "900"),
    (Any, "", True, "true"),
    (str | list[str], "", ["eve"], "eve"),
    (list[str] | str, "", "eve", ["a", "eve"]),
    (BESIDE_A_PATTERN, "x_id", ID.upper(), {"x_id": ID}),
    (Line | Literal["self"], "", "self", "self"),
    ({}, "[*].sku", "evil", {"a": {"sku": "evil"}}),
    ({"type": ["object", "null"]}, "[*]", "evil", {"a": "evil"}),
    ({"type": ["object", "array"]}, "[*].sku", "evil", {"a": {"sku": "evil"}}),
    ({"type": ["string", "object", "array", "null"]}, "[*].sku", "evil", {"a": {"sku": "evil"}}),
    ({"items": {"properties": {"sku": {}}}}, "[*].sku", "evil", {"a": {"sku": "evil"}}),
    (Any | list[Line], "[*].sku", "evil", {"a": {"sku": "evil"}}),
    ({}, "[*].sku", "evil", {"sku": "evil"}),
    # a tool with a raw schema gets a text as it was sent
    *(({"type": "string", "format": "duration"}, "", "PT24H", text) for text in ("PT24H", "P1D")),
    ({"type": "string", "format": "path"}, "", "/data/", "/data/"),
    ({"if": {}, "then": {"format": "uuid"}}, "", ID, ID.upper()),
    (datetime | int, "", "2026-01-02T03:04:05Z", "2026-01-02T04:04:05+01:00"),
    (Decimal, "", 666, "0" * 500 + "666"),
    (Decimal, "", 666, "666." + "0" * 500),
    (Noted | dict[str, Any], "", {"id": "a"}, {"id": "a", "memo": None}),
    (Card2 | Transfer2, "", {"order": "a"}, {"order": "a", "urgent": False}),
    (Card2 | Transfer2, "", {"order": "a"}, {"order": "a", "memo": None}),
    (list[Card2 | Transfer2], "", [{"order": "a"}], [{"order": "a", "memo": None}]),
    (set[UUID], "", [ID, ID.upper()], [ID]),
]
NOT_COMPARABLE = [
    (Line | dict[Code3, Line], "qty", {"AB": {"sku": "a", "qty": 900}}),
    (Line | str | int | float | bool | list[Line] | None, "sku", "evil"),
    (Line | int, "sku", 5),
    (dict[Code3, Line | int], "[*].qty", {"AB": 5}),
    ({"properties": {"sku": {"type": "string"}}}, "sku", "evil"),
    (WIRE, "to", {"to": {"amount": 1}}),
    (WIRE, "to.amount", {"to": "evil"}),
    (str | list[Line], "", [{"sku": "evil"}]),
    (list[str | Line], "", ["a", {"sku": "evil"}]),
    (str | Line, "", {"sku": "evil"}),
    (Any, "", {"name": "evil"}),
    (Any, "id", "evil"),
    (Any, "id", {"first": {"id": "evil"}}),
    (Any, "[*].id", {"first": "evil"}),
    (Any, "[0]", {"first": "evil"}),
    (list[Line] | dict[str, Line], "[0].sku", {"first": {"sku": "evil"}}),
    (list[Line] | dict[str, Line], "[1].sku", {"first": {"sku": "evil"}}),
    (dict[str, Any], "by.id", {"by": [["evil"]]}),
    (To | Literal["self"], "", {"to": {"sku": "self"}}),
    (Line | dict[str, Line | str], "sku", {"sku": "a", "x": {"sku": "evil"}}),
    (Line | dict[str, Line | None], "sku", {"sku": None, "x": {"sku": "evil"}}),
]
UNHARMED = [
    (Line | None, "sku", None),
    (Line | bool, "sku", True),
    (Line | Literal["self", "none"], "sku", "self"),
    (Line, "sku", {"sku": "a"}),
    (dict[str, Line], "[*].sku", {"sku": {"sku": "a"}}),
    (list[Line] | Line, "[*].sku", {"sku": "a", "qty": 2}),
    (list[Line] | Line, "[1].sku", {"sku": "evil", "qty": 2}),
    (dict[str, Line], "north.qty", {"south": {"sku": "a"}}),
    ({"type": "object"}, "id", {"name": "a"}),
    (CUSTOMER, "id", {"address": {"id": "evil"}}),
    (Line | Literal["self"], "", "self"),
    (str, "", "007"),
]


def rule_on(
    schema: dict[str, Any],
    path: str,
    constant: Any,
    *,
    action: str = "deny",
    key: str = "equals",
    tool: str = "order",
) -> tuple[Rules, ToolSpec]:
    """A rule on `lines` of a tool whose `lines` have this schema, and the tool."""
    spec = msgspec.structs.replace(order.spec, input_schema=with_lines(schema))
    where = f"lines.{path}" if path and path[0] != "[" else f"lines{path}"
    text = f'[[rule]]\naction = "{action}"\ntool = "{tool}"\nargument = "{where}"'
    default = 'default = "deny"\n' if action == "allow" else ""
    return parse(f"{default}{text}\n{key} = {toml_of(constant)}", "p"), spec


def judged(rules: Rules, spec: ToolSpec, value: Any) -> Any:
    """The verdict on a call with this value for `lines`, as a dispatcher judges it."""
    assert spec.input_schema is not None
    validator = SchemaValidator(spec.input_schema)
    assert validator.problems({"lines": value}) == ()
    call = proposed(validator.canonical({"lines": value}), spec)
    return rules.decide(call, spec).verdict


def proposed(arguments: dict[str, Any], spec: ToolSpec) -> ProposedCall:
    return ProposedCall(
        tool="order",
        arguments=arguments,
        call_id="c",
        session=None,
        turn=None,
        tenant="",
        context=None,
        effects=spec.effects,
        provider="",
    )


def schema_of(kind: Any) -> dict[str, Any]:
    return kind if isinstance(kind, dict) else TypeAdapter(kind).json_schema()


@pytest.mark.parametrize(("kind", "path", "constant", "value"), MATCHED, ids=str)
def test_a_rule_matches_a_value_in_every_form_in_which_the_tool_takes_it(
    kind: Any, path: str, constant: Any, value: Any
) -> None:
    rules, spec = rule_on(schema_of(kind), path, constant)
    assert rules.misfit(spec) == ""
    assert judged(rules, spec, value) == Deny("")
    rules, spec = rule_on(schema_of(kind), path, constant, action="allow", key="differs_from")
    assert isinstance(judged(rules, spec, value), Deny)


@pytest.mark.parametrize(("kind", "path", "value"), NOT_COMPARABLE, ids=str)
def test_a_value_in_a_form_that_a_rule_cannot_compare_denies_the_call(
    kind: Any, path: str, value: Any
) -> None:
    rules, spec = rule_on(schema_of(kind), path, "evil")
    if kind == To | Literal["self"]:
        rules, spec = rule_on(schema_of(kind), path, {"to": "self"})
    elif kind in (Line | dict[Code3, Line], dict[Code3, Line | int]) or path == "to.amount":
        rules, spec = rule_on(schema_of(kind), path, 900)
    assert rules.misfit(spec) == ""
    with pytest.raises(RuleFailed, match="rule 1"):
        judged(rules, spec, value)
    rules, spec = rule_on(schema_of(kind), path, "evil", action="allow", tool="ord*")
    assert isinstance(judged(rules, spec, value), Deny)


def test_one_more_constant_permits_no_call() -> None:
    rules, spec = rule_on(schema_of(Noted | str), "", ["evil", {"id": "bob"}], key="one_of")
    with pytest.raises(RuleFailed, match="compared with a single value"):
        judged(rules, spec, {"id": "evil"})
    with pytest.raises(RuleFailed, match="compared with an object"):
        judged(rules, spec, "bob")
    rules, spec = rule_on(
        schema_of(Noted | Literal["self"]), "", ["self", {"id": "bob"}], key="one_of"
    )
    assert judged(rules, spec, {"id": "anna"}) == Allow()


@pytest.mark.parametrize("action", ["deny", "allow"])
@pytest.mark.parametrize(
    ("kind", "constant", "key", "element"),
    [
        (list[str], [f"n{number}" for number in range(500)], "one_of", "ab"),
        (list[int], list(range(500)), "none_of", 499),
        (list[int], [-1, *range(5_000)], "equals", -1),
        (list[Decimal], list(range(500)), "one_of", -1),
        (list[float], [0.5 + number for number in range(500)], "one_of", 499.5),
    ],
    ids=str,
)
def test_a_long_list_is_compared_with_single_values_in_linear_time(
    kind: Any, constant: Any, key: str, element: Any, action: str
) -> None:
    """The work is counted, not timed."""
    rules, spec = rule_on(schema_of(kind), "", constant, key=key, action=action)
    value = [element] * 20_000
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        judged(rules, spec, value)
    finally:
        sys.setprofile(None)
    assert len(value) < calls < 200 * (len(value) + len(constant))


@pytest.mark.parametrize(
    ("path", "value"),
    [("", [{"a": -1}] * 20_000), ("", [[{"a": -1}] * 20_000]), ("[*]", [{"a": -1}] * 20_000)],
    ids=["list", "nested list", "each"],
)
def test_too_many_objects_to_compare_deny_the_call(path: str, value: Any) -> None:
    constants: list[Any] = [{"a": number} for number in range(60)]
    rules, spec = rule_on(schema_of(list[Any]), path, constants, key="one_of")
    with pytest.raises(RuleFailed, match="too large for all comparisons"):
        judged(rules, spec, value)


def test_a_condition_that_does_not_hold_decides_although_another_cannot_be_compared() -> None:
    either = '{argument = "lines", equals = "eve"}', '{argument = "amount", above = 100}'
    spec = msgspec.structs.replace(order.spec, input_schema=None)
    for pair in (either, either[::-1]):
        rules = parse(f'[[rule]]\naction = "deny"\nwhen = [{", ".join(pair)}]', "p")
        call = {"lines": {"name": "eve"}, "amount": 5}
        assert rules.decide(proposed(call, spec), spec).verdict == Allow()
        with pytest.raises(RuleFailed):
            rules.decide(proposed({**call, "amount": 500}, spec), spec)


def test_an_element_that_is_equal_decides_although_another_cannot_be_compared() -> None:
    rules, spec = rule_on(schema_of(list[str | Line]), "[*]", "eve")
    for value in (["eve", {"sku": "a"}], [{"sku": "a"}, "eve"]):
        assert judged(rules, spec, value) == Deny("")


@pytest.mark.parametrize(
    ("constant", "value"),
    [
        ([[1], [2]], [[[[[[[[[1]]]]]]]]] * 40_000),
        ([[[[[[[[[[1]]]]]]]]]], [[[[[[[[[[1]]]]]]]]]] * 10_000),
    ],
    ids=["deep", "as deep as the constant"],
)
def test_nested_lists_that_need_too_many_comparisons_deny_the_call(
    constant: Any, value: Any
) -> None:
    rules, spec = rule_on({}, "", constant)
    with pytest.raises(RuleFailed, match="too large for all comparisons"):
        judged(rules, spec, value)
    assert judged(rules, spec, constant) == Deny("")


MANY_RULES: dict[str, tuple[list[dict[str, Any]], Any]] = {
    "objects": (
        [{"equals": {"a": n, "b": "x"}} for n in range(300)],
        [{"a": -1, "b": "x"}] * 3_000,
    ),
    "texts": ([{"matches": f"evil{n}"} for n in range(30)], ["good"] * 100_000),
    "a long text": ([{"matches": f"evil{n}.*x"} for n in range(300)], "evil" * 200_000),
    "a slow pattern": ([{"matches": "(a{1,50}){1,50}c"}], "a" * 60_000),
    "numbers": ([{"above": n} for n in range(1_000, 1_100)], [1] * 50_000),
    "fields": ([{"path": f"[*].a{n}", "equals": 1} for n in range(100)], [{"a": 1}] * 20_000),
    "formats": ([{"equals": ["2026-01-01"]}] * 50, ["2026-01-02"] * 20_000),
    "large integers": ([{"path": "[*]", "equals": n} for n in range(30)], [10**4_200] * 240),
}


@pytest.mark.parametrize("kind", MANY_RULES)
@pytest.mark.parametrize("action", ["deny", "allow"])
def test_all_rules_together_do_a_limited_amount_of_work(kind: str, action: str) -> None:
    conditions, value = MANY_RULES[kind]
    spec = msgspec.structs.replace(order.spec, input_schema=None)
    found = []
    for each in conditions:
        path = each.get("path", "")
        items = {name: one for name, one in each.items() if name != "path"}
        shown = ", ".join(f"{name} = {toml_of(one)}" for name, one in items.items())
        found.append(
            f'[[rule]]\naction = "{action}"\nwhen = [{{argument = "lines{path}", {shown}}}]\n'
        )
    rules = parse("".join(found), "p")
    call = proposed({"lines": value}, spec)

    def decide() -> Any:
        with contextlib.suppress(RuleFailed):
            return rules.decide(call, spec).verdict

    verdict, spent = cost(decide, most=100.0)
    assert spent < 100.0
    assert verdict in (None, Allow())


@pytest.mark.parametrize("text", ["1e3", "1_000", "+1000", " 1000", "1000.00", "１０００", "1000"])
@pytest.mark.parametrize(
    ("condition", "action", "is_met"),
    [
        ('matches = "^1000$"', "deny", True),
        ('matches = "^[0-9]{4,}$"', "deny", True),
        ('does_not_match = "^[0-9]{1,3}$"', "deny", True),
        ('matches = "^[0-9]{5,}$"', "deny", False),
        ('matches = "^1000$"', "allow", None),
    ],
)
def test_a_pattern_is_compared_with_each_spelling_of_a_number_in_a_text(
    text: str, condition: str, action: str, is_met: bool | None
) -> None:
    schema = with_lines(TypeAdapter(Decimal).json_schema())
    spec = msgspec.structs.replace(order.spec, input_schema=schema)
    head = 'default = "deny"\n' if action == "allow" else ""
    rules = parse(f'{head}[[rule]]\naction = "{action}"\nargument = "lines"\n{condition}', "p")
    is_met = text == "1000" if is_met is None else is_met
    verdict = rules.decide(proposed({"lines": text}, spec), spec).verdict
    assert isinstance(verdict, Allow) is (is_met if action == "allow" else not is_met)


@pytest.mark.parametrize("amount", [{}, {"lines": "900"}, {"lines": 900}])
def test_a_text_that_the_tool_reads_as_a_number_is_compared_as_one(amount: dict[str, Any]) -> None:
    schema = with_lines({**TypeAdapter(Decimal).json_schema(), "default": "900"})
    spec = msgspec.structs.replace(order.spec, input_schema=schema)
    arguments = SchemaValidator(schema).canonical(amount)
    for limit, verdict in ((100, Deny("")), (1000, Allow())):
        rules = parse(f'[[rule]]\naction = "deny"\nargument = "lines"\nabove = {limit}', "p")
        assert rules.decide(proposed(arguments, spec), spec).verdict == verdict


def test_a_rule_that_allows_needs_the_text_that_it_names() -> None:
    kind = {"type": "string", "format": "duration"}
    rules, spec = rule_on(kind, "", "PT24H", action="allow")
    assert judged(rules, spec, "PT24H") == Allow()
    assert isinstance(judged(rules, spec, "P1D"), Deny)


@pytest.mark.parametrize(("kind", "path", "value"), UNHARMED, ids=str)
def test_a_form_that_contains_nothing_is_no_hindrance(kind: Any, path: str, value: Any) -> None:
    rules, spec = rule_on(schema_of(kind), path, "evil", tool="ord*")
    assert judged(rules, spec, value) == Allow()


@pytest.mark.parametrize(
    ("schema", "path", "told"),
    [
        ({"anyOf": [{"const": str(n)} for n in range(600)]}, "lines", "too many branches"),
        ({"type": "string", "if": {}, "then": {"contentEncoding": "base64"}}, "lines", "encoded"),
        (BESIDE_A_PATTERN, "lines.y_b", "is encoded"),
        (TypeAdapter(Encoded).json_schema(), "lines.data", "is encoded"),
        (TypeAdapter(PostgresDsn).json_schema(), "lines", "only the tool's type knows"),
        (TypeAdapter(set[str]).json_schema(), "lines[0]", "has no order"),
    ],
    ids=str,
)
@pytest.mark.parametrize("tool", ["order", "ord*"])
def test_what_no_call_would_show_is_found_wherever_the_schema_has_it(
    schema: dict[str, Any], path: str, told: str, tool: str
) -> None:
    assert told in of_lines(schema, path, tool=tool, constant="postgres://a/b")


def test_an_encoded_field_of_a_constant_is_found() -> None:
    schema = TypeAdapter(Encoded).json_schema()
    assert "is encoded" in of_lines(schema, "lines", constant={"data": "ZXZpbA=="})


def test_a_field_that_no_branch_has_is_found() -> None:
    one_of = {"type": "object", "oneOf": [{"$ref": "#/$defs/P"}]}
    assert "has no lines.other" in of_lines(one_of, "lines.other")
    assert of_lines(one_of, "lines.other", tool="ord*") == ""


def test_a_set_has_positions_for_all_elements_only() -> None:
    assert of_lines(TypeAdapter(set[str]).json_schema(), "lines[*]") == ""


def test_each_element_of_a_list_may_be_compared_with_a_number() -> None:
    text = '[[rule]]\naction = "deny"\nargument = "lines"\nabove = 5'
    schema = {"properties": {"lines": {"type": "array", "items": {"type": "integer"}}}}
    spec = msgspec.structs.replace(order.spec, input_schema=schema)
    assert parse(text, "p").misfit(spec) == ""


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
    spec = msgspec.structs.replace(order.spec, input_schema=with_lines(lines))
    text = f'[[rule]]\naction = "deny"\ntool = "{tool}"\nargument = "{path}"'
    return parse(f"{text}\n{key} = {toml_of(constant)}", "p").misfit(spec)


def with_lines(lines: dict[str, Any]) -> dict[str, Any]:
    """A schema of arguments whose `lines` have this schema."""
    decimal = {"anyOf": [{"type": "number"}, {"type": "string"}]}
    product = {"type": "object", "properties": {"amount": decimal}}
    with_default = {"type": "object", "properties": {"a": {}, "b": {"default": 1}}}
    defs = {"P": product, "D": decimal, "U": with_default, **lines.get("$defs", {})}
    return {"type": "object", "properties": {"lines": lines}, "$defs": defs}


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


def test_a_schema_that_is_not_checked_may_have_any_value() -> None:
    unchecked = msgspec.structs.replace(order.spec, check_schema=False, digest="x")
    text = '[[rule]]\naction = "deny"\nargument = "lines[*].sku"\nequals = "evil"'
    rules = parse(text, "p")
    assert rules.misfit(unchecked) == ""
    for value in ([{"sku": "evil"}], {"sku": "evil"}, {"a": {"sku": "evil"}}):
        assert judged(rules, unchecked_with(unchecked), value) == Deny("")
    with pytest.raises(RuleFailed):
        judged(rules, unchecked_with(unchecked), "evil")


def unchecked_with(spec: ToolSpec) -> ToolSpec:
    return msgspec.structs.replace(spec, input_schema={"type": "object"})


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
        'argument = "eihter[*].sku"\nequals = "knife"'
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

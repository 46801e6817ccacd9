"""No form of a value passes a rule or a switch that denies it, whatever the type of the argument.

Random types, and values from small pools, so that different spellings of one value often meet. A
value is denied if the tool would get something that Python takes for the same.
"""

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from pathlib import Path, PureWindowsPath
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from pydantic import (
    AnyUrl,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError as NotTyped,
)

from toolpool import tool
from toolpool.contract.envelope import Envelope, PolicyVerdict, Switch
from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.contract.kill_switches import KillSwitches
from toolpool.contract.outcome import Outcome
from toolpool.contract.schema.validator import SchemaValidator
from toolpool.contract.signing import Keyring
from toolpool.dispatcher.policy.equality import RuleFailed
from toolpool.dispatcher.policy.rules import parse
from toolpool.dispatcher.policy.verdict_types import Deny, ProposedCall
from toolpool.workers.running.invoke import Invocation, prepare
from toolpool.workers.tool import Tool

ID = "6BA7B810-9DAD-11D1-80B4-00C04FD430C8"


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 5


class Place(Enum):
    HOME = UUID(ID)


class Line(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    sku: str = "a"
    price: Decimal = Field(Decimal("0.1"), alias="cost")


NUMBERS: list[Any] = [
    0,
    1,
    1.0,
    5,
    0.1,
    19.99,
    -1,
    1e3,
    "0.1",
    "1",
    "1.0",
    "5",
    "5.0",
    "19.99",
    "1e3",
    "1_000",
]
TEXTS: list[Any] = ["red", "a", "A", " a", "", "true", "5", "2026-01-02", "/etc"]
TIMES: list[Any] = [
    "2026-01-02", "2026-01-02T00:00:00Z", "2026-01-02T01:00:00+01:00", "2026-01-02 00:00:00Z",
    "2026-01-01T23:00:00-01:00", "00:00:00Z", "23:00:00-01:00", "01:00:00+01:00", "PT24H", "P1D",
    "PT1H",
]  # fmt: skip
PLACES: list[Any] = [
    "/etc", "//etc", "/etc/", "/etc//", "///etc", "/srv", "C:/etc", "C:\\etc", "10.0.0.1",
    "10.0.0.0/8", "10.0.0.0/255.0.0.0", "::1", "0:0:0:0:0:0:0:1", "https://a.example", "https://a.example/",
    "HTTPS://A.EXAMPLE", ID, ID.lower(), f"urn:uuid:{ID}", "{" + ID + "}",
]  # fmt: skip
OBJECTS: list[Any] = [
    {}, {"sku": "a"}, {"cost": 0.1}, {"cost": "0.10"}, {"price": "0.1"},
    {"sku": "a", "cost": "0.1"}, {"sku": "b"}, {"a": 5}, {"a": "5"}, {"a": "5.0"},
]  # fmt: skip
SINGLE: list[tuple[Any, list[Any]]] = [
    (Decimal, NUMBERS),
    (float, NUMBERS),
    (int, NUMBERS),
    (Level, NUMBERS),
    (Literal[1, "1", 5], NUMBERS),
    (str, TEXTS),
    (Annotated[str, StringConstraints(strip_whitespace=True, to_lower=True)], TEXTS),
    (Color, TEXTS),
    (bool, [True, False, "true"]),
    (date, TIMES),
    (datetime, TIMES),
    (time, TIMES),
    (timedelta, TIMES),
    (Path, PLACES),
    (PureWindowsPath, PLACES),
    (UUID, PLACES),
    (Place, PLACES),
    (IPv4Address, PLACES),
    (IPv4Network, PLACES),
    (IPv6Address, PLACES),
    (AnyUrl, PLACES),
    (Line, OBJECTS),
    (dict[str, Decimal], OBJECTS),
    (dict[str, int | str], OBJECTS),
    (Any, NUMBERS + TEXTS + OBJECTS),
]
Kind = tuple[Any, list[Any]]


def _lists(pool: list[Any]) -> list[Any]:
    return [*([each] for each in pool), *([pool[0], each] for each in pool), []]


def _wrapped(kind: Kind, how: str) -> Kind:
    of, pool = kind
    match how:
        case "list":
            return list[of], _lists(pool)  # type: ignore[valid-type]
        case "one or list":
            return of | list[of], pool + _lists(pool)
        case "tuple":
            return tuple[of, ...], _lists(pool)  # type: ignore[valid-type]
        case "map":
            return dict[str, of], [{"a": each} for each in pool]  # type: ignore[valid-type]
        case "or text":
            return of | str, pool + TEXTS
        case "or null":
            return of | None, [*pool, None]
    return kind


WRAPPERS = ["", "list", "one or list", "tuple", "map", "or text", "or null"]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, Any, Any]:
    """A type, a value of a rule, and a value that a model sends."""
    of, pool = draw(st.sampled_from(SINGLE))
    for _ in range(draw(st.integers(0, 2))):
        of, pool = _wrapped((of, pool), draw(st.sampled_from(WRAPPERS)))
    return of, draw(st.sampled_from(pool)), draw(st.sampled_from(pool))


def tool_of(of: Any) -> Tool | None:
    async def take(value: Any) -> None:
        """Take a value."""

    take.__annotations__["value"] = of
    try:
        return tool(take)
    except ToolDeclarationInvalid:
        return None


def are_same(one: Any, other: Any) -> bool:
    """Whether Python takes two typed values for the same; true is not 1."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(are_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(are_same(one[k], other[k]) for k in one)
    if isinstance(one, Path) and isinstance(other, Path):
        return str(one).replace("//", "/") == str(other).replace("//", "/")
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


def toml_of(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{key}" = {toml_of(each)}' for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_of, value)) + "]"
    return msgspec.json.encode(value).decode()


def runs_despite_a_rule(taken: Tool, condition: str, value: Any, *, action: str = "deny") -> bool:
    """Whether a call is passed by the rules, and by its worker with their verdict."""
    default = 'default = "deny"\n' if action == "allow" else ""
    text = f'{default}[[rule]]\naction = "{action}"\ntool = "take"\nargument = "value"\n{condition}'
    rules, schema = parse(text, "p"), taken.spec.input_schema
    assert schema is not None
    validator = SchemaValidator(schema)
    if rules.misfit(taken.spec) or validator.problems({"value": value}):
        return False
    arguments = validator.canonical({"value": value})
    call = ProposedCall(
        tool="take", arguments=arguments, call_id="c", session=None, turn=None, tenant="",
        context=None, effects=taken.spec.effects, provider="",
    )  # fmt: skip
    try:
        if isinstance(rules.decide(call, taken.spec).verdict, Deny):
            return False
    except RuleFailed:
        return False
    verdict = PolicyVerdict(policy="p", by="", tool="", paths=rules.paths("take"), is_whole=False)
    return not isinstance(prepare(Invocation(taken, arguments, None, 1_000, verdict)), Outcome)


def runs_despite_a_switch(taken: Tool, denied: Any, value: Any) -> bool:
    schema = taken.spec.input_schema
    assert schema is not None
    validator = SchemaValidator(schema)
    if validator.problems({"value": value}):
        return False
    switches = KillSwitches(Envelope(Keyring.local()), "p")
    switch = Switch(tool="take", reason="closed", argument="value", value=denied)
    switches.on = {"take": [switch]}
    if switches.denial("take", {"value": value}, "t", lambda _, sent: validator.canonical(sent)):
        return False
    return not isinstance(
        prepare(Invocation(taken, {"value": value}, None, 1_000, None, (switch,))), Outcome
    )


fuzzed = settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.filter_too_much]
)


def is_changed(value: Any, typed: Any) -> bool:
    """Whether a type changes a text in a way that no schema shows. Rules have it as it is kept."""
    if isinstance(value, list) and isinstance(typed, (list, tuple)):
        return any(map(is_changed, value, typed))
    if isinstance(value, dict) and isinstance(typed, dict):
        return any(is_changed(value[key], typed[key]) for key in typed)
    return isinstance(value, str) and isinstance(typed, str) and value != typed


@pytest.mark.filterwarnings("ignore::UserWarning")
@fuzzed
@given(cases())
@example((Path, "/etc", "//etc"))
@example((list[Decimal | str], ["5.0"], [5]))
@example((time, "00:00:00Z", "23:00:00-01:00"))
@example((list[Decimal], "5", ["1", "5.00"]))
@example((list[datetime], "2026-01-02T00:00:00Z", ["2026-01-02T01:00:00+01:00"]))
@example((set[Path], "/etc/", ["/etc"]))
def test_no_form_of_a_denied_value_runs(case: tuple[Any, Any, Any]) -> None:
    of, denied, sent = case
    taken = tool_of(of)
    if taken is None:
        return
    try:
        other = TypeAdapter(of).validate_python(sent)
        try:
            typed = TypeAdapter(of).validate_python(denied)
        except NotTyped:  # it may be one value of a list
            (typed,) = TypeAdapter(of).validate_python([denied])
    except NotTyped:
        return
    is_element = isinstance(other, (list, tuple, set)) and any(
        are_same(typed, each) for each in other
    )
    if not (is_element or are_same(typed, other)):
        return
    if not isinstance(typed, list) or not is_element:
        assert not runs_despite_a_switch(taken, denied, sent)
    if is_changed(denied, typed) or "null" in toml_of(denied):  # TOML has no null
        return
    assert not runs_despite_a_rule(taken, f"equals = {toml_of(denied)}", sent)
    assert not runs_despite_a_rule(taken, f"one_of = [{toml_of(denied)}]", sent)
    if not is_element:
        none = f"none_of = [{toml_of(denied)}]"
        assert not runs_despite_a_rule(taken, none, sent, action="allow")


COMPARED = {
    "above": lambda value, limit: value > limit,
    "at_least": lambda value, limit: value >= limit,
    "below": lambda value, limit: value < limit,
    "at_most": lambda value, limit: value <= limit,
}
NUMERIC = [Decimal, float, int, Decimal | str, Level, Decimal | None]


@pytest.mark.filterwarnings("ignore::UserWarning")
@fuzzed
@given(
    st.sampled_from(NUMERIC),
    st.sampled_from(sorted(COMPARED)),
    st.sampled_from(NUMBERS),
    st.sampled_from(NUMBERS),
)
def test_no_number_beyond_a_limit_runs(of: Any, key: str, limit: Any, sent: Any) -> None:
    taken = tool_of(of)
    if taken is None or isinstance(limit, str):
        return
    try:
        typed = TypeAdapter(of).validate_json(msgspec.json.encode(sent))
    except NotTyped:
        return
    if typed is None or isinstance(typed, str):
        return
    number = Decimal(repr(typed)) if isinstance(typed, float) else Decimal(typed)
    if COMPARED[key](number, Decimal(repr(limit))):
        assert not runs_despite_a_rule(taken, f"{key} = {toml_of(limit)}", sent)
    else:
        assert not runs_despite_a_rule(taken, f"{key} = {toml_of(limit)}", sent, action="allow")

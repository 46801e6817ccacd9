"""A kill switch on an argument denies a call that the tool would read as having the value."""

from collections import OrderedDict, deque
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path, PureWindowsPath
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

import pytest
from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    StringConstraints,
)

from toolpool import tool
from toolpool.contract.envelope import Envelope, Switch
from toolpool.contract.kill_switches import KillSwitches, why_never_matched
from toolpool.contract.outcome import Code, Executed, Outcome
from toolpool.contract.schema.validator import SchemaCache
from toolpool.contract.signing import Keyring
from toolpool.workers.running.invoke import Invocation, prepare
from toolpool.workers.tool import Tool


class Aliased(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    mode: str = Field("safe", validation_alias=AliasChoices("m", "mode", "kind"))


class Line(BaseModel):
    sku: str = "a"
    count: int = 1


class Opaque:
    def __init__(self, text: str) -> None:
        self.text = text


def opaque(value: Any) -> Opaque:
    return Opaque(str(value).strip())


Stripped = Annotated[str, StringConstraints(strip_whitespace=True, to_lower=True)]


class Unwritten:
    """It has no serializer."""

    def __init__(self, text: str) -> None:
        self.text = text


def own_text(value: Any) -> Opaque:
    if not isinstance(value, str):
        raise ValueError("a text is needed")
    return Opaque(value.strip())


OwnText = Annotated[Any, BeforeValidator(own_text), PlainSerializer(lambda own: own.text)]
Unserializable = Annotated[Any, BeforeValidator(Unwritten)]
OwnType = Annotated[Any, BeforeValidator(opaque), PlainSerializer(lambda own: own.text)]


class Owned(BaseModel):
    by: OwnType


class Numbered(BaseModel):
    """Each has an id of its own."""

    id: str = Field(default_factory=lambda: uuid4().hex)
    price: Decimal = Decimal(0)


class Uncomparable:
    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        raise KeyError(self.text)

    __hash__ = None  # type: ignore[assignment]


class Priced(BaseModel):
    price: Decimal
    by: OwnType = Field("somebody", validate_default=True)
    note: str | None = None
    at: datetime | None = None


class Kind(Enum):
    A = "a"


class Defaulted(BaseModel):
    """Its defaults are not validated, so they have another type than the same value when sent."""

    n: int | None = None
    kind: str | Kind = Field(default_factory=lambda: Kind.A)
    path: str | Path = Path("/a")
    on: str | date = date(2026, 1, 1)


DEFAULTED = {"n": None, "kind": "a", "path": "/a", "on": "2026-01-01"}
NO_OTHER = {"price": "1", "by": "somebody", "note": None, "at": None}

DENIED: list[tuple[Any, Any, Any]] = [
    (Defaulted, DEFAULTED, {}),
    (Defaulted, DEFAULTED, {"n": None, "kind": "a"}),
    (Priced, NO_OTHER, {"price": "1.0"}),
    (list[Priced], [NO_OTHER], [{"price": "1.00"}]),
    (list[Decimal | None], ["1", None], ["1.0", None]),
    (dict[str, Decimal | None], {"a": "1", "b": None}, {"a": "1.0", "b": None}),
    (
        dict[str, datetime | None],
        {"a": "2026-01-02T10:00:00Z", "b": None},
        {"a": "2026-01-02T11:00:00+01:00", "b": None},
    ),
    (list[tuple[int, int]], [1, 2], [[1, 2]]),
    (list[tuple[int, int]], [1, 2], [[3, 4], [1, 2]]),
    (list[list[str]], ["a"], [["x"], ["a"]]),
    (list[list[str]], ["a", "b"], [["x"], ["a", "b"]]),
    (list[set[str]], ["a", "b"], [["x"], ["b", "a"]]),
    (list[Any], ["a", "b"], ["x", ["a", "b"]]),
    (list[list[str]], [], [["x"], []]),
    (Numbered, {"price": "5"}, {"price": "5.0"}),
    (OwnText | list[OwnText], ["evil"], " evil"),
    (OwnText | list[OwnText], "evil", [" evil", "good"]),
    (Stripped | deque[Stripped], "evil", [" evil"]),
    (OrderedDict[str, Stripped], {"a": "x", "b": "y"}, {"b": "y ", "a": "x"}),
    (Annotated[Any, BeforeValidator(Uncomparable)], "evil", "what its class does not compare"),
    (Annotated[OwnType, Field(exclude=True)], "evil", "what no dump shows"),
    (Annotated[Decimal, Field(allow_inf_nan=True)], "5", "sNaN"),
    (Stripped, "danger", " danger "),
    (Stripped, "danger", "DANGER"),
    (Stripped, " Danger", "danger"),
    (Aliased, {"m": "danger"}, {"kind": "danger"}),
    (Aliased, {"m": "danger"}, {"mode": "danger"}),
    (Decimal, 5, "5"),
    (Decimal, 5, "5.0"),
    (Decimal, "6.0", 6),
    (Decimal, "6.0", "6.00"),
    (Decimal, "1.50", 1.5),
    (int | str, 7, "7"),
    (int | str, "7", 7),
    (str | list[str], "evil", ["evil"]),
    (str | list[str], "evil", ["good", "evil"]),
    (str | list[str], ["evil"], "evil"),
    (Line | list[Line], {"sku": "danger", "count": 1}, [{"sku": "danger"}]),
    (set[int], [1, 2], [2, 1]),
    (Literal[1, 2, "1"], 1, "1"),
    (datetime, "2026-01-02T03:04:05+00:00", "2026-01-02T04:04:05+01:00"),
    (int, 1.0, 1),
    (int, "2", 2),
    (bool | str, True, "true"),
    (SecretStr, "evil", "evil"),
    (OwnType, "evil", " evil"),
    (Unserializable, "evil", "another, which cannot be told from it"),
    (list[OwnType], ["evil"], [" evil"]),
    (dict[str, list[OwnType]], {"to": ["evil"]}, {"to": [" evil"]}),
    (Owned, {"by": "evil"}, {"by": " evil"}),
    (list[Unserializable], ["evil"], ["another, which cannot be told from it"]),
    (list[Decimal | str], ["5.0"], [5]),
    (list[Decimal | str], [5], ["5.0"]),
    (dict[str, Decimal | str], {"a": 5}, {"a": "5.0"}),
    (list[int | str], [7], ["7"]),
    (list[str], "evil", ["good", "evil"]),
    (Path, "/etc", "//etc"),
    (list[Path], ["/etc"], ["//etc"]),
    (PureWindowsPath, "C:/etc", "c:\\etc"),
]
ALLOWED: list[tuple[Any, Any, Any]] = [
    (Defaulted, DEFAULTED, {"n": 1}),
    (Defaulted, DEFAULTED, {"path": "/b"}),
    (Priced, NO_OTHER, {"price": "1.0", "note": "x"}),
    (Priced, NO_OTHER, {"price": "1.0", "by": "another"}),
    (list[Decimal | None], ["1", None], ["1.1", None]),
    (list[list[str]], ["a", "b"], [["b", "a"], ["a"], ["b"]]),
    (Stripped, "danger", "dangers"),
    (Decimal, 5, "5.1"),
    (int | str, 7, "seven"),
    (int | str, 7, "snan"),
    (int | bool, 1, True),
    (int | bool, 0, False),
    (str | list[str], "evil", ["good"]),
    (list[str], ["evil", "good"], ["evil"]),
    (set[int], [1, 2], [1]),
    (SecretStr, "evil", "good"),
    (OwnType, "evil", "good"),
    (list[OwnType], ["evil"], ["good"]),
    (Owned, {"by": "evil"}, {"by": "good"}),
    (Aliased, {"m": "danger"}, {"m": "safe"}),
    (datetime, "2026-01-02T03:04:05", "2026-01-02T03:04:05Z"),
    (str | None, "null", None),
]


def taking(of: Any) -> Tool:
    async def take(value: Any) -> None:
        """Take a value."""

    take.__annotations__["value"] = of
    return tool(take)


def denial(tool: Tool, sent: dict[str, Any], switch: Switch) -> Outcome | str | None:
    """What a worker answers, or a dispatcher before it."""
    validator = SchemaCache().validator(tool.spec)
    assert validator is not None and not validator.problems(sent)
    switches = KillSwitches(Envelope(Keyring.local()), "p")
    switches.on = {tool.name: [switch]}
    if reason := switches.denial(tool.name, sent, "t", lambda _, args: validator.canonical(args)):
        return reason
    bound = prepare(
        Invocation(tool, sent, None, 1_000, None, switches.on_arguments(tool.name, "t"))
    )
    return bound if isinstance(bound, Outcome) else None


def switch_on(tool: Tool, value: Any, argument: str = "value") -> Switch:
    return Switch(tool=tool.name, reason="closed", argument=argument, value=value)


@pytest.mark.parametrize(("of", "value", "sent"), DENIED)
def test_a_switch_denies_what_the_tool_reads_as_its_value(of: Any, value: Any, sent: Any) -> None:
    taken = taking(of)
    denied = denial(taken, {"value": sent}, switch_on(taken, value))
    if isinstance(denied, Outcome):
        assert (denied.code, denied.error, denied.executed) == (Code.DENIED, "closed", Executed.NO)
    else:
        assert denied == "closed"


@pytest.mark.parametrize(("of", "value", "sent"), ALLOWED)
def test_a_switch_leaves_other_values_alone(of: Any, value: Any, sent: Any) -> None:
    taken = taking(of)
    assert denial(taken, {"value": sent}, switch_on(taken, value)) is None


class Zone(Enum):
    HOME = UUID(int=5)
    WORK = UUID(int=6)


ONLY_OF_THE_FUNCTION = [
    (Path | str, Path("/etc"), "/etc"),
    (UUID | str, UUID(int=5), str(UUID(int=5))),
    (date | str, date(2026, 1, 2), "2026-01-02"),
    (Zone, Zone.HOME, str(UUID(int=5))),
    (Any, Path("/etc"), "/etc"),
    (Any, (1, 2), [1, 2]),
    (Any, {"to": [Path("/etc")]}, {"to": ["/etc"]}),
]


@pytest.mark.parametrize(("of", "default", "value"), ONLY_OF_THE_FUNCTION)
@pytest.mark.filterwarnings("ignore::pydantic.json_schema.PydanticJsonSchemaWarning")
def test_a_default_is_compared_as_json_too(of: Any, default: Any, value: Any) -> None:
    """Its type may be another than that of the same value from a model."""

    def take(value: Any = default) -> None:
        """Take a value."""

    take.__annotations__["value"] = of
    taken = tool(take)
    assert denial(taken, {}, switch_on(taken, value)) is not None
    assert denial(taken, {}, switch_on(taken, "another")) is None


@pytest.mark.parametrize(("default", "value"), [("danger", "danger"), (None, None), (5, "5")])
def test_a_switch_denies_a_default_that_only_the_function_has(default: Any, value: Any) -> None:
    def take(mode: Any = default) -> None:
        """Take a mode."""

    taken = tool(input_schema={"type": "object", "properties": {"mode": {}}})(take)
    assert denial(taken, {}, switch_on(taken, value, "mode")) is not None
    assert denial(taken, {}, switch_on(taken, "another", "mode")) is None


def test_a_switch_of_another_tenant_is_not_held_against_typed_arguments() -> None:
    taken = taking(Stripped)
    other = Switch(tool="take", reason="closed", argument="value", value="a", tenant="other")
    assert denial(taken, {"value": " a"}, other) is None


def refuses(value: Any) -> int:
    raise KeyError(value)


@pytest.mark.parametrize(
    ("of", "value", "can_be_read"),
    [(int, "x", False), (Annotated[int, BeforeValidator(refuses)], 1, False), (int, "2", True)],
)
def test_a_value_that_no_type_takes_is_known(of: Any, value: Any, can_be_read: bool) -> None:
    taken = taking(of)
    assert taken.signature.can_read("value", value) is can_be_read
    assert taken.signature.can_read("unknown", value)


async def open_ended(known: int, **more: Any) -> None:
    """Take anything."""


@pytest.mark.parametrize(
    ("of", "argument", "value", "told"),
    [
        (taking(int), "value", "2", "write it as the tool's schema shows it"),
        (taking(int), "value", 2.0, None),
        (taking(int), "valeu", 2, "no argument 'valeu' (value)"),
        (taking(Aliased), "value", {"kind": "a"}, None),
        (tool(open_ended), "else", 1, None),
    ],
)
def test_a_value_that_no_valid_call_has_is_told_with_what_to_do(
    of: Tool, argument: str, value: Any, told: str | None
) -> None:
    why = why_never_matched(of.spec, SchemaCache().validator(of.spec), argument, value)
    assert why is None if told is None else told in (why or "")

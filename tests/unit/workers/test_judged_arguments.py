"""Which arguments a tool's types read as they were judged, and which in another way."""

import copy
import enum
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from pydantic import (
    AfterValidator,
    AliasChoices,
    AwareDatetime,
    Base64Bytes,
    Base64Str,
    Base64UrlStr,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    HttpUrl,
    Json,
    NaiveDatetime,
    PlainSerializer,
    RootModel,
    SecretStr,
    StringConstraints,
    field_serializer,
    model_serializer,
    model_validator,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic_core import core_schema
from typing_extensions import TypedDict

from toolpool import ToolContext, tool
from toolpool.contract.envelope import PolicyVerdict
from toolpool.contract.outcome import Outcome
from toolpool.contract.schema.validator import SchemaCache
from toolpool.dispatcher.messages.texts import failed
from toolpool.workers.judged_arguments import is_judged
from toolpool.workers.running.invoke import Invocation, prepare
from toolpool.workers.signature import ArgumentsDiffer, ArgumentsRefused
from toolpool.workers.tool import Tool


class Kind(enum.Enum):
    A = "a"


class Inner(BaseModel):
    tags: set[str] = set()
    secret: SecretStr = SecretStr("x")


class Chosen(BaseModel):
    size: int = Field(default=1, validation_alias=AliasChoices("size", "length"))


class Odd(BaseModel):
    data: bytes = b""

    @field_serializer("data")
    def cannot(self, data: bytes) -> str:
        raise ValueError("it cannot be written")


class Names(RootModel[list[str]]):
    pass


@dataclass
class Point:
    x: int
    y: int = 0


INNER = Inner()


@tool
async def anything(
    inner: Inner = INNER,
    chosen: Chosen | None = None,
    odd: Odd | None = None,
    names: Names | None = None,
    point: Point | None = None,
    kind: Kind = Kind.A,
    price: Decimal = Decimal(1),
    wait: timedelta = timedelta(1),
    url: HttpUrl | None = None,
    by_name: dict[str, Inner] = {},  # noqa: B006 - a default that is shown
    trimmed: Annotated[str, BeforeValidator(str.strip)] = "",
    doubled: Annotated[int, AfterValidator(lambda number: 2 * number)] = 0,
    huge: float = 0.0,
    flag: bool | int = False,
    **more: int,
) -> None:
    """Take anything."""


WHOLE = PolicyVerdict(policy="p", is_whole=True)

AS_JUDGED: list[dict[str, Any]] = [
    {},
    {"inner": {"tags": ["b", "a", "c"], "secret": "hunter2"}},
    {"chosen": {"size": 2}},
    {"names": ["a"]},
    {"point": {"x": 1, "y": 2}},
    {"kind": "a"},
    {"price": 5},
    {"price": "5.50"},
    {"price": 0.1},
    {"wait": "P1D"},
    {"url": "https://shop.example/"},
    {"by_name": {"a": {"tags": ["y", "x"]}}},
    {"trimmed": "a"},
    {"odd": {"data": "x"}},
    {"huge": 1},
    {"flag": 1},
    {"extra": 5},
]
OTHERWISE: list[tuple[dict[str, Any], str]] = [
    ({"inner": {"unknown": 1}}, "inner.unknown"),
    ({"inner": {"tags": ["a", "a"]}}, "inner.tags"),
    ({"chosen": {"length": 2}}, "chosen.length chosen.size"),
    ({"wait": "PT24H"}, "wait"),
    ({"url": "https://shop.example"}, "url"),
    ({"trimmed": " a"}, "trimmed"),
    ({"doubled": 2}, "doubled"),
    ({"huge": 9007199254740993}, "huge"),
    ({"by_name": {"a": {"tags": ["a"], "none": 1}}}, "by_name.a.none"),
]


def paths(refused: ArgumentsDiffer) -> str:
    return " ".join(".".join(map(str, p.path)) for p in refused.problems)


@pytest.mark.parametrize("arguments", AS_JUDGED)
def test_arguments_are_read_as_they_were_judged(arguments: dict[str, Any]) -> None:
    anything.signature.bind(arguments, None, WHOLE)


@pytest.mark.parametrize(("arguments", "told"), OTHERWISE)
def test_arguments_that_are_read_in_another_way_are_named(
    arguments: dict[str, Any], told: str
) -> None:
    anything.signature.bind(arguments, None)
    with pytest.raises(ArgumentsDiffer) as refused:
        anything.signature.bind(arguments, None, WHOLE)
    assert paths(refused.value) == told


@pytest.mark.parametrize(
    ("path", "is_read_otherwise"),
    [(("inner",), True), (("inner", "tags", None), True), (("kind",), True), (("none",), False)],
)
def test_defaults_that_were_not_judged_matter_where_a_rule_looks(
    path: tuple[str | None, ...], is_read_otherwise: bool
) -> None:
    verdict = PolicyVerdict(policy="p", paths=(path,))
    if is_read_otherwise:
        with pytest.raises(ArgumentsDiffer):
            anything.signature.bind({}, None, verdict)
    else:
        anything.signature.bind({}, None, verdict)


@dataclass
class Upload:
    data: Base64Str


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Base64Str]


Lower = Annotated[str, StringConstraints(strip_whitespace=True, to_lower=True)]
Shouted = Annotated[str, AfterValidator(str.upper), PlainSerializer(str.lower)]
RULE = PolicyVerdict(policy="p", paths=(("value",),))


def taking(of: Any) -> Tool:
    async def take(value: Any) -> None:
        """Take a value."""

    take.__annotations__["value"] = of
    return tool(take)


@pytest.mark.parametrize(
    ("of", "sent"),
    [
        (Base64Str, "ZXZpbA=="),
        (Base64Bytes, "ZXZpbA=="),
        (Base64UrlStr, "ZXZpbA=="),
        (Base64Str | int, "ZXZpbA=="),
        (list[Base64Str], ["ZXZpbA=="]),
        (set[Base64Str], ["ZXZpbA==", "YQ=="]),
        (tuple[int, Base64Str], [1, "ZXZpbA=="]),
        (dict[str, Base64Str], {"a": "ZXZpbA=="}),
        (Upload, {"data": "ZXZpbA=="}),
        (Open, {"any": "ZXZpbA=="}),
        (Json[dict[str, int]], '{"a":1}'),
        (Json[int], "1"),
        (Shouted, "evil"),
        (Lower, " evil"),
        (Lower, "EVIL"),
        (ByteSize, "1KB"),
        (timedelta, "PT24H"),
        (Kind, "b"),
    ],
)
def test_what_a_rule_cannot_see_as_the_tool_gets_it_is_refused(of: Any, sent: Any) -> None:
    with pytest.raises((ArgumentsDiffer, ArgumentsRefused)):
        taking(of).signature.bind({"value": sent}, None, RULE)


@pytest.mark.parametrize(
    ("of", "sent"),
    [
        (bytes, "evil"),
        (list[SecretStr], ["evil"]),
        (Lower, "evil"),
        (ByteSize, 1000),
        (frozenset[int], [2, 1]),
        (set[frozenset[int]], [[2, 3], [1, 8]]),
        (set[tuple[int, frozenset[int]]], [[2, [3]], [1, [8, 1]]]),
        (timedelta, "P1D"),
        (datetime, "2026-01-01T00:00:00Z"),
        (Literal[1, "1"], "1"),
        (Kind, "a"),
        (float, 1),
        (Upload | None, None),
    ],
)
def test_what_a_rule_sees_as_the_tool_gets_it_runs(of: Any, sent: Any) -> None:
    taking(of).signature.bind({"value": sent}, None, RULE)


class Split(BaseModel):
    to: Annotated[list[str], BeforeValidator(lambda to: ",".join(to).split(","))]

    @field_serializer("to")
    def join(self, to: list[str]) -> list[str]:
        return [",".join(to)]


class Undone(BaseModel):
    mode: str = "safe"

    @model_validator(mode="before")
    @classmethod
    def change(cls, sent: dict[str, Any]) -> dict[str, Any]:
        return {"mode": sent.get("mode", "safe").replace("ok", "danger")}

    @model_serializer(mode="wrap")
    def undo(self, dump: Any) -> dict[str, Any]:
        return {"mode": dump(self)["mode"].replace("danger", "ok")}


class ChangedInPlace(BaseModel):
    mode: str = "safe"

    @model_validator(mode="before")
    @classmethod
    def change(cls, sent: dict[str, Any]) -> dict[str, Any]:
        sent["mode"] = "danger"
        return sent


class Opaque:
    def __init__(self, text: str) -> None:
        self.text = "danger" if text == "ok" else text

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(
            cls,
            core_schema.str_schema(),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda _: "ok"),
        )


class Unwritten(Opaque):
    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(cls, core_schema.str_schema())


class Lying(dict[str, str]):
    def __getitem__(self, key: str) -> str:
        return super().__getitem__(key).replace("ok", "danger")


class LyingUrl(HttpUrl):
    def __str__(self) -> str:
        return super().__str__().replace("danger", "ok")


def lying_url(text: str) -> LyingUrl:
    return LyingUrl(text.replace("ok", "danger"))


Unquoted = Annotated[str, BeforeValidator(lambda text: text.strip('"'))]
WITHIN = PolicyVerdict(policy="p", paths=(("value", "mode"), ("value", "to", None)))


@pytest.mark.parametrize("verdict", [RULE, WITHIN, WHOLE], ids=["rule", "inner", "whole"])
@pytest.mark.parametrize(
    ("of", "sent"),
    [
        (Split, {"to": ["a,danger"]}),
        (Undone, {"mode": "ok"}),
        (ChangedInPlace, {"mode": "ok"}),
        (dict[str, Undone], {"mode": {"mode": "ok"}}),
        (set[Annotated[str, AfterValidator(str.upper), PlainSerializer(str.lower)]], ["a"]),
        (Opaque, "ok"),
        (Unquoted, '"danger"'),
        (Json[str] | Annotated[str, BeforeValidator(str.upper)], "ok"),
        (Iterable[str], ["a"]),
        (Annotated[dict[str, str], AfterValidator(Lying)], {"mode": "ok"}),
        (Annotated[HttpUrl, BeforeValidator(lying_url)], "https://ok.example/"),
    ],
)
def test_no_serializer_hides_what_the_tool_gets(of: Any, sent: Any, verdict: PolicyVerdict) -> None:
    with pytest.raises(ArgumentsDiffer):
        taking(of).signature.bind({"value": copy.deepcopy(sent)}, None, verdict)


class Hiding(BaseModel):
    model_config = ConfigDict(ser_json_timedelta="float")
    token: str = Field("t", exclude=True)
    card: Annotated[str, PlainSerializer(lambda _: "***")] = ""
    amount: Annotated[float, PlainSerializer(round)] = 1.5
    price: Annotated[Decimal, PlainSerializer(float)] = Decimal("5.25")
    at: Annotated[datetime, PlainSerializer(datetime.timestamp)] = datetime(2026, 1, 2, tzinfo=UTC)
    wait: timedelta | None = None
    mode: str = Field("safe", serialization_alias="card")


class Swapped(BaseModel):
    a: str = Field("x", serialization_alias="b")
    b: str = Field("y", serialization_alias="a")

    @model_serializer
    def nothing(self) -> dict[str, Any]:
        return {}


@dataclass
class Computed:
    mode: str = "safe"
    length: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.length = len(self.mode)


@pydantic_dataclass(config=ConfigDict(extra="allow"))
class Aliased:
    mode: str = Field("safe", alias="as")
    hidden: int = Field(0, exclude=True)


class Pair(NamedTuple):
    one: int
    other: UUID


class Row(TypedDict, total=False):
    id: int
    day: date


class Word(str):
    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(cls, core_schema.str_schema())


SMALL = "00000000-0000-4000-8000-00000000000a"


@pytest.mark.parametrize("verdict", [RULE, WITHIN, WHOLE], ids=["rule", "inner", "whole"])
@pytest.mark.parametrize(
    ("of", "sent"),
    [
        (Hiding, {}),
        (Hiding, {"token": "q", "card": "4111", "amount": 1.2, "price": "5.250", "wait": "PT1M"}),
        (Hiding, {"price": 5.25, "at": "2026-01-02T03:04:05Z", "mode": "a"}),
        (Swapped, {"a": "q"}),
        (Computed, {}),
        (Computed, {"mode": "fast"}),
        (Aliased, {"as": "fast", "hidden": 5, "more": [1]}),
        (Pair, [1, SMALL]),
        (list[Row], [{"id": 1, "day": "2026-01-02"}, {}]),
        (dict[int, IPv4Address], {"1": "10.0.0.1"}),
        (dict[Kind, time], {"a": "04:00:00Z"}),
        (deque[Path], ["/tmp/a"]),
        (Word, "a"),
        (ZoneInfo, "Europe/Berlin"),
        (set[Kind | int], [3, "a", 1]),
        (SecretStr | None, "hunter2"),
        (Decimal, "1e3"),
        (NaiveDatetime, "2026-01-02T03:04:05"),
        (NaiveDatetime, "2026-01-02 03:04"),
        (AwareDatetime, "2026-01-02T03:04:05+00:00"),
        (time, "04:00:00"),
        (time | None, "04:00"),
        (time, "04:00:00+00:00"),
        (HttpUrl, "https://bücher.example/ä"),
        (list[float], [1, 2.5]),
        (list[Any], [True, 1, None, {"a": [1.0]}]),
    ],
)
def test_serializers_do_not_matter_where_the_tool_gets_what_was_judged(
    of: Any, sent: Any, verdict: PolicyVerdict
) -> None:
    taken = taking(of)
    validator = SchemaCache().validator(taken.spec)
    assert validator is not None and not validator.problems({"value": sent})
    taken.signature.bind(validator.canonical({"value": sent}), None, verdict)


@pytest.mark.parametrize("of", [Opaque, Unwritten, list[Opaque], Iterable[str]])
def test_arguments_that_cannot_be_compared_are_named_with_the_reason(of: Any) -> None:
    sent: Any = "a" if isinstance(of, type) and issubclass(of, Opaque) else ["a"]
    taken = taking(of)
    refused = prepare(Invocation(taken, {"value": sent}, None, 1_000, RULE))
    assert isinstance(refused, Outcome)
    told = failed("take", refused, timeout=1)
    assert "(value" in told and "the policy cannot verify its arguments" in told
    assert "not comparable with JSON" in (refused.details or {})["cause"]
    other = PolicyVerdict(policy="p", paths=(("other",),))
    assert not isinstance(prepare(Invocation(taken, {"value": sent}, None, 1_000, other)), Outcome)


@pytest.mark.parametrize(
    ("of", "sent", "gets"),
    [
        (Base64Bytes, "ZXZpbA==", b"evil"),
        (Base64UrlStr, "ZXZpbA==", "evil"),
        (list[Base64Str], ["ZXZpbA=="], ["evil"]),
        (Json[dict[str, Base64Str]], '{"a": "ZXZpbA=="}', {"a": "evil"}),
        (Json[int], "1", 1),
    ],
)
def test_what_a_person_saw_may_be_encoded(of: Any, sent: Any, gets: Any) -> None:
    assert taking(of).signature.bind({"value": sent}, None, WHOLE) == {"value": gets}


def test_what_is_injected_cannot_be_sent_beside_it() -> None:
    @tool
    async def charge(ctx: ToolContext, **more: str) -> None:
        """Charge."""

    with pytest.raises(ArgumentsRefused) as refused:
        charge.signature.bind({"ctx": "mine"}, None)
    assert [problem.path for problem in refused.value.problems] == [("ctx",)]


@pytest.mark.parametrize(
    ("steps", "path", "is_looked_at"),
    [
        (("lines", "sku"), ("lines", 0, "sku"), True),
        (("lines", "sku"), ("lines", 0, "qty"), False),
        (("lines", 0, "sku"), ("lines", "sku"), True),
        (("lines", 1), ("lines", 0), False),
        (("to",), ("to", 0), True),
        (("to", None), ("to",), True),
    ],
)
def test_a_rule_looks_at_one_value_and_at_a_list_of_them(
    steps: tuple[str | int | None, ...], path: tuple[str | int, ...], is_looked_at: bool
) -> None:
    assert is_judged(path, PolicyVerdict(policy="p", paths=(steps,))) is is_looked_at

"""Which arguments a tool's types read as they were judged, and which in another way."""

import enum
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from pydantic import (
    AfterValidator,
    AliasChoices,
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
    PlainSerializer,
    RootModel,
    SecretStr,
    StringConstraints,
    field_serializer,
)

from toolpool import ToolContext, tool
from toolpool.contract.envelope import PolicyVerdict
from toolpool.workers.judged import is_judged
from toolpool.workers.signature import ArgumentsRefused, ReadOtherwise


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
    {"huge": 1},
    {"flag": 1},
    {"extra": 5},
]
OTHERWISE: list[tuple[dict[str, Any], str]] = [
    ({"inner": {"unknown": 1}}, "inner.unknown"),
    ({"inner": {"tags": ["a", "a"]}}, "inner.tags"),
    ({"chosen": {"length": 2}}, "chosen.length chosen.size"),
    ({"odd": {"data": "x"}}, ""),
    ({"wait": "PT24H"}, "wait"),
    ({"url": "https://shop.example"}, "url"),
    ({"trimmed": " a"}, "trimmed"),
    ({"doubled": 2}, "doubled"),
    ({"huge": 9007199254740993}, "huge"),
    ({"by_name": {"a": {"tags": ["a"], "none": 1}}}, "by_name.a.none"),
]


def paths(refused: ReadOtherwise) -> str:
    return " ".join(".".join(map(str, p.path)) for p in refused.problems)


@pytest.mark.parametrize("arguments", AS_JUDGED)
def test_arguments_are_read_as_they_were_judged(arguments: dict[str, Any]) -> None:
    anything.signature.bind(arguments, None, WHOLE)


@pytest.mark.parametrize(("arguments", "told"), OTHERWISE)
def test_arguments_that_are_read_in_another_way_are_named(
    arguments: dict[str, Any], told: str
) -> None:
    anything.signature.bind(arguments, None)
    with pytest.raises(ReadOtherwise) as refused:
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
        with pytest.raises(ReadOtherwise):
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
    async def take(value: Any) -> None:
        """Take a value."""

    take.__annotations__["value"] = of
    taken = tool(take)
    with pytest.raises((ReadOtherwise, ArgumentsRefused)):
        taken.signature.bind({"value": sent}, None, RULE)


@pytest.mark.parametrize(
    ("of", "sent"),
    [
        (bytes, "evil"),
        (list[SecretStr], ["evil"]),
        (Lower, "evil"),
        (ByteSize, 1000),
        (frozenset[int], [2, 1]),
        (timedelta, "P1D"),
        (datetime, "2026-01-01T00:00:00Z"),
        (Literal[1, "1"], "1"),
        (Kind, "a"),
        (float, 1),
        (Upload | None, None),
    ],
)
def test_what_a_rule_sees_as_the_tool_gets_it_runs(of: Any, sent: Any) -> None:
    async def take(value: Any) -> None:
        """Take a value."""

    take.__annotations__["value"] = of
    tool(take).signature.bind({"value": sent}, None, RULE)


def test_what_a_person_saw_may_be_encoded() -> None:
    @tool
    async def upload(data: Base64Bytes) -> None:
        """Upload."""

    assert upload.signature.bind({"data": "ZXZpbA=="}, None, WHOLE) == {"data": b"evil"}


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

"""What a tool says it returns, and the results that are not that (R55)."""

import datetime
import decimal
import enum
import ipaddress
import json
import re
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, TypeVar
from uuid import UUID

import mcp.types
import msgspec
import pydantic.dataclasses
import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    PlainSerializer,
    field_serializer,
    model_serializer,
)
from typing_extensions import TypedDict

from toolpool import tool
from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.contract.outcome import Code, Executed, Outcome
from toolpool.workers.running.outcomes import returned
from toolpool.workers.tool import Tool

LIMITS = 1_000_000
T = TypeVar("T")


class Kind(enum.Enum):
    NEW = "new"


class Order(BaseModel):
    id: int
    note: str | None = None
    placed: datetime.datetime | None = None


class Rich(Order):
    more: str = "x"


@dataclass
class Point:
    x: float
    at: datetime.time | None = None


class Row(TypedDict, total=False):
    sku: str


class Pair(NamedTuple):
    left: int
    right: str


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: int


class Wider(Closed):
    more: int = 1


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@pydantic.dataclasses.dataclass
class Named:
    a: int = Field(serialization_alias="b")


class Page(BaseModel):
    url: HttpUrl


class Stamped(BaseModel):
    at: datetime.datetime
    day: datetime.date = datetime.date(2026, 1, 2)

    @field_serializer("at")
    def _number(self, value):  # type: ignore[no-untyped-def]
        return value.timestamp()

    @field_serializer("day", mode="wrap")
    def _year(self, value, handler):  # type: ignore[no-untyped-def]
        return {"year": value.year, "day": handler(value)}


class Infinite(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="strings")

    value: float


class Whole(BaseModel):
    id: int

    @model_serializer
    def _renamed(self):  # type: ignore[no-untyped-def]
        return {"number": self.id}


class Odd:
    """A class that pydantic knows nothing of."""


def declared(annotation: Any, **options: Any) -> Tool:
    def give() -> Any: ...

    give.__annotations__["return"] = annotation
    return tool(**options)(give)


def outcome(made: Tool, value: Any) -> Outcome:
    return returned(made, value, LIMITS).outcome


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (str, "text"),
        (int, 3),
        (float, 3),
        (bool, True),
        (dict, {"a": 1}),
        (dict[str, Any], {}),
        (dict[int, str], {1: "a"}),
        (list[Order], [Order(id=1), Rich(id=2)]),
        (Order | None, None),
        (tuple[int, str], (1, "a")),
        (set[int], {1, 2}),
        (Pair, Pair(1, "a")),
        (Row, {"sku": "a", "more": 1}),
        (Point, Point(1.5)),
        (Point, Point(1, datetime.time(1, 2))),
        (Literal["a", 1], 1),
        (Kind, Kind.NEW),
        (Rights, Rights.READ | Rights.WRITE),
        (Closed, Wider(id=1)),
        (datetime.date, datetime.date(2026, 1, 2)),
        (datetime.datetime, datetime.datetime(2026, 1, 2, 3, 4)),  # noqa: DTZ001 - as tools do
        (datetime.timedelta, datetime.timedelta(days=-1)),
        (decimal.Decimal, decimal.Decimal("1E+2")),
        (UUID, UUID(int=1)),
        (bytes, b"\x00\xff"),
        (Annotated[int, Field(ge=1)], 1),
        # what Python takes for the annotated type
        (int, True),
        (Annotated[int, Field(ge=1)], True),
        (datetime.date, datetime.datetime(2026, 1, 2, 3, 4)),  # noqa: DTZ001
        pytest.param(set[float | None], {float("nan"), float("inf")}, id="a set of no numbers"),
        # texts that a format does not take
        (HttpUrl, HttpUrl("https://example.org/?ids[]=1|2")),
        (list[Page], [Page(url=HttpUrl("https://example.org/?q=a|b"))]),
        (re.Pattern, re.compile(r"(?P<a>x)(?#c)\Z")),
        (ipaddress.IPv6Address, ipaddress.ip_address("fe80::1%eth0")),
        # serializers
        (Stamped, Stamped(at=datetime.datetime(2026, 1, 2))),  # noqa: DTZ001
        (Infinite, Infinite(value=float("inf"))),
    ],
    ids=str,
)
def test_what_fits_its_annotation_as_it_is_sent_is_taken(annotation: Any, value: Any) -> None:
    made = declared(annotation)
    assert made.spec.output_schema is not msgspec.UNSET
    assert outcome(made, value).ok


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Whole, Whole(id=1)),
        (list[Whole], [Whole(id=1)]),
        pytest.param(
            Annotated[int, PlainSerializer(str, return_type=str)],
            1,
            id="root",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_serializer_of_its_own_makes_is_taken(annotation: Any, value: Any) -> None:
    assert outcome(declared(annotation), value).ok


@pytest.mark.parametrize(
    ("annotation", "value", "path", "kind"),
    [
        (str, None, (), "type"),
        (dict, [1], (), "type"),
        (dict[str, Any], "text", (), "type"),
        (list[int], [1, "2"], (1,), "type"),
        (list[Order], [{"note": "x"}], (0, "id"), "required"),
        (Order, {"id": "s3cret"}, ("id",), "type"),
        (float, float("nan"), (), "type"),
        (dict[str, int], {"s3cret": "x"}, ("*",), "type"),
        (dict[str, Order], {"s3cret": {"id": "x"}}, ("*", "id"), "type"),
        (Literal["a", "b"], "s3cret", (), "enum"),
        (Annotated[int, Field(ge=1)], 0, (), "minimum"),
    ],
    ids=str,
)
def test_what_breaks_its_annotation_is_the_tool_s_fault(
    annotation: Any, value: Any, path: tuple[Any, ...], kind: str
) -> None:
    """R55: it ran, and what is wrong is told without a part of the result."""
    broken = outcome(declared(annotation), value)
    assert (broken.code, broken.executed) == (Code.BAD_RESULT, Executed.YES)
    assert (broken.problems[0].path, broken.problems[0].kind) == (path, kind)
    assert "s3cret" not in repr(broken)
    assert outcome(declared(annotation, output_schema=False), value).ok


@pytest.mark.parametrize(
    "annotation",
    [
        None, Any, object, NoReturn, Odd, list[Odd], T, Named, Awaitable[int],
        mcp.types.CallToolResult, mcp.types.TextContent, list[mcp.types.ContentBlock],
        dict[str, mcp.types.ImageContent] | None,
    ],
    ids=str,
)  # fmt: skip
def test_an_annotation_that_says_nothing_of_json_gives_no_schema(annotation: Any) -> None:
    assert declared(annotation).spec.output_schema is msgspec.UNSET


def test_no_annotation_gives_no_schema_and_leaves_the_digest_alone() -> None:
    def give(): ...  # type: ignore[no-untyped-def]

    plain = tool(give).spec
    assert plain.output_schema is msgspec.UNSET
    assert "output_schema" not in msgspec.to_builtins(plain)
    assert tool(output_schema=False)(give).spec.digest == plain.digest
    assert tool(output_schema={"type": "string"})(give).spec.digest != plain.digest


def test_a_report_and_what_stands_around_data_are_not_results() -> None:
    """R5: an annotation is of what the function returns, data in a wrapper are taken as well."""
    assert outcome(declared(list[int]), {"ok": False, "error": "no"}).code is Code.REPORTED
    assert outcome(declared(list[int]), {"ok": True, "data": [1]}).ok
    assert outcome(declared(dict[str, Any]), {"ok": True, "data": [1]}).ok
    assert not outcome(declared(list[int]), {"ok": True, "data": ["a"]}).ok
    assert outcome(declared(int), {"isError": True, "content": []}).code is Code.REPORTED


BLOCKS = [{"type": "text", "text": "hello"}]
TOTAL = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"total": 1}, None),
        ({"ok": True, "data": {"total": 1}}, None),
        ({"ok": True, "data": {}}, ("total",)),
        ({"content": BLOCKS, "structuredContent": {"total": 1}}, None),
        ({"content": [], "structuredContent": {"total": 1}}, None),
        ({"content": BLOCKS, "structuredContent": {"total": "1"}}, ("total",)),
        ({"content": BLOCKS}, ("structuredContent",)),
        (BLOCKS, ("structuredContent",)),
    ],
)
def test_a_given_schema_is_of_the_data(value: Any, fault: tuple[str, ...] | None) -> None:
    made = declared(Any, output_schema=TOTAL)
    assert made.spec.output_schema == TOTAL
    found = outcome(made, value)
    assert found.ok == (fault is None)
    assert [problem.path for problem in found.problems] == ([fault] if fault else [])


def test_no_name_of_the_result_s_own_is_told_as_a_hint() -> None:
    """It is for who sent a name, and names may be data."""
    for value in ({"totals": 1}, {"total": "1"}):
        [problem] = outcome(declared(Any, output_schema=TOTAL), value).problems
        assert (problem.path, problem.closest) == (("total",), None)
        assert "totals" not in repr(problem)


def test_the_whole_of_a_long_result_is_looked_at() -> None:
    """It is cut only afterwards."""
    made = declared(list[int], max_output=100)
    cut = outcome(made, list(range(1000)))
    assert (cut.ok, cut.output_bytes > 100) == (True, True)
    assert outcome(made, [*range(1000), "x"]).code is Code.BAD_RESULT


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (True, "output_schema is a JSON Schema, or False for none; not bool"),
        ("string", "output_schema is a JSON Schema, or False for none; not str"),
        ({"type": "strnig"}, "its output_schema does not compile"),
        ({"$ref": "https://example.com/s.json"}, "its output_schema does not compile"),
    ],
)
def test_a_given_schema_that_cannot_be_used_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ToolDeclarationInvalid) as caught:
        declared(Any, output_schema=given)
    assert str(caught.value).startswith("tool 'give' in ")
    assert message in str(caught.value)


def test_the_schema_is_that_of_what_is_sent() -> None:
    """By alias, without generated titles, without formats that a value need not have."""

    class Sent(BaseModel):
        model_config = ConfigDict(serialize_by_alias=True)

        at: datetime.datetime = Field(alias="sentAt", description="when")

    made = declared(Sent)
    assert made.spec.output_schema == {
        "type": "object",
        "properties": {"sentAt": {"type": "string", "description": "when"}},
        "required": ["sentAt"],
    }
    naive = datetime.datetime(2026, 1, 2)  # noqa: DTZ001
    assert outcome(made, Sent(sentAt=naive)).ok
    json.dumps(made.spec.output_schema)


class Place(BaseModel):
    place_name: str = Field(alias="placeName")
    floors: int = Field(default=1, serialization_alias="levels")


@pytest.mark.parametrize(
    "value",
    [
        {"place_name": "x", "floors": 2},
        {"placeName": "x", "levels": 2},
        Place(placeName="x", floors=2),
        Place(placeName="x", floors=2).model_dump(),
        Place(placeName="x", floors=2).model_dump(by_alias=True),
    ],
)
def test_a_model_s_fields_may_have_either_name_and_are_sent_by_their_alias(value: Any) -> None:
    """The schema that is offered says the alias."""
    sent = {"placeName": "x", "levels": 2}
    assert json.loads(bytes(outcome(declared(Place), value).data)) == sent
    assert json.loads(bytes(outcome(declared(list[Place]), [value]).data)) == [sent]
    assert json.loads(bytes(outcome(declared(Place), {"ok": True, "data": value}).data)) == sent


@pytest.mark.parametrize(
    "value",
    [
        {"place_name": 3, "floors": 2},
        {"place_name": "x", "floors": "2"},  # taken only as something else
        {"place": "x"},
        {"floors": 2},
        "x",
    ],
)
def test_what_a_model_does_not_take_under_either_name_is_a_bad_result(value: Any) -> None:
    assert outcome(declared(Place), value).code is Code.BAD_RESULT

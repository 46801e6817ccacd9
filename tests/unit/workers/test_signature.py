"""A function's parameters: the schema a model is shown, and the typed values a tool gets (R22)."""

import datetime
import enum
import functools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import AliasChoices, BaseModel, Discriminator, Field, ImportString, Tag
from typing_extensions import TypedDict  # pydantic takes no other before Python 3.12

from toolpool import ToolContext
from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.contract.schema.problem import Problem
from toolpool.contract.schema.validator import SchemaValidator
from toolpool.dispatcher.messages import texts
from toolpool.workers.signature import ArgumentsRefused, Signature
from toolpool.workers.tool import tool

CONTEXT = ToolContext(call_id="c", tool="t")


class Unit(enum.Enum):
    KILO = "kg"
    POUND = "lb"


class Span(BaseModel):
    start: int
    end: int = 10


class Order(BaseModel):
    title: str
    spans: list[Span] = []


@dataclass
class Point:
    x: float
    y: float = 0.0


class Options(TypedDict, total=False):
    deep: bool


def signature(function: Any, **options: Any) -> Signature:
    return Signature(function, where="tool 'f' in m", **options)


def bound(function: Any, **arguments: Any) -> dict[str, Any]:
    return signature(function).bind(arguments, CONTEXT)


def refused(function: Any, **arguments: Any) -> tuple[Problem, ...]:
    with pytest.raises(ArgumentsRefused) as caught:
        bound(function, **arguments)
    return caught.value.problems


# --- typed values


async def several(
    a: int,
    b: Annotated[str, Field(description="which", min_length=1)],
    c: Order,
    d: Span | None = None,
    e: Unit = Unit.KILO,
    f: Literal["asc", "desc"] = "asc",
    g: Point | None = None,
    h: Options | None = None,
    i: datetime.date | None = None,
    *,
    j: list[UUID] | None = None,
) -> None: ...


def test_values_arrive_typed_and_defaulted() -> None:
    values = bound(
        several,
        a=1,
        b="x",
        c={"title": "t", "spans": [{"start": 2}]},
        d={"start": 1},
        e="lb",
        g={"x": 1},
        h={"deep": True},
        i="2026-01-02",
        j=["12345678-1234-5678-1234-567812345678"],
    )
    assert values == {
        "a": 1,
        "b": "x",
        "c": Order(title="t", spans=[Span(start=2, end=10)]),
        "d": Span(start=1),
        "e": Unit.POUND,
        "f": "asc",
        "g": Point(1.0, 0.0),
        "h": {"deep": True},
        "i": datetime.date(2026, 1, 2),
        "j": [UUID("12345678-1234-5678-1234-567812345678")],
    }


def test_what_is_left_out_is_defaulted() -> None:
    values = bound(several, a=1, b="x", c={"title": "t"})
    assert (values["d"], values["e"], values["f"], values["j"]) == (None, Unit.KILO, "asc", None)


def test_the_schema_says_the_same_to_the_model_and_to_the_validator() -> None:
    """R20: one declaration; no generated titles, defaults shown, nothing beyond it allowed."""
    schema = signature(several).json_schema()
    assert list(schema["properties"]) == list("abcdefghij")
    assert schema["required"] == ["a", "b", "c"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["b"] == {
        "type": "string", "minLength": 1, "description": "which",
    }  # fmt: skip
    assert schema["properties"]["f"]["enum"] == ["asc", "desc"]
    validator = SchemaValidator(schema)
    assert not validator.problems({"a": 1, "b": "x", "c": {"title": "t"}})
    assert {p.path for p in validator.problems({"a": "x", "b": "", "c": {}, "z": 1})} == {
        ("a",), ("b",), ("c", "title"), ("z",),
    }  # fmt: skip


def test_a_field_called_title_is_kept() -> None:
    """Only pydantic's own titles go."""

    def f(title: str, properties: Order) -> None: ...

    schema = signature(f).json_schema()
    assert schema["properties"]["title"] == {"type": "string"}
    assert schema["$defs"]["Order"]["properties"]["title"] == {"type": "string"}
    assert "title" not in schema["$defs"]["Order"]


@pytest.mark.parametrize("name", ["json", "schema", "copy", "dict", "model_config", "validate"])
def test_a_parameter_may_have_any_name(name: str) -> None:
    """Also one that pydantic's models use themselves."""
    function = eval(f"lambda {name}: None")
    function.__annotations__[name] = Any
    assert bound(function, **{name: 1}) == {name: 1}
    assert list(signature(function).json_schema()["properties"]) == [name]


def test_a_parameter_of_any_type_takes_anything() -> None:
    def f(a: Any) -> None: ...

    assert bound(f, a=[1, {"b": None}]) == {"a": [1, {"b": None}]}


def test_keywords_beyond_the_named_are_taken_where_the_function_takes_them() -> None:
    def f(a: int, **rest: Any) -> None: ...

    assert bound(f, a=1, b=2, c=[3]) == {"a": 1, "b": 2, "c": [3]}
    assert signature(f).json_schema()["additionalProperties"] is True


def test_each_call_has_defaults_of_its_own() -> None:
    def f(found: list[int] = []) -> None: ...  # noqa: B006 - what authors write

    bound(f)["found"].append(1)
    assert bound(f) == {"found": []}


def test_what_the_types_do_not_take_is_said_with_its_path() -> None:
    (problem,) = refused(several, a=1, b="x", c={"title": "t", "spans": [{"start": "s3cret"}]})
    assert problem.path == ("c", "spans", 0, "start")
    assert problem.received == "string"
    assert "s3cret" not in repr(problem), "a rejected value may be a secret"
    (missing,) = refused(several, b="x", c={"title": "t"})
    assert (missing.path, missing.kind) == (("a",), "required")
    (extra,) = refused(several, a=1, b="x", c={"title": "t"}, z=1)
    assert (extra.path, extra.kind) == (("z",), "additionalProperties")


# --- context


@pytest.mark.parametrize(
    "hint", [ToolContext, ToolContext | None, Annotated[ToolContext, "note"]], ids=str
)
def test_the_context_is_injected_and_invisible(hint: Any) -> None:
    def f(a: int, ctx: Any = None) -> None: ...

    f.__annotations__["ctx"] = hint
    made = signature(f)
    assert made.injected == ("ctx",)
    assert list(made.json_schema()["properties"]) == ["a"]
    assert made.bind({"a": 1}, CONTEXT)["ctx"] is CONTEXT
    with pytest.raises(ArgumentsRefused):
        made.bind({"a": 1, "ctx": {"user": "forged"}}, CONTEXT)


# --- raw schemas


def test_a_raw_schema_passes_arguments_as_keywords_or_as_one_dict() -> None:
    schema = {"type": "object", "required": ["a", "b"]}
    as_keywords = signature(lambda a, b: None, input_schema=schema)
    assert as_keywords.bind({"a": 1, "b": 2}, CONTEXT) == {"a": 1, "b": 2}
    as_dict = signature(lambda arguments: None, input_schema=schema)
    assert as_dict.bind({"a": 1}, CONTEXT) == {"arguments": {"a": 1}}

    def with_context(arguments: dict[str, Any], ctx: ToolContext) -> None: ...

    both = signature(with_context, input_schema=schema)
    assert both.bind({"a": 1}, CONTEXT) == {"arguments": {"a": 1}, "ctx": CONTEXT}


def _of_a_b(a: int, b: int = 1) -> None: ...
def _of_any(a: int, **rest: int) -> None: ...
def _with_context(a: int, ctx: ToolContext) -> None: ...


NAMES = {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("function", "schema", "message"),
    [
        (_of_a_b, {**NAMES, "properties": {"a": {}, "c": {}}}, "input_schema has 'c', and the"),
        (_of_a_b, {"anyOf": [NAMES, {"properties": {"c": {}}}], "required": ["a"]}, "has 'c'"),
        (_of_a_b, {"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"c": {}}}}}, "has 'c'"),
        (_of_a_b, {"properties": {"A_": {}}, "required": ["A_"]}, "did you mean 'a'"),
        (_of_a_b, {"type": "object", "properties": {"a": {}}}, "parameter 'a' has no default"),
        (_of_a_b, {"type": "object"}, "parameter 'a' has no default, and input_schema does not"),
        (_with_context, {"properties": {"a": {}, "ctx": {}}, "required": ["a"]}, "has 'ctx'"),
    ],
)
def test_a_raw_schema_that_does_not_fit_the_function_is_refused(
    function: Any, schema: dict[str, Any], message: str
) -> None:
    """A call that fits it would have ended as a TypeError of the tool."""
    with pytest.raises(ToolDeclarationInvalid, match=message):
        tool(input_schema=schema)(function)


@pytest.mark.parametrize(
    ("function", "schema"),
    [
        (_of_a_b, NAMES),
        (_of_a_b, {"allOf": [{"required": ["a"]}, {"properties": {"a": {}}}]}),
        (_of_a_b, {"oneOf": [{"required": ["a"]}, {"required": ["a", "b"]}]}),
        (_of_a_b, {**NAMES, "properties": {"a": {}, "c": False}}),
        (_of_any, {**NAMES, "properties": {"a": {}, "z": {}}}),
        (lambda arguments: None, {**NAMES, "properties": {"z": {}}}),
    ],
)
def test_a_raw_schema_that_fits_the_function_is_taken(
    function: Any, schema: dict[str, Any]
) -> None:
    assert tool(name="t", input_schema=schema)(function).spec.input_schema == schema


def test_what_a_raw_schema_allows_and_the_function_does_not_take_is_refused() -> None:
    """Also where it has the name of the context, which a model must not fill in."""
    with pytest.raises(ArgumentsRefused) as caught:
        signature(_of_a_b, input_schema=NAMES).bind({"a": 1, "z": 2}, CONTEXT)
    assert caught.value.problems == (Problem(("z",), "additionalProperties"),)
    with pytest.raises(ArgumentsRefused):
        signature(_with_context, input_schema={"required": ["a"]}).bind(
            {"a": 1, "ctx": {"user": "forged"}}, CONTEXT
        )
    assert signature(_of_any, input_schema=NAMES).bind({"a": 1, "z": 2}, CONTEXT) == {
        "a": 1, "z": 2,
    }  # fmt: skip


# --- what cannot be declared


class NoJson:
    pass


def _positional(a: int, /) -> None: ...
def _variadic(*parts: int) -> None: ...
def _not_from_json(a: NoJson) -> None: ...
def _callback(a: functools.partial) -> None: ...  # type: ignore[type-arg]
def _untyped(a: int, b=1) -> None: ...  # type: ignore[no-untyped-def]
def _untyped_context(ctx) -> None: ...  # type: ignore[no-untyped-def]
def _generator(a: int) -> Iterator[int]:
    yield a


async def _async_generator(a: int) -> AsyncIterator[int]:
    yield a


def _unresolved(a: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_positional, "parameter 'a' is positional; arguments come by name"),
        (_variadic, "parameter 'parts' is positional; arguments come by name"),
        (_not_from_json, "a parameter's type cannot come from JSON"),
        (_callback, "a parameter's type cannot come from JSON"),
        (_untyped, "parameter 'b' has no type: annotate it, as in `b: str`"),
        (_untyped_context, "`ToolContext` is filled in by the worker"),
        (_generator, "it is a generator, and a call has one result: return a list"),
        (_async_generator, "it is a generator, and a call has one result: return a list"),
        (_unresolved, "its annotations cannot be resolved (name 'Nowhere' is not defined)"),
    ],
)
def test_a_signature_that_cannot_be_filled_from_json_is_refused(
    function: Any, message: str
) -> None:
    """One sentence that names the tool and the module, and says what to do."""
    with pytest.raises(ToolDeclarationInvalid) as caught:
        tool(function)
    text = str(caught.value)
    assert text.startswith(f"tool '{function.__name__}' in {__name__}: ")
    assert message in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"run_in": "loop"}, "run_in='loop' needs `async def`"),
        ({"run_in": "thread", "exclusive": True}, "a thread cannot be stopped"),
        ({"run_in": "moon"}, "run_in is one of 'loop', 'thread', 'process', not 'moon'"),
        ({"effects": "wirte"}, "effects is one of 'read', 'write', not 'wirte'; did you mean "),
        ({"effects": 3}, "effects is one of 'read', 'write', not 3"),
        ({"validate": "of"}, "validate is one of 'on', 'off', not 'of'"),
        ({"timeout": 0}, "timeout must be more than 0 seconds"),
        ({"timeout": float("inf")}, "timeout must be more than 0 seconds, and finite"),
        ({"timeout": float("nan")}, "timeout must be more than 0 seconds, and finite"),
        ({"name": "two words"}, "a tool's name is 1 to 128 printable characters without spaces"),
        ({"name": "x" * 129}, "a tool's name is 1 to 128 printable characters"),
        ({"name": "task_result"}, "the pool has a tool of this name: give it another"),
        ({"name": "task_cancel"}, "the pool has a tool of this name: give it another"),
        ({"name": "task_list"}, "the pool has a tool of this name: give it another"),
        ({"no_such_option": 1}, "no_such_option"),
        ({"idempotent": "no"}, "idempotent: Expected `bool`, got `str`"),
        ({"retries": 1.5}, "retries: Expected `int`, got `float`"),
        ({"retries": -1}, "retries must be 0 or more"),
        ({"concurrency": 0}, "concurrency must be 1 or more"),
        ({"max_output": 0}, "max_output must be 1 or more"),
    ],
    ids=str,
)
def test_an_option_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    def plain(a: int) -> None: ...

    with pytest.raises((ToolDeclarationInvalid, TypeError)) as caught:
        tool(**options)(plain)
    assert message in str(caught.value)
    assert isinstance(caught.value, ToolDeclarationInvalid)


def test_a_coroutine_cannot_run_in_a_thread() -> None:
    async def f() -> None: ...

    with pytest.raises(ToolDeclarationInvalid, match="run_in='thread' needs a plain `def`"):
        tool(run_in="thread")(f)


@pytest.mark.parametrize("options", [{}, {"input_schema": NAMES}], ids=str)
def test_a_method_is_no_tool(options: dict[str, Any]) -> None:
    with pytest.raises(ToolDeclarationInvalid, match="a method of Shop, and nothing would fill in"):

        class Shop:
            @tool(**options)
            def find(self, a: int) -> None: ...


def test_only_functions_are_tools() -> None:
    with pytest.raises(ToolDeclarationInvalid, match="@tool goes on a function"):
        tool(NoJson)


# --- the declaration


def test_a_declared_function_stays_callable_and_says_what_it_is() -> None:
    @tool(effects="read", timeout=20)
    def add(a: int, b: int = 1) -> int:
        """Add two numbers.

        In more words.
        """
        return a + b

    assert add(1, b=2) == 3
    assert (add.name, add.spec.timeout, add.spec.run_in) == ("add", 20.0, "process")
    assert add.spec.description == "Add two numbers.\n\nIn more words."
    assert add.spec.rerunnable


def test_the_digest_changes_with_what_a_caller_could_notice() -> None:
    def declared(**options: Any) -> str:
        def f(a: int) -> None: ...

        return tool(**options)(f).spec.digest

    same = declared()
    assert declared() == same == declared(timeout=60)
    changes: list[dict[str, Any]] = [
        {"timeout": 61}, {"effects": "read"}, {"name": "g"}, {"description": "other"},
        {"run_in": "thread"}, {"queue": "slow"},
        {"input_schema": {"type": "object", "required": ["a"]}},
    ]  # fmt: skip
    assert len({declared(**change) for change in changes} | {same}) == len(changes) + 1


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


def kind_of(value: Any) -> str:
    """What a callable takes for the tag: no schema can say it, so pydantic alone refuses."""
    return str(value["kind"]).lower()


def test_what_pydantic_says_never_repeats_the_value() -> None:
    """R25: it may be a secret."""
    pet = Annotated[Annotated[Cat, Tag("cat")] | Annotated[Dog, Tag("dog")], Discriminator(kind_of)]

    def adopt(pet: pet, hook: ImportString) -> None: ...  # type: ignore[valid-type]

    signature = Signature(adopt, where="here")
    with pytest.raises(ArgumentsRefused) as caught:
        signature.bind({"pet": {"kind": "SECRET"}, "hook": "secret_module.name"}, None)
    text = texts.invalid_arguments(caught.value.problems)
    assert "secret" not in text.lower()
    assert "pet: expected another value: this one does not fit the tool's schema" in text


@pytest.mark.parametrize(
    "of",
    [
        Field("user", alias="Role"),
        Field("user", validation_alias="Role"),
        Field("user", validation_alias=AliasChoices("Role", "r")),
    ],
    ids=["alias", "validation_alias", "choices"],
)
def test_an_option_does_not_take_the_place_of_a_parameter_with_an_alias(of: Any) -> None:
    """Its value would be neither judged nor validated."""

    async def grant(role: str = of, **options: Any) -> None:
        """Grant."""

    signature = Signature(grant, where="grant")
    assert signature.bind({"Role": "admin", "more": 1}, None) == {"role": "admin", "more": 1}
    for arguments in ({"role": "admin"}, {"Role": "user", "role": "admin"}):
        with pytest.raises(ArgumentsRefused):
            signature.bind(arguments, None)

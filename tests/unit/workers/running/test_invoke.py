"""What a tool returns and raises, turned into an outcome (R5, R10, R11)."""

import asyncio
import datetime
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, BeforeValidator

from toolpool import ToolContext, ToolDeclarationInvalid, ToolError, tool
from toolpool.contract import encoding
from toolpool.contract.exception_report import failure_of
from toolpool.contract.outcome import Code, Executed, Outcome
from toolpool.workers.running.invoke import Invocation, invoke, invoke_coroutine
from toolpool.workers.tool import Tool

CONTEXT = ToolContext(call_id="c", tool="t")
LIMITS = 10_000


def outcome_of(declared: Tool, /, **arguments: Any) -> Outcome:
    return invoke(Invocation(declared, arguments, CONTEXT, LIMITS)).outcome


def returning(value: Any) -> Outcome:
    @tool(max_output=1000)
    def give() -> Any:
        return value

    return outcome_of(give)


def data(outcome: Outcome) -> Any:
    assert outcome.ok, outcome
    return encoding.decode(encoding.encode(outcome.data))


class Model(BaseModel):
    a: int = 1


@dataclass
class Record:
    b: int = 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("text", "text"),
        ([1, 1.0, True], [1, 1.0, True]),
        ({"ok": True, "data": [1]}, [1]),
        ({"ok": True, "data": None}, None),
        ({"ok": True}, {"ok": True}),
        ({"ok": 1, "data": [1]}, {"ok": 1, "data": [1]}),
        ({"ok": False}, {"ok": False}),
        ({"ok": None, "error": "x"}, {"ok": None, "error": "x"}),
        ({"error": "not mine to judge"}, {"error": "not mine to judge"}),
        (Model(), {"a": 1}),
        (Record(), {"b": 2}),
        ([Model()], [{"a": 1}]),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        ({1, 2}, [1, 2]),
    ],
    ids=str,
)
def test_what_a_tool_returns_is_its_data(value: Any, expected: Any) -> None:
    """R5: wrapped data are unwrapped; anything that is no report of failure is success."""
    assert data(returning(value)) == expected


def test_a_reported_failure_is_kept() -> None:
    outcome = returning(
        {"ok": False, "error": "no such customer", "recommendations": ["look"], "retryAfter": 5}
    )
    assert (outcome.code, outcome.executed, outcome.error) == (
        Code.REPORTED, Executed.YES, "no such customer",
    )  # fmt: skip
    assert (outcome.recommendations, outcome.retry_after) == (("look",), 5.0)


def test_no_return_value_forges_another_type() -> None:
    outcome = returning({"ok": False, "error": "x", "errorType": "exception", "executed": "no"})
    assert (outcome.code, outcome.executed) == (Code.REPORTED, Executed.YES)


@pytest.mark.parametrize("odd", [{"recommendations": "one"}, {"retryAfter": "soon"}])
def test_a_report_with_odd_extras_is_still_a_report(odd: dict[str, Any]) -> None:
    outcome = returning({"ok": False, "error": 7} | odd)
    assert (outcome.error, outcome.recommendations, outcome.retry_after) == ("7", (), None)


@pytest.mark.parametrize(
    "value",
    [object(), {"a": object()}, "\ud800", lambda: 1],
    ids=["object", "nested", "surrogate", "function"],
)
def test_what_is_not_json_is_a_bad_result(value: Any) -> None:
    outcome = returning(value)
    assert (outcome.code, outcome.executed) == (Code.BAD_RESULT, Executed.YES)


def test_a_bad_result_says_why_and_how_large_it_was_for_operators() -> None:
    @tool
    def declares() -> int:
        return "no number"  # type: ignore[return-value]

    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    outcomes = [
        returning(object()), returning("x" * 20_000), returning(deep), outcome_of(declares)
    ]  # fmt: skip
    told = [failure_of(outcome, {}, with_text=False) for outcome in outcomes]
    assert [(t.cause, t.result_bytes) for t in told if t is not None] == [
        ("not JSON", 0),
        ("too large", 20_002),
        ("nested too deep", 602),
        ("not as declared", 11),
    ]


def test_a_result_over_the_caps() -> None:
    assert returning("x" * 998).data is not None
    assert returning("x" * 998).output_bytes == 0
    cut = returning("x" * 5000)
    assert cut.ok
    assert "4,001 of 5,000 bytes left out" in cut.data
    assert len(cut.data) < 1100
    refused = returning("x" * 20_000)
    assert (refused.code, refused.executed) == (Code.BAD_RESULT, Executed.YES)
    assert "20,002 bytes; at most 10,000 are accepted" in refused.error


def test_a_cut_never_splits_a_character() -> None:
    assert "\ufffd" not in returning("é" * 3000).data


@pytest.mark.parametrize(
    ("error", "message", "name"),
    [
        (ValueError("broken"), "broken", "builtins.ValueError"),
        (KeyError(), "KeyError", "builtins.KeyError"),
        (SystemExit(3), "3", "builtins.SystemExit"),
        (KeyboardInterrupt(), "KeyboardInterrupt", "builtins.KeyboardInterrupt"),
        (MemoryError(), "MemoryError", "builtins.MemoryError"),
        (GeneratorExit(), "GeneratorExit", "builtins.GeneratorExit"),
        (asyncio.CancelledError(), "CancelledError", "asyncio.exceptions.CancelledError"),
    ],
    ids=repr,
)
def test_every_exception_becomes_an_outcome(error: BaseException, message: str, name: str) -> None:
    """R10: of a plain function and of a coroutine alike; the stack is for operators alone."""

    @tool
    def plain() -> None:
        raise error

    @tool
    async def coroutine() -> None:
        raise error

    in_loop = asyncio.run(invoke_coroutine(Invocation(coroutine, {}, CONTEXT, LIMITS))).outcome
    for outcome in (outcome_of(plain), in_loop):
        assert (outcome.code, outcome.executed, outcome.error) == (
            Code.RAISED, Executed.YES, message,
        )  # fmt: skip
        assert outcome.details is not None
        assert outcome.details["exception"] == name
        assert "Traceback" in outcome.details["stack"]


def test_a_cancelled_coroutine_is_not_an_outcome_of_its_tool() -> None:
    """Who cancels it wants it to end, not to hear that it raised."""

    @tool
    async def wait() -> None:
        await asyncio.Event().wait()

    async def cancelled() -> None:
        task = asyncio.ensure_future(invoke_coroutine(Invocation(wait, {}, CONTEXT, LIMITS)))
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())


def test_a_secret_in_the_name_of_an_exception_is_hidden() -> None:
    @tool
    def fail() -> None:
        raise type("hunter2hunter2", (Exception,), {})("boom")

    context = ToolContext(call_id="c", tool="t", secrets={"key": "hunter2hunter2"})
    outcome = invoke(Invocation(fail, {}, context, LIMITS)).outcome
    assert "hunter2" not in str(outcome)
    assert "[secret key]" in str(outcome.details)


def test_the_name_of_an_exception_is_cut() -> None:
    @tool
    def fail() -> None:
        raise type("E" * 9000, (Exception,), {"__module__": "m" * 9000})("boom")

    details = outcome_of(fail).details
    assert details is not None
    assert details["exception"] == f"{'m' * 200}.{'E' * 200}"


def test_a_tool_error_is_a_report() -> None:
    @tool
    def refuse() -> None:
        raise ToolError("closed", recommendations=["come back"], retry_after=60)

    outcome = outcome_of(refuse)
    assert (outcome.code, outcome.error, outcome.recommendations, outcome.retry_after) == (
        Code.REPORTED, "closed", ("come back",), 60,
    )  # fmt: skip


def test_a_message_that_is_too_long_or_unprintable_is_made_fit() -> None:
    @tool
    def shout() -> None:
        raise ValueError("\ud800" + "x" * 5000)

    outcome = outcome_of(shout)
    assert len(outcome.error) == 2000
    assert outcome.error.startswith("?x")
    encoding.encode(outcome)


def _too_late(hour: int) -> str | None:
    return "hour: the shop closes at 20" if hour > 20 else None


def _odd(hour: int) -> None:
    if hour % 2:
        raise ValueError("hour: only even hours")


@tool(check=[_too_late, _odd])
def book(hour: int, ctx: ToolContext) -> int:
    """Book a table."""
    return hour


@pytest.mark.parametrize(
    ("hour", "objection"), [(22, "hour: the shop closes at 20"), (13, "hour: only even hours")]
)
def test_a_tools_own_check_refuses_before_it_runs(hour: int, objection: str) -> None:
    """R19: after typing and before the tool, so it did not run."""
    outcome = outcome_of(book, hour=hour)
    assert (outcome.code, outcome.executed, outcome.error) == (
        Code.INVALID_ARGUMENTS, Executed.NO, objection,
    )  # fmt: skip
    assert data(outcome_of(book, hour=12)) == 12


def test_types_are_checked_again_where_the_tool_runs() -> None:
    outcome = outcome_of(book, hour="noon")
    assert (outcome.code, outcome.executed) == (Code.INVALID_ARGUMENTS, Executed.NO)
    assert outcome.problems[0].path == ("hour",)


def nested(levels: int, wrap: str) -> Any:
    value: Any = 0
    for number in range(levels):
        value = [value] if wrap == "list" or (wrap == "both" and number % 2) else {"a": value}
    return value


@pytest.mark.parametrize("wrap", ["list", "dict", "both"])
def test_a_result_nested_too_deep_is_a_bad_result(wrap: str) -> None:
    """R7: readers on its way would give up on it; the tool ran."""
    assert returning(nested(200, wrap)).ok
    for levels in (201, 990):
        outcome = returning(nested(levels, wrap))
        assert (outcome.code, outcome.executed) == (Code.BAD_RESULT, Executed.YES)
        assert "200 levels" in outcome.error or "not JSON" in outcome.error


class Sly(str):
    """Text only by its class."""

    def __len__(self) -> int:
        raise SystemExit

    def encode(self, *_: Any) -> bytes:
        raise KeyboardInterrupt

    def __getitem__(self, _: Any) -> str:
        raise SystemExit


def _exit(*_: Any) -> Any:
    raise SystemExit(9)


def _interrupt(*_: Any) -> Any:
    raise KeyboardInterrupt


def _sly(*_: Any) -> Any:
    return Sly("text")


def _number(*_: Any) -> Any:
    return 7


METHODS = [_exit, _interrupt, _sly, _number]
ATTRIBUTES = [
    "__str__", "__repr__", "__class__", "__module__", "__notes__", "__cause__",
    "__traceback__", "__getattribute__", "args", "recommendations", "retry_after", "__len__",
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("attribute", ATTRIBUTES)
@pytest.mark.parametrize("base", [Exception, SystemExit, ToolError, OSError, SyntaxError])
def test_an_exception_with_broken_methods_still_answers_its_call(
    base: type[BaseException], attribute: str, method: Any
) -> None:
    """R10, R11: also where it exits while it is asked what it is."""
    is_method = attribute in ("__str__", "__repr__", "__getattribute__", "__len__")
    kind = type("Awkward", (base,), {attribute: method if is_method else property(method)})
    for in_group in (False, True):

        def misbehave(in_group: bool = in_group) -> None:
            error = kind("text")
            raise BaseExceptionGroup("several", [error, OSError()]) if in_group else error

        plain, coroutine = misbehaving(misbehave)
        on_loop = asyncio.run(invoke_coroutine(Invocation(coroutine, {}, CONTEXT, LIMITS))).outcome
        for outcome in (outcome_of(plain), on_loop):
            assert outcome.code in (Code.RAISED, Code.REPORTED)
            assert outcome.executed is Executed.YES
            assert type(outcome.error) is str and outcome.error
            assert encoding.decode(encoding.encode(outcome))["ok"] is False


def misbehaving(misbehave: Callable[[], None]) -> tuple[Tool, Tool]:
    @tool
    def plain() -> None:
        misbehave()

    @tool
    async def coroutine() -> None:
        misbehave()

    return plain, coroutine


class Mute:
    """Has no text, and no truth."""

    def __str__(self) -> str:
        raise SystemExit

    __repr__ = __len__ = __bool__ = __str__  # type: ignore[assignment]


@pytest.mark.parametrize(
    "report",
    [
        {"error": Mute()},
        {"error": Sly("text")},
        {"error": "x", "recommendations": [Mute(), Sly("look")]},
        {"error": "x", "retryAfter": 10**400},
        {"error": "x", "retryAfter": float("nan")},
        {"error": "\ud800" * 10_000, "recommendations": ["\ud800"] * 1000},
    ],
    ids=["mute", "sly", "recommendations", "large", "nan", "long"],
)
def test_an_awkward_report_is_still_a_report(report: dict[str, Any]) -> None:
    outcome = returning({"ok": False} | report)
    assert (outcome.code, outcome.executed) == (Code.REPORTED, Executed.YES)
    assert len(encoding.encode(outcome)) < 30_000
    with pytest.raises(ToolError) as raised:
        raise ToolError(
            report["error"],
            recommendations=report.get("recommendations", ()),
            retry_after=report.get("retryAfter"),
        )

    @tool
    def fail() -> None:
        raise raised.value

    outcome = outcome_of(fail)
    assert (outcome.code, outcome.executed) == (Code.REPORTED, Executed.YES)
    assert len(encoding.encode(outcome)) < 60_000


class MuteError(ValueError):
    """A check's objection without a text."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


def test_a_check_whose_objection_has_no_text_refuses_all_the_same() -> None:
    def refuse(hour: int) -> None:
        raise MuteError

    @tool(check=refuse)
    def book_never(hour: int) -> None:
        """Book a table."""
        raise AssertionError

    outcome = outcome_of(book_never, hour=3)
    assert (outcome.code, outcome.executed) == (Code.INVALID_ARGUMENTS, Executed.NO)


def test_a_type_whose_objection_has_no_text_is_answered() -> None:
    def refuse(value: int) -> int:
        raise MuteError

    @tool
    def take(hour: Annotated[int, AfterValidator(refuse)]) -> None:
        """Take it."""
        raise AssertionError

    outcome = outcome_of(take, hour=3)
    assert outcome.code in (Code.INVALID_ARGUMENTS, Code.RAISED)


def test_a_call_that_is_cancelled_while_its_checks_run_does_not_enter_its_tool() -> None:
    cancelled: list[bool] = []
    entered: list[int] = []

    def check(amount: int) -> None:
        cancelled.append(True)

    @tool(effects="write", run_in="thread", check=check)
    def pay(amount: int) -> None:
        """Pay."""
        entered.append(amount)

    context = ToolContext(call_id="c", tool="pay", is_cancelled=lambda: bool(cancelled))
    outcome = invoke(Invocation(pay, {"amount": 5}, context, LIMITS)).outcome
    assert (outcome.code, outcome.executed, entered) == (Code.CANCELLED, Executed.NO, [])


async def _refuse_later(hour: int) -> None:
    raise ValueError("refused")


class _RefusesLater:
    async def __call__(self, hour: int) -> None:
        raise ValueError("refused")


def _yields(hour: int) -> Iterator[str]:
    yield "refused"


@pytest.mark.parametrize(
    "check",
    [_refuse_later, _RefusesLater(), partial(_refuse_later), _yields],
    ids=["coroutine", "object", "partial", "generator"],
)
def test_a_check_that_would_have_to_be_awaited_is_refused_where_it_is_declared(check: Any) -> None:
    with pytest.raises(ToolDeclarationInvalid, match="check= must be a plain function"):

        @tool(check=check)
        def pay(hour: int) -> None:
            """Pay."""


@pytest.mark.parametrize(
    "answer", [False, 0, [], _yields(1)], ids=["false", "0", "list", "generator"]
)
def test_a_check_that_returns_something_else_lets_no_call_run(answer: object) -> None:
    @tool(check=lambda hour: answer)
    def pay(hour: int) -> None:
        """Pay."""
        raise AssertionError

    outcome = outcome_of(pay, hour=1)
    assert (outcome.code, outcome.executed) == (Code.RAISED, Executed.NO)


@pytest.mark.filterwarnings("error")
def test_a_coroutine_that_a_check_returns_is_not_forgotten() -> None:
    @tool(check=lambda hour: _refuse_later(hour))
    def pay(hour: int) -> None:
        """Pay."""
        raise AssertionError

    outcome = outcome_of(pay, hour=1)
    assert (outcome.code, outcome.executed) == (Code.RAISED, Executed.NO)


def test_a_check_that_returns_true_lets_the_call_run() -> None:
    @tool(check=lambda hour: True)
    def look(hour: int) -> int:
        """Look."""
        return hour

    assert data(outcome_of(look, hour=3)) == 3


@pytest.mark.parametrize(
    "error",
    [KeyError("x"), AttributeError("y"), RuntimeError("z"), asyncio.CancelledError()],
    ids=repr,
)
def test_a_tool_whose_types_raise_was_not_entered(error: BaseException) -> None:
    """It is a fault of the tool's author all the same."""

    def refuse(value: Any) -> Any:
        raise error

    @tool
    def take(value: Annotated[Any, BeforeValidator(refuse)]) -> None:
        """Take a value."""

    outcome = outcome_of(take, value=1)
    assert (outcome.code, outcome.executed) == (Code.RAISED, Executed.NO)

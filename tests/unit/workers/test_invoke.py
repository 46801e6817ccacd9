"""What a tool returns and raises, turned into an outcome (R5, R10, R11)."""

import asyncio
import datetime
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from contract import encoding
from contract.outcome import Code, Executed, Outcome
from toolpool import ToolContext, ToolError, tool
from workers.invoke import Limits, invoke, invoke_coroutine
from workers.tool import Tool

CONTEXT = ToolContext(call_id="c", tool="t")
LIMITS = Limits(max_result=10_000)


def outcome_of(declared: Tool, /, **arguments: Any) -> Outcome:
    return invoke(declared, arguments, CONTEXT, LIMITS).outcome


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


@pytest.mark.parametrize("value", [object(), {"a": object()}, "\ud800", lambda: 1], ids=repr)
def test_what_is_not_json_is_a_bad_result(value: Any) -> None:
    outcome = returning(value)
    assert (outcome.code, outcome.executed) == (Code.BAD_RESULT, Executed.YES)


def test_a_result_over_the_caps() -> None:
    assert returning("x" * 998).data is not None
    assert returning("x" * 998).output_bytes == 0
    cut = returning("x" * 5000)
    assert cut.ok
    assert "4,001 of 5,000 bytes left out" in cut.data
    assert len(cut.data) < 1100
    refused = returning("x" * 20_000)
    assert (refused.code, refused.executed) == (Code.BAD_RESULT, Executed.YES)
    assert "20,002 bytes; at most 10,000 are taken" in refused.error


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
def test_whatever_is_raised_is_an_outcome(error: BaseException, message: str, name: str) -> None:
    """R10: of a plain function and of a coroutine alike; the stack is for operators alone."""

    @tool
    def plain() -> None:
        raise error

    @tool
    async def coroutine() -> None:
        raise error

    in_loop = asyncio.run(invoke_coroutine(coroutine, {}, CONTEXT, LIMITS)).outcome
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
        task = asyncio.ensure_future(invoke_coroutine(wait, {}, CONTEXT, LIMITS))
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())


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

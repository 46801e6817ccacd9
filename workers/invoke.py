"""Calls one tool function and turns whatever happens into an `Outcome` (R5, R10, R11)."""

import asyncio
import inspect
import traceback
from typing import Any

import msgspec
import pydantic_core

from contract import encoding
from contract.content import error_of
from contract.encoding import printable
from contract.errors import ToolError
from contract.outcome import Code, Executed, Outcome, failure
from workers.context import ToolContext
from workers.output import Ending, fitted
from workers.signature import ArgumentsRefused
from workers.tool import Tool

_STACK_CHARACTERS = 8_000
_MESSAGE_CHARACTERS = 2_000
_PLAIN = (str, int, float, list, tuple, dict, type(None))
"""What is JSON as it is; other types have rules of their own, as an SDK's objects do."""


class Limits(msgspec.Struct, frozen=True):
    """`max_result` bytes are taken from a tool at all."""

    max_result: int


async def invoke_coroutine(
    tool: Tool, arguments: dict[str, Any], context: ToolContext | None, limits: Limits
) -> Ending:
    """Run an `async def` tool. Cancellation passes through; nothing else is raised."""
    try:
        bound = prepare(tool, arguments, context)
        if isinstance(bound, Outcome):
            return Ending(bound)
        return returned(tool, await tool.function(**bound), limits)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return Ending(raised(error))
    except BaseException as error:  # noqa: BLE001 - whatever a tool raises is a result
        return Ending(raised(error))


def invoke(
    tool: Tool, arguments: dict[str, Any], context: ToolContext | None, limits: Limits
) -> Ending:
    """Run any tool to its end on this thread. Never raises."""
    try:
        bound = prepare(tool, arguments, context)
        if isinstance(bound, Outcome):
            return Ending(bound)
        value = tool.function(**bound)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
        return returned(tool, value, limits)
    except BaseException as error:  # noqa: BLE001 - whatever a tool raises is a result
        return Ending(raised(error))


def prepare(
    tool: Tool, arguments: dict[str, Any], context: ToolContext | None
) -> dict[str, Any] | Outcome:
    """The function's keyword arguments, or why the call is refused before the tool runs."""
    try:
        bound = tool.signature.bind(arguments, context)
    except ArgumentsRefused as refused:
        return failure(Code.INVALID_ARGUMENTS, "", Executed.NO, problems=refused.problems)
    for check in tool.checks:
        given = {name: bound[name] for name in bound if name not in tool.signature.injected}
        try:
            objection = check(**given)
        except ValueError as error:
            objection = str(error)
        if isinstance(objection, str):
            return failure(Code.INVALID_ARGUMENTS, objection, Executed.NO)
    return bound


def returned(tool: Tool, value: Any, limits: Limits) -> Ending:
    """The ending of a tool that returned `value` (R5)."""
    if isinstance(value, dict):
        if value.get("ok") is False and "error" in value:
            return Ending(_reported(value))
        if value.get("ok") is True and "data" in value:
            value = value["data"]
    try:
        encoded = _as_json(value)
    except (TypeError, ValueError, RecursionError, pydantic_core.PydanticSerializationError) as why:
        reason = f"the tool returned something that is not JSON ({_cut(str(why), 200)})"
        return Ending(failure(Code.BAD_RESULT, reason, Executed.YES))
    if len(encoded) > limits.max_result:
        taken = f"at most {limits.max_result:,} are taken"
        reason = f"the tool returned {len(encoded):,} bytes; {taken}"
        return Ending(failure(Code.BAD_RESULT, reason, Executed.YES))
    error = error_of(value if isinstance(value, _PLAIN) else encoding.decode(encoded))
    if error is not None:
        error = _cut(printable(error), _MESSAGE_CHARACTERS) or "the tool reported an error"
        return Ending(failure(Code.REPORTED, error, Executed.YES))
    return fitted(encoded, tool.spec.max_output)


def raised(error: BaseException) -> Outcome:
    """The outcome of a tool that raised."""
    if isinstance(error, ToolError):
        return failure(
            Code.REPORTED,
            str(error),
            Executed.YES,
            recommendations=error.recommendations,
            retry_after=error.retry_after,
        )
    try:
        message = str(error) or type(error).__name__
        stack = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - an exception whose own __str__ raises
        message = stack = type(error).__name__
    return failure(
        Code.RAISED,
        _cut(printable(message), _MESSAGE_CHARACTERS),
        Executed.YES,
        details={
            "exception": f"{type(error).__module__}.{type(error).__qualname__}",
            "stack": printable(stack[-_STACK_CHARACTERS:]),
        },
    )


def _reported(value: dict[str, Any]) -> Outcome:
    recommendations = value.get("recommendations")
    retry_after = value.get("retryAfter")
    return failure(
        Code.REPORTED,
        _cut(printable(str(value["error"])), _MESSAGE_CHARACTERS),
        Executed.YES,
        recommendations=tuple(str(r) for r in recommendations)
        if isinstance(recommendations, (list, tuple))
        else (),
        retry_after=float(retry_after) if isinstance(retry_after, (int, float)) else None,
    )


def _as_json(value: Any) -> bytes:
    try:
        return encoding.encode(value)
    except TypeError:
        return encoding.encode(pydantic_core.to_jsonable_python(value))


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"

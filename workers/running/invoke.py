"""Calls one tool function and turns its result or exception into an `Outcome`."""

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any

import msgspec
import pydantic_core

from toolpool.contract import encoding
from toolpool.contract.content import error_of
from toolpool.contract.credentials import MissingReason, MissingSecret, missing_secret_outcome
from toolpool.contract.envelope import PolicyVerdict, Switch
from toolpool.contract.errors import NeedsSignIn, ToolError
from toolpool.contract.exception_report import faults_of
from toolpool.contract.outcome import (
    NOT_COMPARABLE,
    READ_OTHERWISE,
    SWITCHED_OFF,
    Code,
    Executed,
    Outcome,
    failure,
)
from toolpool.contract.redaction import NOTHING, Redaction
from toolpool.contract.schema.problem import Problem
from toolpool.workers import safe_text
from toolpool.workers.context import ToolContext
from toolpool.workers.returns import Returns
from toolpool.workers.running.nesting import nests_deeper_than
from toolpool.workers.running.output import Completion, fitted
from toolpool.workers.signature import ArgumentsRefused, ReadOtherwise, SwitchedOff
from toolpool.workers.tool import Tool

_MESSAGE_CHARACTERS = 2_000
_REPORT_CHARACTERS = 16_000
"""The limit for a ToolError, which is written for the model; `bash` reports output in one."""
_REPORTED_NOTHING = "the tool reported an error"
_LEVELS = 200
"""The deepest nesting of a result; JSON parsers fail at some thousand levels, or fewer."""
_PLAIN = (str, int, float, list, tuple, dict, type(None))
"""Types that are JSON as they are; others, such as an SDK's objects, have their own rules."""


async def invoke_coroutine(
    tool: Tool,
    arguments: dict[str, Any],
    context: ToolContext | None,
    max_bytes: int,
    verdict: PolicyVerdict | None = None,
    switches: Sequence[Switch] = (),
) -> Completion:
    """Run an `async def` tool. Raises only CancelledError."""
    with _redaction(context) as redaction:
        try:
            bound = prepare(tool, arguments, context, verdict, switches)
            if isinstance(bound, Outcome):
                return Completion(bound)
            return returned(tool, await tool.function(**bound), max_bytes, redaction)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return Completion(raised(error, redaction))
        except BaseException as error:  # noqa: BLE001 - any exception of a tool is a result
            return Completion(raised(error, redaction))


def invoke(
    tool: Tool,
    arguments: dict[str, Any],
    context: ToolContext | None,
    max_bytes: int,
    verdict: PolicyVerdict | None = None,
    switches: Sequence[Switch] = (),
) -> Completion:
    """Run any tool to its end on this thread. Never raises."""
    with _redaction(context) as redaction:
        try:
            bound = prepare(tool, arguments, context, verdict, switches)
            if isinstance(bound, Outcome):
                return Completion(bound)
            if tool.checks and context is not None and context.cancelled:
                return Completion(failure(Code.CANCELLED, "", Executed.NO))
            value = tool.function(**bound)
            if inspect.iscoroutine(value):
                value = asyncio.run(value)
            return returned(tool, value, max_bytes, redaction)
        except BaseException as error:  # noqa: BLE001 - any exception of a tool is a result
            return Completion(raised(error, redaction))


def _redaction(context: ToolContext | None) -> Redaction:
    return NOTHING if context is None else context.redaction


def prepare(
    tool: Tool,
    arguments: dict[str, Any],
    context: ToolContext | None,
    verdict: PolicyVerdict | None = None,
    switches: Sequence[Switch] = (),
) -> dict[str, Any] | Outcome:
    """The function's keyword arguments, or why the call is refused before the tool runs."""
    try:
        return _prepared(tool, arguments, context, verdict, switches)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - types and checks are user code, not the tool
        outcome = raised(error, _redaction(context))
        return msgspec.structs.replace(outcome, executed=Executed.NO)


def _prepared(
    tool: Tool,
    arguments: dict[str, Any],
    context: ToolContext | None,
    verdict: PolicyVerdict | None,
    switches: Sequence[Switch],
) -> dict[str, Any] | Outcome:
    """As `prepare`; raises what the argument types and the checks raise besides ValueError."""
    try:
        bound = tool.signature.bind(arguments, context, verdict, switches)
    except ArgumentsRefused as refused:
        return failure(Code.INVALID_ARGUMENTS, "", Executed.NO, problems=refused.problems)
    except SwitchedOff as denied:
        return failure(Code.DENIED, str(denied), Executed.NO, details={"cause": SWITCHED_OFF})
    except ReadOtherwise as refused:
        problems, why, cause = refused.problems, READ_OTHERWISE, "otherwise than judged"
        if own := tuple(each for each in problems if each.kind == NOT_COMPARABLE):
            types = ", ".join(sorted({each.expected for each in own}))
            problems, why, cause = own, NOT_COMPARABLE, f"as {types}, not comparable with JSON"
        details = {"cause": f"it reads arguments {cause}"}
        return failure(Code.DENIED, why, Executed.NO, problems=problems, details=details)
    for check in tool.checks:
        given = {name: bound[name] for name in bound if name not in tool.signature.injected}
        try:
            objection = check(**given)
        except ValueError as error:
            objection = safe_text.text_of(error, _MESSAGE_CHARACTERS)
        if issubclass(type(objection), str):
            objection = safe_text.text_of(objection, _MESSAGE_CHARACTERS)
            return failure(Code.INVALID_ARGUMENTS, objection, Executed.NO)
    return bound


def returned(tool: Tool, value: Any, max_bytes: int, redaction: Redaction = NOTHING) -> Completion:
    """The completion of a tool that returned `value`."""
    whole = value
    if isinstance(value, dict):
        if value.get("ok") is False and "error" in value:
            return Completion(_reported(value, redaction))
        if value.get("ok") is True and "data" in value:
            value = value["data"]
    try:
        encoded = _as_json(value)
    except (TypeError, ValueError, RecursionError, pydantic_core.PydanticSerializationError) as why:
        said = safe_text.text_of(why, 200, redaction.text)
        reason = f"the tool returned something that is not JSON ({said})"
        return _bad(reason, "not JSON", **_details(why, redaction))
    if len(encoded) > max_bytes:
        return _too_much(encoded, max_bytes)
    if nests_deeper_than(_LEVELS, encoded):
        reason = f"the tool returned data nested more than {_LEVELS} levels deep"
        return _bad(reason, "nested too deep", result_bytes=len(encoded))
    error = error_of(value if isinstance(value, _PLAIN) else encoding.decode(encoded))
    if error is not None:
        error = safe_text.text_of(error, _MESSAGE_CHARACTERS, redaction.text) or _REPORTED_NOTHING
        return Completion(failure(Code.REPORTED, error, Executed.YES))
    if tool.returns is not None:
        problems = _broken(tool.returns, encoded, whole if whole is not value else None)
        named = tool.returns.by_alias(encoded) if problems else None
        if named is not None and len(named) <= max_bytes:
            encoded = named
        elif problems:
            reason = "the tool returned something other than it declares"
            size = len(encoded)
            return _bad(reason, "not as declared", problems=problems, result_bytes=size)
    hidden = redaction.json(encoded)
    if len(hidden) > max_bytes:  # a mask may be longer than its secret
        return _too_much(hidden, max_bytes)
    return fitted(hidden, tool.spec.max_output)


def _too_much(encoded: bytes, max_bytes: int) -> Completion:
    taken = f"at most {max_bytes:,} are taken"
    reason = f"the tool returned {len(encoded):,} bytes; {taken}"
    return _bad(reason, "too large", result_bytes=len(encoded))


def _bad(reason: str, cause: str, problems: tuple[Problem, ...] = (), **details: Any) -> Completion:
    """The outcome of an invalid result. `cause` is one of a few, for operators."""
    details["cause"] = cause
    outcome = failure(Code.BAD_RESULT, reason, Executed.YES, problems=problems, details=details)
    return Completion(outcome)


def _broken(returns: Returns, encoded: bytes, wrapper: Any) -> tuple[Problem, ...]:
    """The problems of a result as it is sent.

    Data may come in a `wrapper`, which an annotation may describe instead of the data.
    """
    problems = returns.problems(encoding.decode(encoded))
    if problems and returns.is_annotation and wrapper is not None:
        try:
            return returns.problems(encoding.decode(_as_json(wrapper))) and problems
        except (TypeError, ValueError, RecursionError, pydantic_core.PydanticSerializationError):
            return problems
    return problems


def raised(error: BaseException, redaction: Redaction = NOTHING) -> Outcome:
    """The outcome of a tool that raised. Never raises, even if the exception's methods do."""
    hide = redaction.text
    if issubclass(type(error), NeedsSignIn):
        url = safe_text.url_of(_attribute(error, "url"), hide)
        text = safe_text.text_of(error, _MESSAGE_CHARACTERS, hide) or _REPORTED_NOTHING
        return missing_secret_outcome(
            MissingSecret(lack=MissingReason.SIGN_IN, url=url), Executed.YES, text
        )
    if issubclass(type(error), ToolError):
        return failure(
            Code.REPORTED,
            safe_text.text_of(error, _REPORT_CHARACTERS, hide) or _REPORTED_NOTHING,
            Executed.YES,
            recommendations=safe_text.recommendations_of(
                _attribute(error, "recommendations"), hide
            ),
            retry_after=safe_text.seconds_of(_attribute(error, "retry_after")),
        )
    return failure(
        Code.RAISED,
        safe_text.text_of(error, _MESSAGE_CHARACTERS, hide) or safe_text.short_name_of(error, hide),
        Executed.YES,
        details=_details(error, redaction),
    )


def _details(error: BaseException, redaction: Redaction) -> dict[str, Any]:
    return {
        "exception": safe_text.name_of(error, redaction.text),
        "stack": safe_text.stack_of(error, redaction.text),
        "faults": redaction.data(faults_of(error)),
    }


def _attribute(error: BaseException, name: str) -> Any:
    try:
        return getattr(error, name, None)
    except BaseException:  # noqa: BLE001 - a property of a subclass
        return None


def _reported(value: dict[str, Any], redaction: Redaction) -> Outcome:
    hide = redaction.text
    return failure(
        Code.REPORTED,
        safe_text.text_of(value["error"], _MESSAGE_CHARACTERS, hide) or _REPORTED_NOTHING,
        Executed.YES,
        recommendations=safe_text.recommendations_of(value.get("recommendations"), hide),
        retry_after=safe_text.seconds_of(value.get("retryAfter")),
    )


def _as_json(value: Any) -> bytes:
    try:
        return encoding.encode(value)
    except TypeError:
        return encoding.encode(pydantic_core.to_jsonable_python(value))

"""Calls one tool function and turns its result or exception into an `Outcome`."""

import asyncio
import inspect
from typing import Any

import msgspec

from toolpool.contract.envelope import PolicyVerdict, Switch
from toolpool.contract.outcome import (
    ARGUMENTS_DIFFER,
    NOT_COMPARABLE,
    SWITCHED_OFF,
    Code,
    Executed,
    Outcome,
    failure,
)
from toolpool.contract.redaction import NOTHING, Redaction
from toolpool.workers import safe_text
from toolpool.workers.context import ToolContext
from toolpool.workers.running.outcomes import MESSAGE_CHARACTERS, raised, returned
from toolpool.workers.running.output import Completion
from toolpool.workers.signature import ArgumentsDiffer, ArgumentsRefused, SwitchedOff
from toolpool.workers.tool import Tool


class Invocation(msgspec.Struct, frozen=True, gc=False):
    """A tool, what it is called with, and what its typed arguments are compared with.

    `context` is None if the function takes none. A result has at most `max_bytes` of JSON.
    `switches` are the kill switches on arguments of the tool.
    """

    tool: Tool
    arguments: dict[str, Any]
    context: ToolContext | None
    max_bytes: int
    verdict: PolicyVerdict | None = None
    switches: tuple[Switch, ...] = ()

    @property
    def redaction(self) -> Redaction:
        """Masks the secrets of the call."""
        return NOTHING if self.context is None else self.context.redaction


async def invoke_coroutine(call: Invocation) -> Completion:
    """Run an `async def` tool. Raises only CancelledError."""
    with call.redaction as redaction:
        try:
            bound = prepare(call)
            if isinstance(bound, Outcome):
                return Completion(bound)
            return returned(call.tool, await call.tool.function(**bound), call.max_bytes, redaction)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return Completion(raised(error, redaction))
        except BaseException as error:  # noqa: BLE001 - any exception of a tool is a result
            return Completion(raised(error, redaction))


def invoke(call: Invocation) -> Completion:
    """Run any tool to its end on this thread. Never raises."""
    with call.redaction as redaction:
        try:
            bound = prepare(call)
            if isinstance(bound, Outcome):
                return Completion(bound)
            if call.tool.checks and call.context is not None and call.context.cancelled:
                return Completion(failure(Code.CANCELLED, "", Executed.NO))
            value = call.tool.function(**bound)
            if inspect.iscoroutine(value):
                value = asyncio.run(value)
            return returned(call.tool, value, call.max_bytes, redaction)
        except BaseException as error:  # noqa: BLE001 - any exception of a tool is a result
            return Completion(raised(error, redaction))


def prepare(call: Invocation) -> dict[str, Any] | Outcome:
    """The function's keyword arguments, or why the call is refused before the tool runs."""
    try:
        return _prepared(call)
    except BaseException as error:  # noqa: BLE001 - types and checks are user code, not the tool
        outcome = raised(error, call.redaction)
        return msgspec.structs.replace(outcome, executed=Executed.NO)


def _prepared(call: Invocation) -> dict[str, Any] | Outcome:
    """Like `prepare`, but raises what types and checks raise, except ValueError."""
    signature = call.tool.signature
    try:
        bound = signature.bind(call.arguments, call.context, call.verdict, call.switches)
    except ArgumentsRefused as refused:
        return failure(Code.INVALID_ARGUMENTS, "", Executed.NO, problems=refused.problems)
    except SwitchedOff as denied:
        return failure(Code.DENIED, str(denied), Executed.NO, details={"cause": SWITCHED_OFF})
    except ArgumentsDiffer as refused:
        problems, why, cause = refused.problems, ARGUMENTS_DIFFER, "otherwise than judged"
        if own := tuple(each for each in problems if each.kind == NOT_COMPARABLE):
            types = ", ".join(sorted({each.expected for each in own}))
            problems, why, cause = own, NOT_COMPARABLE, f"as {types}, not comparable with JSON"
        details = {"cause": f"it reads arguments {cause}"}
        return failure(Code.DENIED, why, Executed.NO, problems=problems, details=details)
    for check in call.tool.checks:
        given = {name: bound[name] for name in bound if name not in signature.injected}
        try:
            objection = check(**given)
        except ValueError as error:
            objection = safe_text.text_of(error, MESSAGE_CHARACTERS)
        if issubclass(type(objection), str):
            objection = safe_text.text_of(objection, MESSAGE_CHARACTERS)
            return failure(Code.INVALID_ARGUMENTS, objection, Executed.NO)
        if objection is not None and objection is not True:
            if inspect.iscoroutine(objection):
                objection.close()
            raise TypeError(f"a check returned {type(objection).__name__}, not None or a text")
    return bound

"""Outcomes of calls on a worker: of tools that returned or raised, and of calls ended otherwise."""

from typing import Any

import msgspec
import pydantic_core

from toolpool.contract import encoding
from toolpool.contract.content import error_of
from toolpool.contract.credentials import MissingReason, MissingSecret, missing_secret_outcome
from toolpool.contract.encoding import nests_deeper_than
from toolpool.contract.envelope import CallMessage
from toolpool.contract.errors import NeedsSignIn, ToolError
from toolpool.contract.exception_report import faults_of
from toolpool.contract.outcome import BLOCKED_LOOP, Code, Executed, Outcome, failure
from toolpool.contract.redaction import NOTHING, Redaction
from toolpool.contract.schema.problem import Problem
from toolpool.workers import safe_text
from toolpool.workers.returns import Returns
from toolpool.workers.running.claimed_call import ClaimedCall
from toolpool.workers.running.output import Completion, fitted
from toolpool.workers.tool import Tool

MESSAGE_CHARACTERS = 2_000
"""The limit for the text of an exception, in characters."""
_REPORT_CHARACTERS = 16_000
"""The limit for a ToolError in characters. The model reads it; `bash` reports output in one."""
_REPORTED_NOTHING = "the tool reported an error"
_LEVELS = 200
"""The deepest nesting of a result; JSON parsers fail at some thousand levels, or fewer."""
_PLAIN = (str, int, float, list, tuple, dict, type(None))
"""Types that are JSON as they are; others, such as an SDK's objects, have their own rules."""


class WorkerOutcomes:
    """The outcomes of calls that one worker ends itself."""

    def __init__(self, worker: str) -> None:
        self._worker = worker

    def started_before(self, call: CallMessage) -> Outcome:
        """The outcome of a call that was started here before, although its record denies it."""
        return self.signed(failure(Code.WORKER_LOST, "forgotten", Executed.UNKNOWN), call, 0.0)

    def cancelled(self, call: CallMessage) -> Outcome:
        """The outcome of a run that was cancelled."""
        return self.signed(failure(Code.CANCELLED, "", Executed.UNKNOWN), call, 0.0)

    def never_started(self, call: CallMessage) -> Outcome:
        """The outcome of a call that was claimed and cancelled before its start."""
        return self.signed(failure(Code.CANCELLED, "", Executed.NO), call, 0.0)

    def lost(self, call: CallMessage, reason: str) -> Outcome:
        """The outcome of a run that this worker gives up before its end."""
        outcome = failure(Code.WORKER_LOST, reason, Executed.UNKNOWN)
        return self.signed(outcome, call, 0.0)

    def failed(self, call: CallMessage, error: BaseException) -> Outcome:
        """The outcome of a run that failed for a reason outside its tool."""
        reason, details = type(error).__name__, {"faults": faults_of(error)}
        outcome = failure(Code.INTERNAL, reason, Executed.UNKNOWN, details=details)
        return self.signed(outcome, call, 0.0)

    def released_too_often(self, call: CallMessage) -> Outcome:
        """The outcome of a call that workers kept releasing without starting it."""
        outcome = failure(Code.INTERNAL, "no worker would start it", Executed.NO)
        return self.signed(outcome, call, 0.0)

    def not_stoppable(self, call: CallMessage) -> Outcome:
        """The outcome of a run that continues although it was told to stop."""
        outcome = failure(
            Code.TIMEOUT, "it did not stop when told to", Executed.UNKNOWN, still_running=True
        )
        return self.signed(outcome, call, call.timeout)

    def blocked(self, running: ClaimedCall) -> Outcome:
        """The outcome of a run that blocked the event loop until its worker was killed."""
        outcome = failure(Code.TIMEOUT, BLOCKED_LOOP, Executed.UNKNOWN)
        return self.signed(outcome, running.call, running.seconds)

    def signed(self, outcome: Outcome, call: CallMessage, duration: float) -> Outcome:
        """The outcome with this worker, its attempt and its duration in seconds."""
        if outcome.executed is Executed.NO and call.attempt > 1 and call.rerunnable:
            # An earlier attempt may have entered the tool; a call that may not run twice is only
            # attempted again if it was never entered.
            outcome = msgspec.structs.replace(outcome, executed=Executed.UNKNOWN)
        return msgspec.structs.replace(
            outcome, worker=self._worker, attempt=call.attempt, duration=round(duration, 6)
        )


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
    if len(encoded) > _LEVELS and nests_deeper_than(_LEVELS, encoded):
        reason = f"the tool returned data nested more than {_LEVELS} levels deep"
        return _bad(reason, "nested too deep", result_bytes=len(encoded))
    error = error_of(value if isinstance(value, _PLAIN) else encoding.decode(encoded))
    if error is not None:
        error = safe_text.text_of(error, MESSAGE_CHARACTERS, redaction.text) or _REPORTED_NOTHING
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
    taken = f"at most {max_bytes:,} are accepted"
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
        text = safe_text.text_of(error, MESSAGE_CHARACTERS, hide) or _REPORTED_NOTHING
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
        safe_text.text_of(error, MESSAGE_CHARACTERS, hide) or safe_text.short_name_of(error, hide),
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
        safe_text.text_of(value["error"], MESSAGE_CHARACTERS, hide) or _REPORTED_NOTHING,
        Executed.YES,
        recommendations=safe_text.recommendations_of(value.get("recommendations"), hide),
        retry_after=safe_text.seconds_of(value.get("retryAfter")),
    )


def _as_json(value: Any) -> bytes:
    try:
        return encoding.encode(value)
    except TypeError:
        return encoding.encode(pydantic_core.to_jsonable_python(value))

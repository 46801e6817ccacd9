"""Turns an outcome into the result for the caller: type, retryable, texts, advice. No I/O."""

import hashlib

import msgspec

from toolpool.contract.call import ToolCall
from toolpool.contract.outcome import Code, Executed, Outcome, failure, is_retryable
from toolpool.contract.rates import Rate
from toolpool.contract.result import ToolResult
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.messages import advice, feedback
from toolpool.dispatcher.messages.wording import Wording

__all__ = [
    "Wording",
    "classified",
    "forgotten",
    "not_queued",
    "rejected",
    "server_full",
    "unconfirmed",
    "unreachable",
]


def rejected(call: ToolCall, code: Code, text: str, wording: Wording) -> ToolResult:
    """The result of a call that was not accepted: it did not run, and would fail again."""
    return _failure(
        call,
        code,
        text,
        Executed.NO,
        spec=None,
        wording=wording,
        own=(),
    )


def classified(
    call: ToolCall,
    spec: ToolSpec,
    outcome: Outcome,
    *,
    timeout: float,
    duration: float,
    wording: Wording,
    retries: int = 0,
    pages_offered: bool = False,
    note: str | None = None,
) -> ToolResult:
    """The result of an accepted call. Times are in seconds.

    `pages_offered`: the model has a tool to read a full output in pages.
    """
    handle = outcome.output if pages_offered else None
    cut = feedback.cut(outcome.output_bytes, handle, wording) if outcome.output_bytes else None
    notes = [text for text in (call.note, call.policy_note, note, outcome.note, cut) if text]
    joined = " ".join(notes) or None
    if outcome.ok:
        return ToolResult(
            call_id=call.provider_id,
            name=call.name,
            ok=True,
            data=outcome.data,
            note=joined,
            handle=outcome.output,
            duration=duration,
            attempts=retries + outcome.attempt,
            id_given=call.id_given,
            origin=call.origin,
        )
    code = outcome.code or Code.INTERNAL
    outcome = _masked(call, outcome) if wording.masks_errors else outcome
    result = _failure(
        call,
        code,
        feedback.failed(
            call.name, outcome, timeout=timeout, rerunnable=spec.rerunnable, wording=wording
        ),
        outcome.executed,
        cause=outcome.error,
        spec=spec,
        wording=wording,
        own=outcome.recommendations or spec.recommendations,
    )
    return msgspec.structs.replace(
        result,
        note=joined,
        retry_after=outcome.retry_after,
        duration=duration,
        attempts=retries + outcome.attempt,
        details=outcome.details,
    )


def _masked(call: ToolCall, outcome: Outcome) -> Outcome:
    """Move a tool's exception text to the details for operators, under an id.

    The same error has the same id, wherever and whenever the call is answered.
    """
    details = outcome.details or {}
    is_raised = outcome.code is Code.BAD_RESULT and "exception" in details
    if outcome.code is not Code.RAISED and not is_raised:
        return outcome
    told = "\0".join((call.id, outcome.worker, outcome.error, str(details.get("stack"))))
    error_id = hashlib.sha256(told.encode(errors="replace")).hexdigest()[:12]
    details = {**details, "error": outcome.error, "error_id": error_id}
    return msgspec.structs.replace(outcome, error="", details=details)


def not_queued(code: Code, error: str = "", *, retry_after: float | None = None) -> Outcome:
    """The outcome of a call that never left this process."""
    return failure(code, error, Executed.NO, retry_after=retry_after)


def server_full(retry_after: float) -> Outcome:
    """The outcome of a call that was not sent because the server is almost out of memory."""
    return not_queued(Code.OVERLOADED, feedback.SERVER_FULL, retry_after=retry_after)


def over_rate(kind: str, rate: Rate) -> str:
    """The reason in the outcome of a call over a limit; `feedback` makes its sentence."""
    return f"{feedback.OVER_RATE} {kind} {rate}"


def forgotten() -> Outcome:
    """The outcome of a repeated call that may have run and has no record."""
    return failure(Code.WORKER_LOST, "forgotten", Executed.UNKNOWN)


def not_cancelled() -> Outcome:
    """The outcome of a cancel that the server did not confirm: the background call goes on."""
    return failure(Code.QUEUE_UNREACHABLE, "not_cancelled", Executed.UNKNOWN)


def left_to_others(*, started: bool) -> Outcome:
    """The outcome for one caller of a call that goes on for callers with later deadlines."""
    code = Code.TIMEOUT if started else Code.EXPIRED
    return failure(code, feedback.OTHERS_WAIT, Executed.UNKNOWN, still_running=started)


def unconfirmed(*, started: bool, sent: bool, is_full: bool) -> Outcome:
    """The outcome of a call whose deadline came while the server was away or full."""
    if started:
        return failure(Code.TIMEOUT, "", Executed.UNKNOWN)
    return unreachable(Executed.UNKNOWN if sent else Executed.NO, is_full=is_full)


def unreachable(executed: Executed, *, is_full: bool) -> Outcome:
    """The outcome of a call that the server did not take; `is_full`: for lack of memory."""
    return failure(Code.QUEUE_UNREACHABLE, feedback.SERVER_FULL if is_full else "", executed)


def _failure(
    call: ToolCall,
    code: Code,
    text: str,
    executed: Executed,
    *,
    cause: str = "",
    spec: ToolSpec | None,
    wording: Wording,
    own: tuple[str, ...],
) -> ToolResult:
    retryable = is_retryable(code, executed, spec)
    return ToolResult(
        call_id=call.provider_id,
        name=call.name,
        ok=False,
        error=text,
        code=code,
        retryable=retryable,
        executed=executed,
        recommendations=advice.recommendations(
            call.name,
            code,
            cause,
            executed,
            own=own,
            retryable=retryable,
            rerunnable=spec is not None and spec.rerunnable,
            locale=wording.locale,
        ),
        note=call.note,
        id_given=call.id_given,
        origin=call.origin,
    )

"""Turns the outcome of a call into its result: type, retryable, texts, advice. No I/O."""

import hashlib

import msgspec

from toolpool.contract.call import ToolCall
from toolpool.contract.credentials import missing_secret_in
from toolpool.contract.outcome import Code, ErrorType, Executed, Outcome
from toolpool.contract.result import ToolResult
from toolpool.contract.spec import Effects, ToolSpec
from toolpool.dispatcher.messages import advice, texts
from toolpool.dispatcher.messages.wording import Wording

NEVER_RETRIED = frozenset(
    {Code.OVERLOADED, Code.CIRCUIT_OPEN, Code.QUEUE_UNREACHABLE, Code.EXPIRED}
)
"""Codes that are not retried: a retry would only wait for the same cause again."""


def is_retryable(code: Code, executed: Executed, spec: ToolSpec | None) -> bool:
    """Whether the same arguments may be sent again. `spec` is None for an unknown tool.

    A failure of the pool may be retried if the tool is a read, is idempotent or certainly did not
    run. A failure of the tool may also be retried if its effects are not declared.
    """
    match code.error_type:
        case ErrorType.LOGICAL:
            return True
        case ErrorType.VALIDATION | ErrorType.ABORTED:
            return False
        case ErrorType.RUNTIME if spec is None or spec.effects is not Effects.WRITE:
            return True
    return executed is Executed.NO or (spec is not None and spec.rerunnable)


def is_final(outcome: Outcome) -> bool:
    """Whether a failure that did not run is never retried by the pool, for any tool."""
    is_of_call = outcome.code is not None and not is_retryable(outcome.code, Executed.NO, None)
    waits_for_person = outcome.code is Code.REPORTED and missing_secret_in(outcome.details)
    return is_of_call or outcome.code in NEVER_RETRIED or bool(waits_for_person)


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
    cut = texts.cut(outcome.output_bytes, handle, wording) if outcome.output_bytes else None
    notes = filter(None, (call.note, call.policy_note, note, outcome.note, cut))
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
        texts.failed(
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

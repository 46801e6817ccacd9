"""Turns the outcome of a call into its result: type, retryable, texts, advice. No I/O."""

import hashlib
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from toolpool.contract import logs
from toolpool.contract.call import ToolCall
from toolpool.contract.exception_report import faults_in, traceback_of
from toolpool.contract.outcome import Code, Executed, Outcome, is_retryable
from toolpool.contract.result import ToolResult
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.calls.pending import Pending
from toolpool.dispatcher.messages import advice, texts
from toolpool.dispatcher.messages.wording import Wording
from toolpool.dispatcher.turn_options import TurnOptions

log = logs.logger("dispatch")


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


class OwnEnd(NamedTuple):
    """The end of a call for one caller, who stops waiting while the call goes on for others.

    It waited since `since`, on the monotonic clock; `timeout` is its own.
    """

    outcome: Outcome
    timeout: float
    since: float


class Classifier:
    """Classifies calls in the language of one dispatcher.

    `offers` says whether the dispatcher offers the named tool to every model.
    """

    def __init__(
        self, wording: Wording, offers: Callable[[str], bool], *, with_texts: bool
    ) -> None:
        self._wording = wording
        self._with_texts = with_texts
        self._offers = offers

    def __call__(
        self,
        pending: Pending,
        unseen: str | None = None,
        *,
        own_end: OwnEnd | None = None,
        turn: TurnOptions | None = None,
    ) -> ToolResult:
        """The result of an answered call, or of one that goes on without this caller (`own_end`).

        `unseen` names an earlier write whose end is unknown. `turn` is the turn whose model reads
        the result, None if the host asked for it.
        """
        note = texts.unseen_end(unseen, self._wording) if unseen is not None else None
        if pending.shared_as:
            equal = texts.shared(pending.shared_as, pending.age, self._wording)
            note = " ".join(filter(None, (note, equal)))
        outcome, ended = pending.outcome, pending.ended
        timeout, since = pending.message.timeout, pending.began
        if own_end is not None:
            (outcome, timeout, since), ended = own_end, time.monotonic()
        assert outcome is not None
        offers = self._offers if turn is None else turn.offers
        result = classified(
            pending.call,
            pending.spec,
            outcome,
            timeout=timeout,
            duration=ended - since,
            wording=self._wording,
            retries=pending.retries,
            pages_offered=bool(outcome.output) and offers("task_result"),
            note=note,
        )
        if (details := result.details) and "error_id" in details:
            log.error(
                "tool_raised error_id=%s tool=%s call=%s exception=%s%s\n%s",
                details["error_id"], result.name, pending.call.id, details.get("exception"),
                f": {details['error']}" if self._with_texts else "",
                logs.lines(traceback_of(faults_in(details))),
            )  # fmt: skip
        return result

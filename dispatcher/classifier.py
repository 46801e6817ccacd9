"""Makes the result of an answered call, in the language of its dispatcher."""

import time

from toolpool.contract import logs
from toolpool.contract.exception_report import faults_in, traceback_of
from toolpool.contract.result import ToolResult
from toolpool.dispatcher.admission.acceptance import Acceptance
from toolpool.dispatcher.calls.pending import Pending
from toolpool.dispatcher.messages import feedback
from toolpool.dispatcher.messages.classify import classified
from toolpool.dispatcher.messages.wording import Wording
from toolpool.dispatcher.turn_context import TurnContext
from toolpool.dispatcher.turns import Alone

log = logs.logger("dispatch")


class Classifier:
    """Implements `turns.Classify`."""

    def __init__(self, wording: Wording, acceptance: Acceptance, *, with_texts: bool) -> None:
        self._wording = wording
        self._with_texts = with_texts
        self._acceptance = acceptance

    def __call__(
        self,
        pending: Pending,
        unseen: str | None = None,
        *,
        alone: Alone | None = None,
        shared: TurnContext | None = None,
    ) -> ToolResult:
        """The result of a call; see `turns.Classify`."""
        note = feedback.unseen_end(unseen, self._wording) if unseen is not None else None
        if pending.shared_as:
            equal = feedback.shared(pending.shared_as, pending.age, self._wording)
            note = " ".join(filter(None, (note, equal)))
        outcome, ended = pending.outcome, pending.ended
        timeout, since = pending.message.timeout, pending.began
        if alone is not None:
            (outcome, timeout, since), ended = alone, time.monotonic()
        assert outcome is not None
        result = classified(
            pending.call,
            pending.spec,
            outcome,
            timeout=timeout,
            duration=ended - since,
            wording=self._wording,
            retries=pending.retries,
            pages_offered=bool(outcome.output)
            and (shared or self._acceptance).offers("task_result"),
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

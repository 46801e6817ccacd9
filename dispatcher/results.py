"""Makes the results for callers. Outcomes are classified, then passed through the host's policy."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from toolpool.contract import logs
from toolpool.contract.exception_report import faults_in, traceback_of
from toolpool.contract.outcome import Outcome
from toolpool.contract.result import ToolResult
from toolpool.dispatcher.calls.pending import PendingCall
from toolpool.dispatcher.classifier import classified
from toolpool.dispatcher.messages import texts
from toolpool.dispatcher.messages.wording import Wording
from toolpool.dispatcher.policy.result_policy import ResultPolicy
from toolpool.dispatcher.policy.verdict_types import ProposedCall, copied
from toolpool.dispatcher.turn_options import TurnOptions

log = logs.logger("results")


class OwnEnd(NamedTuple):
    """The end of a call for one caller, who stops waiting while the call goes on for others.

    The caller has waited since `since`, on the monotonic clock; `timeout` is this caller's timeout.
    """

    outcome: Outcome
    timeout: float
    since: float


class Results:
    """Makes the results of one dispatcher. Without a policy they are the calls' outcomes.

    `offers` says whether the dispatcher offers the named tool to every model. `with_texts`: logs
    contain the messages of exceptions.
    """

    def __init__(
        self,
        wording: Wording,
        policy: ResultPolicy | None,
        tenant: str,
        *,
        offers: Callable[[str], bool],
        with_texts: bool,
    ) -> None:
        self._wording = wording
        self.policy = policy
        self._tenant = tenant
        self._offers = offers
        self._with_texts = with_texts

    def result_of(
        self,
        pending: PendingCall,
        unseen: str | None = None,
        *,
        own_end: OwnEnd | None = None,
        turn: TurnOptions | None = None,
    ) -> ToolResult:
        """The result of an answered call.

        `own_end`: this caller stops waiting while the call goes on.

        `unseen` names an earlier write whose end is unknown. `turn` is the turn whose model reads
        the result, None if the host asked for it.
        """
        note = texts.unseen_end(unseen, self._wording) if unseen is not None else None
        if pending.shared_as:
            equal = texts.shared(pending.shared_as, pending.age, self._wording)
            note = " ".join(filter(None, (note, equal)))
        outcome, ended = pending.outcome, pending.answered_at
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

    async def of(self, pending: PendingCall) -> ToolResult:
        """The result of a call that was answered."""
        result = self.result_of(pending)
        return await self.shown(result, pending)

    async def shown(self, result: ToolResult, pending: PendingCall) -> ToolResult:
        """A call's result after the policy."""
        if self.policy is None or not pending.queue:
            return result
        message, spec = pending.message, pending.spec
        call = ProposedCall(
            tool=pending.call.name,
            arguments=copied(message.arguments),
            call_id=pending.call.provider_id,
            session=message.session,
            turn=message.turn,
            tenant=self._tenant,
            context=copied(message.context) if message.context is not None else None,
            effects=spec.effects,
            provider=pending.provider,
        )
        return await self.policy.shown(result, call)

    def at_once(self, pending: PendingCall) -> ToolResult:
        """The result if hooks cannot be called any more.

        If there is a result policy, the result is withheld.
        """
        result = self.result_of(pending)
        return result if self.policy is None else self.policy.withheld(result)

    async def page(self, page: dict[str, Any], session: str | None) -> dict[str, Any]:
        """A page of a full output after the policy."""
        if self.policy is None:
            return page
        result = ToolResult(call_id="", name=page["tool"], ok=True, data=page)
        call = ProposedCall(
            tool=page["tool"],
            arguments={},
            call_id="",
            session=session,
            turn=None,
            tenant=self._tenant,
            context=None,
            effects=None,
        )
        shown = await self.policy.shown(result, call)
        if shown.ok and isinstance(shown.data, dict):
            return shown.data
        return page | {"text": str(shown.data if shown.ok else shown.error)}

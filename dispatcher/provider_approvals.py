"""What a provider asks before it runs a tool of its own: answered by the policy, or by a person.

Nothing is run here. Without a policy the answer is no: nobody here could have said yes.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence

from redis.exceptions import RedisError

from toolpool.contract import logs
from toolpool.contract.approval import (
    ApprovalRequest,
    ApprovalState,
    digest_of,
    id_of,
    may_decide,
    read_decision,
    read_request,
    signed_request,
)
from toolpool.contract.call import ToolCall
from toolpool.contract.envelope import CallMessage
from toolpool.contract.errors import MessageRejected
from toolpool.contract.ledger.approvals import Found
from toolpool.contract.ledger.steps import ServerAway
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.result import ToolResult
from toolpool.dispatcher.calls import opening
from toolpool.dispatcher.calls.services import Services
from toolpool.dispatcher.formats.blocks import NO_APPROVER
from toolpool.dispatcher.policy.notify import Notifier
from toolpool.dispatcher.policy.policy import Policy
from toolpool.dispatcher.policy.verdicts import Allow, AskApproval, Deny
from toolpool.dispatcher.turn_context import TurnContext
from toolpool.dispatcher.words import feedback
from toolpool.dispatcher.words.classify import rejected
from toolpool.dispatcher.words.wording import Wording

log = logs.logger("approvals")

_EVERY_SECONDS = 0.25
_AWAY = (ServerAway, RedisError, OSError, TimeoutError)


class ProviderApprovals:
    """One dispatcher's."""

    def __init__(
        self, services: Services, policy: Policy, wording: Wording, notifier: Notifier
    ) -> None:
        self._ledger = services.transport.approvals
        self._transport = services.transport
        self._envelope = services.envelope
        self._settings = services.settings
        self._observers = services.observers
        self._policy = policy
        self._wording = wording
        self._notifier = notifier

    async def decide(
        self, calls: Sequence[ToolCall], shared: TurnContext, since: float
    ) -> Mapping[int, ToolResult]:
        """The answers to what the provider asks, by index; those to be left as they are are not in.

        A person has as long as the host waits: at the end of it the answer is no.
        """
        asked = [call for call in calls if call.flaw is NO_APPROVER]
        if not asked:
            return {}
        results = await asyncio.gather(*(self._decide(call, shared, since) for call in asked))
        return {call.index: result for call, result in zip(asked, results, strict=True)}

    async def _decide(self, call: ToolCall, shared: TurnContext, since: float) -> ToolResult:
        verdict, by = await self._policy.judge_foreign(call, shared)
        if isinstance(verdict, Deny):
            self._tell("denied", call, shared, by, verdict.reason)
            return self._no(call, verdict.reason or self._wording.words.not_allowed)
        if isinstance(verdict, Allow):
            self._tell("approved", call, shared, by, "")
            return _yes(call)
        return await self._ask(call, shared, since, verdict, by)

    async def _ask(
        self, call: ToolCall, shared: TurnContext, since: float, approval: AskApproval, by: str
    ) -> ToolResult:
        wait = shared.wait if shared.wait is not None else self._settings.background_wait
        good = min(wait, approval.expires or self._settings.approval_expires)
        until = since + good
        request = self._request(call, shared, approval, by, good)
        body = signed_request(self._envelope, request)
        words = self._wording.words
        try:
            found = await self._ledger.ask(
                request.id,
                body,
                record=request.message.key,
                good=max(0.001, good),
                kept=self._settings.background_kept,
            )
            if found.request == body:
                self._tell("asked", call, shared, by, approval.reason)
                telling = asyncio.ensure_future(self._notifier.asked(request))
                telling.add_done_callback(lambda _: None)
            while found.state == ApprovalState.WAITING and time.monotonic() < until:
                await asyncio.sleep(min(_EVERY_SECONDS, max(0.0, until - time.monotonic())))
                found = await self._ledger.read(request.id)
            if found.state == ApprovalState.WAITING:
                await self._ledger.withdraw(request.id)
                found = await self._ledger.read(request.id)
        except asyncio.CancelledError:
            await asyncio.shield(self._withdraw(request.id))
            raise
        except _AWAY as error:
            log.warning("approval_not_asked call=%s: %s", call.id, error)
            return self._no(call, words.policy_failed)
        return self._answer(call, shared, found)

    def _answer(self, call: ToolCall, shared: TurnContext, found: Found) -> ToolResult:
        words = self._wording.words
        if found.state in (ApprovalState.EXPIRED, ApprovalState.WITHDRAWN):
            self._tell("expired", call, shared, "", "")
            return self._no(call, words.nobody_approved)
        try:
            request = read_request(self._envelope, found.request)
            decision = read_decision(self._envelope, found.decision, request)
        except MessageRejected as error:
            log.error("decision_rejected approval=%s: %s", found.id, error)
            return self._no(call, words.policy_failed)
        is_bound = request.digest == digest_of(call.name, call.arguments or {})
        if not is_bound or not may_decide(decision.by, request):
            log.error("decision_rejected approval=%s: it is for something else", found.id)
            return self._no(call, words.policy_failed)
        self._tell(
            "approved" if decision.approved else "denied",
            call,
            shared,
            decision.by,
            decision.reason,
        )
        if decision.approved:
            return _yes(call)
        return self._no(call, feedback.denied_by(decision.by, decision.reason, self._wording))

    def _request(
        self, call: ToolCall, shared: TurnContext, approval: AskApproval, by: str, good: float
    ) -> ApprovalRequest:
        now, arguments = self._transport.server_time(), call.arguments or {}
        key = opening.key_of(call, shared, self._settings.tenant)
        return ApprovalRequest(
            id=id_of(key),
            tenant=self._settings.tenant,
            message=CallMessage(
                key=key,
                id=call.id,
                tool=call.name,
                digest="",
                arguments=arguments,
                index=call.index,
                session=shared.session,
                turn=shared.id,
            ),
            digest=digest_of(call.name, arguments),
            asked_at=now,
            expires_at=now + good,
            reason=approval.reason,
            approvers=tuple(approval.approvers),
            by=by,
            provider=shared.provider,
            is_foreign=True,
        )

    async def _withdraw(self, id: str) -> None:
        try:
            await self._ledger.withdraw(id)
        except _AWAY as error:
            log.warning("approval_not_withdrawn id=%s: %s", id, error)

    def _no(self, call: ToolCall, reason: str) -> ToolResult:
        text = self._wording.words.denied.format(name=call.name, error=reason.rstrip(" .。"))
        return rejected(call, Code.DENIED, text, self._wording)

    def _tell(self, what: str, call: ToolCall, shared: TurnContext, by: str, reason: str) -> None:
        self._observers.audited(
            what,
            tool=call.name,
            call_id=call.id,
            session=shared.session,
            by=by,
            reason=reason,
        )


def _yes(call: ToolCall) -> ToolResult:
    """The provider may run it: whether it does is not known here."""
    return ToolResult(
        call_id=call.provider_id,
        name=call.name,
        ok=True,
        data={"approved": True},
        executed=Executed.NO,
        note=call.note,
        id_given=call.id_given,
        origin=call.origin,
    )

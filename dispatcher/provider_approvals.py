"""Answers a provider's request to approve its own tool, by the policy or by a person.

Nothing runs here. Without a policy the answer is no, as nothing could have approved it.
"""

import asyncio
import functools
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from toolpool.contract import logs
from toolpool.contract.approval_messages import (
    ApprovalReader,
    ApprovalRequest,
    ApprovalState,
    digest_of,
    may_decide,
)
from toolpool.contract.call import ToolCall
from toolpool.contract.envelope import CallMessage
from toolpool.contract.errors import MessageRejected, ServerError
from toolpool.contract.ledger.answers import CallState, LedgerAnswer
from toolpool.contract.ledger.approval_steps import ApprovalRecord, WaitStep
from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.contract.ledger.protocols import CloseReason, Closing
from toolpool.contract.outcome import Code, Executed, Outcome, failure
from toolpool.contract.result import ToolResult
from toolpool.dispatcher import outcomes
from toolpool.dispatcher.admission.availability import Availability
from toolpool.dispatcher.calls import call_identity
from toolpool.dispatcher.calls.reporting import UnsentCall
from toolpool.dispatcher.calls.services import Services
from toolpool.dispatcher.classifier import rejected
from toolpool.dispatcher.formats.call_blocks import NO_APPROVER
from toolpool.dispatcher.formats.call_ids import is_unique
from toolpool.dispatcher.messages import texts
from toolpool.dispatcher.messages.wording import Wording
from toolpool.dispatcher.outcomes import not_queued
from toolpool.dispatcher.policy.approval_webhook import ApprovalNotifier
from toolpool.dispatcher.policy.decision import Policy
from toolpool.dispatcher.policy.verdict_types import AskApproval, Deny
from toolpool.dispatcher.turn_options import TurnOptions

log = logs.logger("approvals")

_EVERY_SECONDS = 0.25
_END_SECONDS = 5.0
_LEAVING_SECONDS = 2.0
"""How long to try to end the record, and to answer a call after its decision, in seconds."""
_UNDECIDED = (ApprovalState.EXPIRED, ApprovalState.CANCELLED)
_USED = Outcome(ok=True, executed=Executed.NO)
"""The outcome of a record whose grant was used."""
_NOT_APPROVED = failure(Code.DENIED, outcomes.NOBODY_APPROVED, Executed.NO)


class _Answer(NamedTuple):
    """The answer according to the record, and how it is audited.

    The answer is yes if there is no `refusal`. `may_have_run`: the request was granted elsewhere,
    or still may be.
    """

    refusal: str | None
    what: str = ""
    by: str = ""
    reason: str = ""
    code: Code = Code.DENIED
    may_have_run: bool = False


class ProviderApprovals:
    """Answers the approval requests of one dispatcher's providers."""

    def __init__(
        self,
        services: Services,
        policy: Policy,
        wording: Wording,
        notifier: ApprovalNotifier,
        available: Availability,
    ) -> None:
        self._ledger = services.transport.approvals
        self._transport = services.transport
        self._envelope = services.envelope
        settings = self._settings = services.settings
        self._reader = ApprovalReader(services.envelope, settings.tenant, settings.key_prefix)
        self._observers = services.observers
        self._policy = policy
        self._wording = wording
        self._notifier = notifier
        self._available = available
        self._waiting: dict[asyncio.Task[Any], UnsentCall] = {}
        """One entry per task that waits. Several tasks may wait for the same request."""
        self._closing = asyncio.Event()

    async def decide(
        self, calls: Sequence[ToolCall], options: TurnOptions, since: float
    ) -> Mapping[int, ToolResult]:
        """The answers to a provider's requests, by index.

        Without a policy, the answers omit requests that are rejected as flawed. A person can decide
        for as long as the host waits; after that, the answer is no.
        """
        cap = self._settings.calls_per_turn
        asked = [call for call in calls if call.flaw is NO_APPROVER and call.index < cap]
        if not asked:
            return {}
        results = await asyncio.gather(*(self._decide(call, options, since) for call in asked))
        return {
            call.index: result
            for call, result in zip(asked, results, strict=True)
            if self._policy.asks_somebody or result.executed is Executed.UNKNOWN
        }

    def unsent_calls(self) -> Collection[UnsentCall]:
        """The calls that wait for a person, each once."""
        return {unsent.key: unsent for unsent in self._waiting.values()}.values()

    async def cancel(self, session: str | None, call_id: str | None) -> int:
        """Cancel the waiting calls of a session, or one call; return how many ended."""
        ends = [
            unsent.end()
            for unsent in self.unsent_calls()
            if session in (None, unsent.session) and call_id in (None, unsent.call.id)
        ]
        return sum(outcome is not None for outcome in await asyncio.gather(*ends))

    async def close(self) -> None:
        """Cancel the waiting calls, and let their callers be answered."""
        self._closing.set()
        if self._waiting:
            await asyncio.wait(set(self._waiting), timeout=_LEAVING_SECONDS)

    async def _decide(self, call: ToolCall, options: TurnOptions, since: float) -> ToolResult:
        words = self._wording.words
        if options.again and not await self._has_record(call, options):
            return await self._deny(call, options, words.reasons["forgotten"], may_have_run=True)
        if not self._policy.asks_somebody:
            return await self._deny(call, options, words.no_approver)
        if (reason := self._refusal(call, options)) is not None:
            return await self._deny(call, options, reason)
        verdict, by = await self._policy.judge_provider_request(call, options)
        if isinstance(verdict, Deny):
            self._tell("denied", call, options, by, verdict.reason)
            return await self._deny(call, options, verdict.reason or words.not_allowed)
        if isinstance(verdict, AskApproval):
            return await self._ask(call, options, since, verdict, by)
        if (reason := await self._refusal_now(call, options)) is not None:
            return await self._deny(call, options, reason)
        if (key := self._key(call, options)) is not None:
            found = await self._close(key, CloseReason.USED, _USED)
            if found is not None and found.state is CallState.WAITING:
                return await self._ask(call, options, since, AskApproval(), by)
            outcome = self._recorded(key, found.outcome) if found is not None else None
            if outcome is None or not outcome.ok:
                return self._result(call, self._as_recorded(outcome))
        self._tell("approved", call, options, by, "")
        return _yes(call)

    async def _deny(
        self, call: ToolCall, options: TurnOptions, reason: str, *, may_have_run: bool = False
    ) -> ToolResult:
        """Record a denial, so that the request is granted nowhere; the answer is no in any case."""
        outcome: Outcome | None = None
        if (key := self._key(call, options)) is not None:
            found = await self._close(
                key,
                CloseReason.CANCEL,
                failure(Code.DENIED, reason, Executed.UNKNOWN if may_have_run else Executed.NO),
            )
            if found is not None and found.outcome:
                outcome = self._recorded(key, found.outcome)
        was_granted = outcome is not None and (outcome.ok or outcome.executed is Executed.UNKNOWN)
        return self._no(call, reason, may_have_run=may_have_run or was_granted)

    def _key(self, call: ToolCall, options: TurnOptions) -> str | None:
        """The key of a request's record; None if no other dispatcher can know it."""
        if options.session is None or options.id is None:
            return None
        return self._key_of(call, options)

    def _key_of(self, call: ToolCall, options: TurnOptions) -> str:
        """The key of a request.

        Few requests need the turn, which `resume` may not know, in their key.
        """
        if is_unique(call.id):
            call = msgspec.structs.replace(call, has_own_key=True)
        return call_identity.key_of(call, options, self._settings)

    async def _has_record(self, call: ToolCall, options: TurnOptions) -> bool:
        """Whether the answer to a request, if there was one, is known; False if in doubt."""
        try:
            [state] = await self._transport.states([self._key_of(call, options)])
        except ServerError as error:
            log.warning("approval_not_read call=%s: %s", call.id, error)
            return False
        return state is not None

    def _recorded(self, key: str, outcome: bytes) -> Outcome | None:
        """The outcome in a record; None if its signature is not valid for this record."""
        try:
            settled = self._envelope.decode_settled(key, outcome)
        except MessageRejected as error:
            log.error("message_rejected reason=%s approval=%s: %s", error.reason, key, error)
            return None
        return settled.outcome if settled is not None else None

    def _as_recorded(self, outcome: Outcome | None) -> _Answer:
        """The answer to a request that was not granted elsewhere, or that a person decides here."""
        words = self._wording.words
        if outcome is None:
            return _Answer(words.policy_failed)
        if outcome.ok:
            return _Answer(words.reasons["not_approved"], may_have_run=True)
        if outcome.code is Code.CANCELLED:
            return _Answer("", code=Code.CANCELLED)
        known = words.reasons if outcome.error in texts.DENIALS else {}
        may_have_run = outcome.executed is Executed.UNKNOWN
        told = known.get(outcome.error, outcome.error or words.not_allowed)
        return _Answer(told, may_have_run=may_have_run)

    def _result(self, call: ToolCall, answer: _Answer) -> ToolResult:
        words = self._wording.words
        if answer.refusal is None:
            return _yes(call)
        if answer.code is Code.CANCELLED:
            text = words.cancelled.format(name=call.name, whether=words.not_run)
            return rejected(call, Code.CANCELLED, text, self._wording)
        return self._no(call, answer.refusal, may_have_run=answer.may_have_run)

    async def _refusal_now(self, call: ToolCall, options: TurnOptions) -> str | None:
        """Like `_refusal`, with the newest kill switches, because no worker will check them."""
        try:
            await self._available.follow_switches()
        except ServerError as error:
            log.warning("switches_not_read call=%s: %s", call.id, error)
            return self._wording.words.policy_failed
        return self._refusal(call, options)

    def _refusal(self, call: ToolCall, options: TurnOptions) -> str | None:
        """Why a tool that was not offered or is switched off is refused; None for any other."""
        if not options.offers(call.name):
            return self._wording.words.not_allowed
        denial = self._available.denial(call)
        return denial.error if denial is not None else None

    async def _ask(
        self, call: ToolCall, options: TurnOptions, since: float, approval: AskApproval, by: str
    ) -> ToolResult:
        wait = options.wait if options.wait is not None else self._settings.background_wait
        until = since + min(wait, approval.expires or self._settings.approval_expires)
        request = self._request(call, options, approval, by, max(0.001, until - time.monotonic()))
        ledger, now = self._ledger, self._transport.server_time
        end = functools.partial(self._cancel, request)
        unsent = UnsentCall(call, options.session, since, end, waits_for="approval", key=request.id)
        asker = asyncio.current_task()
        assert asker is not None
        self._waiting[asker] = unsent
        try:
            found = await ledger.ask(self._asking(request), now=now())
            if found.answer == "new":
                self._tell("asked", call, options, by, approval.reason)
                telling = asyncio.ensure_future(self._notifier.asked(request))
                telling.add_done_callback(lambda _: None)
            while found.state == "waiting" and time.monotonic() < until:
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(_EVERY_SECONDS, until - time.monotonic())):
                        await self._closing.wait()
                if self._closing.is_set():
                    await end()
                    until = 0.0
                found = await ledger.read(request.id, now=now())
            answer = await self._answer(call, options, found)
            if not await self._use_up(request, found, answer):
                found = await ledger.read(request.id, now=now())
                answer = await self._answer(call, options, found)
                if not await self._use_up(request, found, answer):
                    if answer.refusal is None:
                        return self._no(call, self._wording.words.policy_failed)
                    answer = answer._replace(what="", may_have_run=True)  # others still wait for it
            if answer.what:
                self._tell(answer.what, call, options, answer.by, answer.reason)
            return self._result(call, answer)
        except asyncio.CancelledError:
            await asyncio.shield(end())
            raise
        except ServerError as error:
            log.warning("approval_not_asked call=%s: %s", call.id, error)
            return self._no(call, self._wording.words.policy_failed)
        finally:
            self._waiting.pop(asker, None)

    async def _use_up(
        self, request: ApprovalRequest, found: ApprovalRecord, answer: _Answer
    ) -> bool:
        """End the record with the answer; return False if the record has changed."""
        if found.state not in ("waiting", "approved"):
            return True
        if answer.refusal is None:
            return await self._end(request, CloseReason.USED, _USED)
        end = CloseReason.UNAPPROVED if found.state == "waiting" else CloseReason.CANCEL
        return await self._end(request, end, _NOT_APPROVED)

    async def _cancel(self, request: ApprovalRequest) -> Outcome | None:
        cancelled = not_queued(Code.CANCELLED)
        is_ended = await self._end(request, CloseReason.CANCEL, cancelled)
        return cancelled if is_ended else None

    async def _end(self, request: ApprovalRequest, end: CloseReason, outcome: Outcome) -> bool:
        """End a record.

        Returns False if it has ended with another outcome, or could not be reached.
        """
        found = await self._close(request.id, end, outcome)
        recorded = self._recorded(request.id, found.outcome) if found and found.outcome else None
        return recorded == outcome

    async def _close(self, key: str, end: CloseReason, outcome: Outcome) -> LedgerAnswer | None:
        """Close a record with an outcome; None if it could not be reached."""
        ended_before = outcome if outcome.executed is Executed.UNKNOWN else _NOT_APPROVED
        closing = Closing(
            key=key,
            nonce=new_nonce(),
            epoch=self._transport.epoch or "",
            keep=self._settings.background_result_ttl,
            unclaimed=(body := self._envelope.encode_settled(key, outcome)),
            claimed=body,
            doubtful=self._envelope.encode_settled(key, ended_before),
            unsent=True,
        )
        give_up_at = time.monotonic() + _END_SECONDS
        try:
            answers = await self._transport.close_calls([closing], end=end, give_up_at=give_up_at)
        except ServerError as error:
            log.warning("approval_not_ended id=%s: %s", key, error)
            return None
        return answers[0]

    async def _answer(self, call: ToolCall, options: TurnOptions, found: ApprovalRecord) -> _Answer:
        """The answer according to the record, if it is signed with our key for this call."""
        words = self._wording.words
        if found.state == "waiting":
            return _Answer(words.reasons[outcomes.NOBODY_APPROVED], "expired")
        key = found.key
        recorded = self._recorded(key, found.outcome) if found.state == "settled" else None
        if found.shown in _UNDECIDED or (found.state == "settled" and not found.request):
            what = "expired" if found.shown is ApprovalState.EXPIRED else ""
            return self._as_recorded(recorded)._replace(what=what)
        was_used = recorded is not None and recorded.ok
        try:
            request = self._reader.request(key, found.request)
            digest = digest_of(call.name, call.arguments or {})
            decision = self._reader.decision(key, found.decision, digest)
            is_own = request.message.session == options.session
            if not is_own or not may_decide(decision.by, request.approvers):
                raise MessageRejected("foreign", "it is for something else")
        except MessageRejected as error:
            log.error("message_rejected reason=%s approval=%s: %s", error.reason, key, error)
            return _Answer(words.policy_failed, may_have_run=was_used)
        is_late = decision.ends_at <= self._transport.server_time()
        if decision.approved and is_late and not was_used:
            return _Answer(words.reasons[outcomes.NOBODY_APPROVED])
        by, reason = decision.by, decision.reason
        if not decision.approved:
            return _Answer(texts.denied_by(by, reason, self._wording), "denied", by, reason)
        denied = await self._denied_by_now(call, options, by)
        if denied is None:
            refusal = await self._refusal_now(call, options)
            denied = _Answer(refusal, "approved", by, reason)
        return denied._replace(may_have_run=was_used)

    async def _denied_by_now(
        self, call: ToolCall, options: TurnOptions, approver: str
    ) -> _Answer | None:
        """The refusal of an approved call that the policy now denies; None if it does not."""
        words = self._wording.words
        verdict, by = await self._policy.judge_provider_request(call, options)
        if isinstance(verdict, Deny):
            return _Answer(verdict.reason or words.not_allowed, "denied", by, verdict.reason)
        if isinstance(verdict, AskApproval) and not may_decide(approver, verdict.approvers or ()):
            return _Answer(words.no_approver, "denied", by)
        return None

    def _asking(self, request: ApprovalRequest) -> WaitStep:
        now = self._transport.server_time()
        return WaitStep(
            key=request.id,
            nonce=new_nonce(),
            request=self._envelope.encode(request),
            rerunnable=False,
            ends_at=request.expires_at,
            kept=request.expires_at - now + self._settings.background_result_ttl,
            keep=self._settings.background_result_ttl,
            asked_at=now,
        )

    def _request(
        self, call: ToolCall, options: TurnOptions, approval: AskApproval, by: str, good: float
    ) -> ApprovalRequest:
        now, arguments = self._transport.server_time(), call.arguments or {}
        return ApprovalRequest(
            tenant=self._settings.tenant,
            prefix=self._settings.key_prefix,
            message=CallMessage(
                key=self._key_of(call, options),
                id=call.id,
                tool=call.name,
                digest="",
                arguments=arguments,
                index=call.index,
                session=options.session,
                turn=options.id,
            ),
            digest=digest_of(call.name, arguments),
            asked_at=now,
            expires_at=now + good,
            start_within=_END_SECONDS,
            reason=approval.reason,
            approvers=tuple(approval.approvers or ()),
            by=by,
            provider=options.provider,
            is_foreign=True,
        )

    def _no(self, call: ToolCall, reason: str, *, may_have_run: bool = False) -> ToolResult:
        """The answer no. `may_have_run`: the request was granted elsewhere, or still may be."""
        words, error = self._wording.words, reason.rstrip(" .。")
        if not may_have_run:
            text = words.denied.format(name=call.name, error=error)
            return rejected(call, Code.DENIED, text, self._wording)
        text = words.no_result.format(name=call.name, error=error, whether=words.may_have_run)
        told = rejected(call, Code.DENIED, text, self._wording)
        return msgspec.structs.replace(told, executed=Executed.UNKNOWN)

    def _tell(self, what: str, call: ToolCall, options: TurnOptions, by: str, reason: str) -> None:
        self._observers.audited(
            what,
            tool=call.name,
            call_id=call.id,
            session=options.session,
            by=by,
            reason=reason,
        )


def _yes(call: ToolCall) -> ToolResult:
    """The approval; whether the provider then runs the tool is not known here."""
    return ToolResult(
        call_id=call.provider_id,
        name=call.name,
        ok=True,
        data={"approved": True},
        executed=Executed.UNKNOWN,
        note=call.note,
        id_given=call.id_given,
        origin=call.origin,
    )

"""Calls that wait for approval.

Approval is requested once, and any living dispatcher sends the approved call. Such a call has its
record from the start, with the request and the decision, bound to the exact arguments. A dispatcher
only remembers its own waiters; when a call is approved after its dispatcher has gone, another one
sends it. `Deadlines.close_unapproved` ends a call that is not approved in time.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from toolpool.contract import logs
from toolpool.contract.approval_messages import (
    ApprovalDecision,
    ApprovalReader,
    ApprovalRequest,
    digest_of,
    may_decide,
)
from toolpool.contract.call import ToolCall
from toolpool.contract.envelope import BackgroundCall
from toolpool.contract.errors import MessageRejected, ServerError
from toolpool.contract.ledger.approval_steps import ApprovalRecord, WaitStep
from toolpool.contract.ledger.lua_scripts import growing_pauses, new_nonce
from toolpool.contract.outcome import Code
from toolpool.contract.redis_keys import root_of
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher import outcomes
from toolpool.dispatcher.admission.catalog import Catalog
from toolpool.dispatcher.calls import pending_factory
from toolpool.dispatcher.calls.in_flight import InFlightCalls
from toolpool.dispatcher.calls.pending import PendingCall
from toolpool.dispatcher.calls.services import Services
from toolpool.dispatcher.outcomes import forgotten, not_queued
from toolpool.dispatcher.policy.approval_webhook import ApprovalNotifier
from toolpool.dispatcher.policy.decision import Policy
from toolpool.dispatcher.policy.verdict_types import AskApproval
from toolpool.dispatcher.turn_options import TurnOptions

log = logs.logger("approvals")

_EVERY_SECONDS = 0.5
_SENT_BACK_SECONDS = 0.5
"""How long an approved call that was not accepted waits before it is sent again, in seconds."""
_LONGEST_PAUSE_SECONDS = 5.0
_LEAVING_SECONDS = 2.0
_POLL_SECONDS = 5.0
"""How often to look for decisions that were not reported to this dispatcher."""
_LOOKED_AT_ONCE = 256


class _Wait(NamedTuple):
    """A call that waits here, the request in its record, and the record's epoch."""

    pending: PendingCall
    request: ApprovalRequest
    epoch: str


class ApprovalWaits:
    """Manages the calls of one dispatcher that wait for approval."""

    def __init__(
        self,
        services: Services,
        in_flight: InFlightCalls,
        catalog: Catalog,
        notifier: ApprovalNotifier,
        policy: Policy,
        offers: Callable[[str], bool],
    ) -> None:
        self._offers = offers
        self._ledger = services.transport.approvals
        self._transport = services.transport
        self._envelope = services.envelope
        self._settings = settings = services.settings
        self._reader = ApprovalReader(services.envelope, settings.tenant, settings.key_prefix)
        self._observers = services.observers
        self._in_flight = in_flight
        self._ended = in_flight.ended_calls
        self._catalog = catalog
        self._notifier = notifier
        self._policy = policy
        self._waiting: dict[str, _Wait] = {}
        self._judging: set[str] = set()
        """The roots of approved calls that the policy is judging."""
        self._written_in: str | None = None
        """The server epoch in which lost records of waiting calls were written again."""
        self._confirmed_in: str | None = None
        """The server epoch in which all waiting calls were confirmed as unsent."""
        self._looked_at = time.monotonic()
        self._leaving: set[asyncio.Task[None]] = set()
        in_flight.approvals = self

    def start(self) -> None:
        """Follow approvals, on the running loop."""
        self._in_flight.in_background(self._follow())

    async def close(self) -> None:
        """Cancel the calls that have a waiter here.

        The others keep waiting without this dispatcher.
        """
        here = [w.pending for w in self._waiting.values() if not w.pending.in_background]
        await self._in_flight.leave(here)
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=_LEAVING_SECONDS)

    def ask(
        self,
        call: ToolCall,
        spec: ToolSpec,
        turn: TurnOptions,
        since: float,
        approval: AskApproval,
        by: str,
    ) -> PendingCall:
        """Request approval of a call, or join the call if it is already open."""
        pending, is_new = self._in_flight.hold(call, spec, turn, since)
        if is_new and pending.is_open:
            good = approval.expires or self._settings.approval_expires
            self._hold(pending, good)
            now, message = self._transport.server_time(), pending.message
            request = ApprovalRequest(
                tenant=self._settings.tenant,
                prefix=self._settings.key_prefix,
                message=message,
                digest=digest_of(message.tool, message.arguments, spec.bound_digest),
                asked_at=now,
                expires_at=now + good,
                start_within=self._settings.queue_timeout + message.timeout,
                reason=approval.reason,
                approvers=tuple(approval.approvers or ()),
                by=by,
                provider=pending.provider,
                origin=call.origin,
                long_id=call.long_id,
                id_given=call.id_given,
            )
            self._in_flight.in_background(self._ask(pending, request))
        return pending

    async def adopt(
        self, found: BackgroundCall, *, is_wanted: bool = True
    ) -> BackgroundCall | PendingCall:
        """Take over the call of a handle, if it waits for approval or is approved and unsent.

        For any other call, returns `found` with its signed approval, if any. A call that is not
        wanted is opened only to be cancelled, and is never sent. Raises what the ledger raises.
        """
        record = await self._read(found.message.key, attaches=True)
        request = self._request(record)
        if request is not None and record.state in ("waiting", "approved"):
            return self._resumed(request, record if is_wanted else None)
        decision = self._decision(record, request) if request and record.decision else None
        approved = record.decision if decision is not None and decision.approved else None
        return msgspec.structs.replace(
            found, message=msgspec.structs.replace(found.message, approval=approved)
        )

    def decided(self, pending: PendingCall, decision: bytes) -> None:
        """Handle a decision; a denial is also the call's outcome, which arrives separately."""
        wait = self._waiting.get(pending.root)
        if wait is not None:
            record = ApprovalRecord(pending.root, "waiting", decision=decision)
            read = self._decision(record, wait.request)
            if read is not None and read.approved:
                self._go_on(pending, wait.request, decision, read, epoch=wait.epoch)
            elif read is not None:
                self._audit_once("denied", wait.request, read)
        elif pending.awaits_approval:  # before the request is known here
            self._in_flight.in_background(self._look(pending))

    def look(self, pending: PendingCall) -> None:
        """Check the ledger's state of a call that needs approval, or has it."""
        pause = 0.0
        if not pending.awaits_approval:
            pause = _SENT_BACK_SECONDS if pending.approval else 0.0
            self._hold(pending, self._settings.queue_timeout)
        self._in_flight.in_background(self._look(pending, pause))

    async def _look(self, pending: PendingCall, pause: float = 0.0) -> None:
        await asyncio.sleep(pause)
        for next_pause in growing_pauses(_LONGEST_PAUSE_SECONDS):
            if not pending.is_open:
                return
            try:
                found = await self._read(pending.root)
            except ServerError as error:
                log.warning("approval_not_read call=%s: %s", pending.call.id, error)
            else:
                if found.state or found.answer:
                    self._apply_record(pending, found, None)
                    return
            await asyncio.sleep(next_pause)  # a record that the server lost is written again

    async def _ask(self, pending: PendingCall, request: ApprovalRequest) -> None:
        """Write the request, or read its state.

        If the write is not confirmed, withdraw the request.
        """
        try:
            body, nonce = self._envelope.encode(request), new_nonce()
        except (TypeError, ValueError, RecursionError) as error:
            log.error("approval_not_asked call=%s: %s", pending.call.id, error)
            self._in_flight.refuse(pending, not_queued(Code.INTERNAL, type(error).__name__))
            return
        give_up_at = time.monotonic() + self._settings.queue_timeout
        pauses, epoch = growing_pauses(_LONGEST_PAUSE_SECONDS), ""
        while pending.is_open:
            try:
                found = await self._note(pending, request, body, nonce, epoch)
            except ServerError as error:
                epoch = epoch or self._transport.epoch or ""
                log.warning("approval_not_asked call=%s: %s", pending.call.id, error)
                pause = next(pauses)
                if time.monotonic() + pause > give_up_at:
                    self._in_flight.refuse(pending, not_queued(Code.QUEUE_UNREACHABLE))
                    self._leave(self._take_back(pending))
                    return
                await asyncio.sleep(pause)
            else:
                if pending.is_open:
                    self._apply_record(pending, found, request)
                    return
        self._leave(self._take_back(pending))

    async def _note(
        self,
        pending: PendingCall,
        request: ApprovalRequest,
        body: bytes,
        nonce: str,
        epoch: str,
        *,
        was_lost: bool = False,
    ) -> ApprovalRecord:
        now, server_now = time.monotonic(), self._transport.server_time()
        kept = max(self._settings.background_result_ttl, self._settings.dedup_ttl)
        return await self._ledger.ask(
            WaitStep(
                key=pending.root,
                nonce=nonce,
                request=body,
                rerunnable=pending.message.rerunnable,
                ends_at=request.expires_at,
                kept=request.expires_at - server_now + request.start_within + kept,
                keep=kept,
                asked_at=pending.opening(now, server_now).asked_at,
                again=pending.again,
                tried_in=epoch,
                was_lost=was_lost,
            ),
            now=server_now,
        )

    def _apply_record(
        self, pending: PendingCall, found: ApprovalRecord, own: ApprovalRequest | None
    ) -> None:
        """Act on the ledger's state of a call; `own` is the request if it was made here."""
        if not pending.is_open or not pending.awaits_approval:
            return
        if found.answer in ("ran", "moved"):
            self._in_flight.resolve(pending, forgotten())
            if found.state:  # else it would be sent again and again
                self._ended.end_as_forgotten(pending)
            return
        if found.state == "settled":
            self._tell_end(found)
            self._note_approval(pending, found)
            self._in_flight.known(pending, found.outcome)
            return
        request = own if own is not None and found.answer == "new" else self._request(found)
        if request is None:  # not signed with our key: no approval, and it expires as usual
            if own is not None:
                self._waiting[pending.root] = _Wait(pending, own, found.epoch)
            return
        spec = self._catalog.spec_of(request.message.tool)
        if spec is not None and request.digest != _digest(spec, request):
            self._in_flight.refuse(pending, not_queued(Code.DENIED, outcomes.CHANGED_SINCE))
            return
        pending.set_approval_message(request.message)
        self._waiting[pending.root] = _Wait(pending, request, found.epoch)
        if found.state == "waiting":
            left = request.expires_at - self._transport.server_time()
            pending.decided(None)
            self._hold(pending, max(0.0, left))
        elif (decision := self._decision(found, request)) is not None and decision.approved:
            if spec is not None:
                self._go_on(pending, request, found.decision, decision, found)
            else:
                pending.decided(found.decision)
                log.warning(
                    "approved_call_waits tool=%s: no worker offers it", request.message.tool
                )
        if own is not None and found.answer == "new":
            self._tell("asked", request, request.by, request.reason)
            self._in_flight.in_background(self._notifier.asked(request))

    def _note_approval(self, pending: PendingCall, found: ApprovalRecord) -> None:
        """Record the approval with which a call ran: its retries need it, too."""
        request = self._request(found) if found.approval == "approved" else None
        decision = self._decision(found, request) if request is not None else None
        if request is not None and decision is not None and decision.approved:
            pending.set_approval_message(request.message)
            pending.decided(found.decision)

    def _decision(self, found: ApprovalRecord, request: ApprovalRequest) -> ApprovalDecision | None:
        """The decision of an authorized person; any other is logged and decides nothing."""
        try:
            decision = self._reader.decision(request.id, found.decision, request.digest)
            if not may_decide(decision.by, request.approvers):
                raise MessageRejected("foreign", "by an unauthorized person")
        except MessageRejected as error:
            log.error("message_rejected reason=%s approval=%s: %s", error.reason, request.id, error)
            return None
        return decision

    def _go_on(
        self,
        pending: PendingCall,
        request: ApprovalRequest,
        body: bytes,
        decision: ApprovalDecision,
        found: ApprovalRecord | None = None,
        *,
        epoch: str = "",
    ) -> None:
        """Send a call that was approved, or join it if another dispatcher has sent it.

        `found` is its record; without it, `epoch` is that of the record.
        """
        pending.decided(body)  # if it ends unsent, it is reported as expired, and not as unapproved
        left = decision.ends_at - self._transport.server_time()
        is_sent = found is not None and found.state in ("open", "claimed")
        if left <= 0 and not is_sent:
            pending.approved(start_by=pending.start_by, deadline=pending.deadline)
            self._in_flight.deadlines.close_unapproved(pending)
            return
        if not is_sent and not self._offers(request.message.tool):
            # adopted by its handle: left to a dispatcher that offers its tool
            self._in_flight.in_background(self._decline(pending.root))
            return
        if found is not None and not is_sent and self._may_be_sent_already(found):
            return  # checked again when its state is known
        if not is_sent and (pause := self._ended.pause_after_loss(found.epoch if found else epoch)):
            self._in_flight.in_background(self._look(pending, pause))
            return
        if is_sent or not self._policy.asks_somebody:
            self._approved(pending, request, decision, is_sent=is_sent)
        elif pending.root not in self._judging:
            self._judging.add(pending.root)
            self._in_flight.in_background(self._judge(pending, request, decision))

    async def _judge(
        self, pending: PendingCall, request: ApprovalRequest, decision: ApprovalDecision
    ) -> None:
        """Send an approved call, unless the policy of this dispatcher now denies it."""
        try:
            offer = self._catalog.offers.get(request.message.tool)
            if offer is None:
                log.warning(
                    "approved_call_waits tool=%s: no worker offers it", request.message.tool
                )
                return
            call, turn = pending.as_run, pending_factory.turn_of(request)
            judgement = await self._policy.judge_approved((call, offer), turn, decision.by)
        finally:
            self._judging.discard(pending.root)
        if not pending.is_open or not pending.awaits_approval:
            return
        if judgement.refusal is not None:
            self._in_flight.refuse(pending, judgement.refusal)
        else:
            pending.judged(judgement.call.verdict)
            self._approved(pending, request, decision, is_sent=False)

    def _approved(
        self,
        pending: PendingCall,
        request: ApprovalRequest,
        decision: ApprovalDecision,
        *,
        is_sent: bool,
    ) -> None:
        self._waiting.pop(pending.root, None)
        self._audit_once("approved", request, decision)
        now = time.monotonic()
        start_by = now + self._settings.queue_timeout
        deadline = start_by + pending.message.timeout + pending_factory.ANSWER_MARGIN_SECONDS
        pending.approved(start_by=start_by, deadline=deadline)
        self._in_flight.send_held(pending, is_sent=is_sent)

    def _may_be_sent_already(self, found: ApprovalRecord) -> bool:
        """Whether the server may have lost the information that the call was sent."""
        return bool(self._transport.epoch) and found.epoch != self._transport.epoch

    def _answered(self, pending: PendingCall) -> None:
        """Stop following a waiting call that was answered, and remember its outcome."""
        wait, outcome = self._waiting.pop(pending.root, None), pending.outcome
        if outcome is not None:
            self._ended.note(pending, outcome)
        if wait is None or outcome is None:
            return
        if outcome.code is Code.DENIED and outcome.error == outcomes.NOBODY_APPROVED:
            self._audit_once("expired", wait.request, None)

    def _leave(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._in_flight.in_background(work)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _take_back(self, pending: PendingCall) -> None:
        """End the record of an answered call; repeat until the ledger confirms it."""
        for pause in growing_pauses(_LONGEST_PAUSE_SECONDS):
            is_ended = await self._in_flight.deadlines.end_record(pending)
            if is_ended or time.monotonic() >= pending.start_by:
                return
            await asyncio.sleep(pause)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            try:
                await self._follow_once()
            except ServerError as error:
                log.warning("approvals_not_followed: %s", error)
            except Exception:
                log.exception("approvals_not_followed: a fault of toolpool's own")

    async def _follow_once(self) -> None:
        if self._transport.epoch:
            await self._ended.restore(self._transport.epoch)
        if self._transport.epoch != self._written_in:
            current = self._transport.epoch
            await self._write_again()
            self._written_in = current
        epoch = self._in_flight.recovery.reported_epoch
        if epoch is not None and epoch != self._confirmed_in:
            await self._confirm(epoch)
            self._confirmed_in = epoch
        if time.monotonic() - self._looked_at >= _POLL_SECONDS:
            await self._poll_decisions()
        for key in await self._ledger.approved(now=self._transport.server_time()):
            pending = self._in_flight.root(key)
            if pending is None or pending.awaits_approval:
                await self._go_on_with(key, pending, epoch)

    async def _poll_decisions(self) -> None:
        """Look up decisions that were not reported here, for example while the lease was
        expired.
        """
        self._looked_at = time.monotonic()
        waits = list(self._waiting.values())[:_LOOKED_AT_ONCE]
        states = await self._transport.states([wait.pending.root for wait in waits])
        for (pending, *_), state in zip(waits, states, strict=True):
            if (wait := self._waiting.pop(pending.root, None)) is not None:
                self._waiting[pending.root] = wait  # next time, other calls are checked first
            if state not in ("waiting", None) and pending.is_open:
                self._apply_record(pending, await self._read(pending.root), None)

    async def _go_on_with(self, key: str, pending: PendingCall | None, epoch: str | None) -> None:
        found = await self._read(key, unsent_in=epoch)
        if pending is not None:
            self._apply_record(pending, found, None)
            return
        request = self._request(found)
        if request is None or request.is_foreign:
            return
        if self._offers(request.message.tool):
            self._resumed(request, found)
        else:
            await self._decline(key)

    async def _decline(self, key: str) -> None:
        try:
            await self._ledger.decline(key, now=self._transport.server_time())
        except ServerError as error:
            log.warning("approved_call_not_declined: %s", error)

    async def _write_again(self) -> None:
        """Write the records of waiting calls that the server has lost: no other may run them."""
        for key, (pending, request, _) in list(self._waiting.items()):
            found = await self._read(key)
            if not found.state and pending.is_open:
                body = self._envelope.encode(request)
                found = await self._note(pending, request, body, new_nonce(), "", was_lost=True)
                self._take_changed(key, pending, request, found)

    async def _confirm(self, epoch: str) -> None:
        """Tell the server that the calls waiting here are unsent."""
        for key, (pending, request, _) in list(self._waiting.items()):
            found = await self._read(key, unsent_in=epoch)
            self._take_changed(key, pending, request, found)

    def _take_changed(
        self, key: str, pending: PendingCall, request: ApprovalRequest, found: ApprovalRecord
    ) -> None:
        """Act on the record of a call that waits here, if it waits no longer."""
        if found.answer or found.state != "waiting":
            self._apply_record(pending, found, None)
        elif key in self._waiting:
            self._waiting[key] = _Wait(pending, request, found.epoch)

    async def _read(
        self, key: str, *, unsent_in: str | None = None, attaches: bool = False
    ) -> ApprovalRecord:
        now = self._transport.server_time()
        return await self._ledger.read(
            root_of(key), now=now, unsent_in=unsent_in, attaches=attaches
        )

    def _resumed(self, request: ApprovalRequest, found: ApprovalRecord | None) -> PendingCall:
        """The call of a request that another dispatcher made, waited for or sent from here."""
        known = self._in_flight.root(request.message.key)
        if known is not None:
            return known
        tool = request.message.tool
        spec = self._catalog.spec_of(tool) or ToolSpec(name=tool)
        left = max(0.0, request.expires_at - self._transport.server_time())
        pending = self._in_flight.take_over(request, spec, left=left)
        self._hold(pending, left)
        if found is not None:
            self._apply_record(pending, found, None)
        return pending

    def _hold(self, pending: PendingCall, good: float) -> None:
        """Hold a call for `good` seconds, and answer it even if the server is unreachable."""
        until = time.monotonic() + good
        pending.await_approval(until=until, queue_timeout=self._settings.queue_timeout)
        pending.on_answered = self._answered
        self._in_flight.keep_approval(pending)

    def _request(self, found: ApprovalRecord) -> ApprovalRequest | None:
        return self._reader.trusted_request(found.key, found.request)

    def _tell_end(self, found: ApprovalRecord) -> None:
        request = self._request(found) if found.approval in ("denied", "expired") else None
        if request is None:
            return
        decision = self._decision(found, request) if found.approval == "denied" else None
        if found.approval == "expired" or decision is not None:
            self._audit_once(found.approval, request, decision)

    def _audit_once(
        self, what: str, request: ApprovalRequest, decision: ApprovalDecision | None
    ) -> None:
        """Report a decision to the audit once, although several dispatchers may learn of it."""
        by, reason = (decision.by, decision.reason) if decision is not None else ("", "")

        async def notify() -> None:
            with suppress(ServerError):
                if await self._ledger.claim_notice(request.id):
                    self._tell(what, request, by, reason)

        self._leave(notify())

    def _tell(self, what: str, request: ApprovalRequest, by: str, reason: str) -> None:
        self._observers.audited(
            what,
            tool=request.message.tool,
            call_id=request.message.id,
            session=request.message.session,
            by=by,
            reason=reason,
            approval=request.id,
        )


def _digest(spec: ToolSpec, request: ApprovalRequest) -> str:
    return digest_of(request.message.tool, request.message.arguments, spec.bound_digest)

"""Calls that wait for a person: asked about once, and sent by whichever dispatcher lives then.

What waits is in the ledger, bound to the exact arguments. A dispatcher only remembers for whom it
waits; what one that is gone left behind, another sends when it is approved.
"""

import asyncio
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from toolpool.contract import logs
from toolpool.contract.approval import (
    ApprovalRequest,
    ApprovalState,
    digest_of,
    id_of,
    may_decide,
    read_decision,
    signed_request,
    trusted_request,
)
from toolpool.contract.call import ToolCall
from toolpool.contract.envelope import BackgroundCall
from toolpool.contract.errors import MessageRejected
from toolpool.contract.ledger.approvals import RECORDED, Found
from toolpool.contract.ledger.steps import ServerAway
from toolpool.contract.outcome import Code
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.admission.catalog import Catalog
from toolpool.dispatcher.calls import opening
from toolpool.dispatcher.calls.pending import Pending, Stage
from toolpool.dispatcher.calls.services import Services
from toolpool.dispatcher.calls.traffic import Traffic
from toolpool.dispatcher.policy.notify import Notifier
from toolpool.dispatcher.policy.verdicts import AskApproval
from toolpool.dispatcher.turn_context import TurnContext
from toolpool.dispatcher.words import feedback
from toolpool.dispatcher.words.classify import forgotten, not_queued
from toolpool.dispatcher.words.wording import Wording

log = logs.logger("approvals")

_EVERY_SECONDS = 0.5
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
_LEAVING_SECONDS = 2.0
_REMEMBERED_SURELY = 0.9
_AWAY = (ServerAway, RedisError, OSError, TimeoutError)


class _Wait(NamedTuple):
    """A call that waits here, and the request that the ledger has of it."""

    pending: Pending
    request: ApprovalRequest


class Awaiting:
    """One dispatcher's."""

    def __init__(
        self,
        services: Services,
        traffic: Traffic,
        catalog: Catalog,
        wording: Wording,
        notifier: Notifier,
    ) -> None:
        self._ledger = services.transport.approvals
        self._transport = services.transport
        self._envelope = services.envelope
        self._settings = services.settings
        self._observers = services.observers
        self._traffic = traffic
        self._catalog = catalog
        self._wording = wording
        self._notifier = notifier
        self._waiting: dict[str, _Wait] = {}
        self._sending: dict[str, Pending] = {}
        self._last = ""
        self._epoch: str | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def start(self) -> None:
        """Follow what is decided, on the running loop."""
        self._traffic.in_background(self._follow())

    async def close(self) -> None:
        """Cancel what somebody still waits for here; the rest waits on without this dispatcher."""
        here = [w.pending for w in self._waiting.values() if not w.pending.in_background]
        await self._traffic.leave(here)
        self._is_closed = True
        with suppress(*_AWAY):
            async with asyncio.timeout(_LEAVING_SECONDS):
                await self._note_sent()
        await self.settle()

    async def settle(self) -> None:
        """Wait a little until the ledger has withdrawn the requests of calls that have ended."""
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=_LEAVING_SECONDS)

    def ask(
        self,
        call: ToolCall,
        spec: ToolSpec,
        turn: TurnContext,
        since: float,
        approval: AskApproval,
        by: str,
    ) -> Pending:
        """Have a call wait for a person, or join it if it is open already."""
        pending, is_new = self._traffic.hold(call, spec, turn, since)
        if is_new:
            good = approval.expires or self._settings.approval_expires
            id = id_of(pending.root)
            self._hold(pending, id, good)
            now = self._transport.server_time()
            request = ApprovalRequest(
                id=id,
                tenant=self._settings.tenant,
                message=pending.message,
                digest=digest_of(pending.message.tool, pending.message.arguments),
                asked_at=now,
                expires_at=now + good,
                reason=approval.reason,
                approvers=tuple(approval.approvers),
                by=by,
                provider=pending.provider,
                origin=call.origin,
                long_id=call.long_id,
                id_given=call.id_given,
            )
            self._traffic.in_background(self._ask(pending, request, good))
        return pending

    async def adopt(self, found: BackgroundCall) -> Pending | None:
        """Wait for the call of a handle in place of another dispatcher; None where it was sent."""
        record = await self._ledger.look(found.approval)
        if record.state in ("", ApprovalState.SENT):
            return None
        request = self._read(record)
        return self._resumed(request, record) if request is not None else None

    async def _ask(self, pending: Pending, request: ApprovalRequest, good: float) -> None:
        """Note the request, or learn what became of it; take back what may be noted or not."""
        body = signed_request(self._envelope, request)
        give_up_at = time.monotonic() + self._settings.queue_wait
        pause = _FIRST_PAUSE_SECONDS
        while pending.is_open:
            try:
                if await self._may_have_run(pending):
                    self._traffic.resolve(pending, forgotten())
                    return
                found = await self._ledger.ask(
                    request.id,
                    body,
                    record=pending.root,
                    good=good,
                    kept=self._settings.background_kept,
                )
            except _AWAY as error:
                log.warning("approval_not_asked call=%s: %s", pending.call.id, error)
                if time.monotonic() + pause > give_up_at:
                    self._traffic.refuse(pending, not_queued(Code.QUEUE_UNREACHABLE))
                    self._leave(self._withdraw(request.id, good))
                    return
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                continue
            if not pending.is_open:
                self._leave(self._withdraw(request.id, good))
                return
            is_new = found.state == ApprovalState.WAITING and found.request == body
            request = request if is_new else self._read(found) or request
            self._take(pending, request, found)
            if is_new:
                self._tell("asked", request, request.by, request.reason)
                self._traffic.in_background(self._notifier.asked(request))
            return

    async def _may_have_run(self, pending: Pending) -> bool:
        """Whether it was asked for before, must not run twice, and nothing is known of it."""
        if not pending.again or pending.message.rerunnable:
            return False
        known = (await self._ledger.read(pending.approval)).state
        return not known and await self._transport.states([pending.root]) == [None]

    def _take(self, pending: Pending, request: ApprovalRequest, found: Found) -> None:
        """Do what the ledger says of an approval that a call waits for."""
        if not pending.is_open or not pending.awaits_approval:
            return
        pending.unsent_in(self._transport.epoch or "")
        if found.state == RECORDED:
            self._go_on(pending, may_have_run=pending.again)
        elif found.state == ApprovalState.WITHDRAWN:
            self._traffic.refuse(pending, not_queued(Code.CANCELLED))
        elif found.state == ApprovalState.WAITING:
            pending.asked_about(request.message)
            self._waiting[request.id] = _Wait(pending, request)
        elif found.state == ApprovalState.EXPIRED:
            self._tell_once("expired", request, "", "")
            self._deny(pending, self._wording.words.nobody_approved)
        else:
            self._take_decision(pending, request, found)

    def _take_decision(self, pending: Pending, request: ApprovalRequest, found: Found) -> None:
        try:
            decision = read_decision(self._envelope, found.decision, request)
            if decision.approved is (found.state == ApprovalState.DENIED) or not may_decide(
                decision.by, request
            ):
                raise MessageRejected("foreign", "it is not what the record says")
        except MessageRejected as error:  # by nobody who may: it waits until its time is over
            log.error("decision_rejected approval=%s: %s", request.id, error)
            self._waiting[request.id] = _Wait(pending, request)
            return
        what = "approved" if decision.approved else "denied"
        self._tell_once(what, request, decision.by, decision.reason)
        if not decision.approved:
            said = feedback.denied_by(decision.by, decision.reason, self._wording)
            self._deny(pending, said)
            return
        self._sending[request.id] = pending
        pending.asked_about(request.message)
        # Long after it could be sent first, the ledger may have forgotten that it was.
        is_old = found.seconds > self._settings.remembered * _REMEMBERED_SURELY
        self._go_on(pending, may_have_run=is_old or found.state == ApprovalState.SENT)

    def _go_on(self, pending: Pending, *, may_have_run: bool) -> None:
        self._waiting.pop(pending.approval, None)
        now = time.monotonic()
        start_by = now + self._settings.queue_wait
        deadline = start_by + pending.message.timeout + opening.ANSWER_MARGIN_SECONDS
        pending.approved(start_by=start_by, deadline=deadline, again=may_have_run)
        self._traffic.go_on(pending)

    def _deny(self, pending: Pending, said: str) -> None:
        self._waiting.pop(pending.approval, None)
        self._traffic.refuse(pending, not_queued(Code.DENIED, said))

    def _answered(self, pending: Pending) -> None:
        """A call that waited has its answer: nobody is to be asked about it any more."""
        if self._waiting.pop(pending.approval, None) is None or self._is_closed:
            return
        good = max(0.0, pending.start_by - time.monotonic())
        self._leave(self._withdraw(pending.approval, good))

    def _leave(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._traffic.in_background(work)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _withdraw(self, id: str, good: float) -> None:
        """Until the ledger has it, or nobody could approve it any more."""
        give_up_at = time.monotonic() + good
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                await self._ledger.withdraw(id)
            except _AWAY as error:
                log.warning("approval_not_withdrawn id=%s: %s", id, error)
                if time.monotonic() > give_up_at:
                    return
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            else:
                return

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            try:
                await self._look()
            except _AWAY as error:
                self._last = ""  # what it had read and not looked at would be lost
                log.warning("approvals_not_followed: %s", error)
            except Exception:
                self._last = ""
                log.exception("approvals_not_followed: a fault of toolpool's own")

    async def _look(self) -> None:
        epoch = self._transport.epoch
        if epoch != self._epoch:  # what a server lost is noted once more, and all of it read again
            is_first, self._epoch, self._last = self._epoch is None, epoch, ""
            if not is_first:
                await self._ask_again()
        is_new, followed = not self._last, await self._ledger.follow(self._last)
        self._last = followed.last
        decided = list(self._waiting) if is_new else [id for id, _ in followed.decided]
        for id in decided:
            if id in self._waiting:
                await self._look_at(id)
        for id in followed.granted:
            if id not in self._sending:
                await self._look_at(id)
        now = time.monotonic()
        for id, (pending, _) in list(self._waiting.items()):
            if pending.start_by <= now:
                await self._look_at(id)
        await self._note_sent()

    async def _note_sent(self) -> None:
        for id, pending in list(self._sending.items()):
            if not pending.is_open or pending.stage not in _UNSENT:
                await self._ledger.sent(id)
                self._sending.pop(id, None)

    async def _look_at(self, id: str) -> None:
        found = await self._ledger.look(id)
        wait = self._waiting.get(id)
        if wait is not None:
            if not found.state and wait.pending.start_by <= time.monotonic():
                found = found._replace(state=ApprovalState.EXPIRED)  # the server has lost it
            self._take(wait.pending, wait.request, found)
        elif (request := self._read(found)) is not None:
            if request.is_foreign:
                await self._ledger.sent(id)
            else:
                self._resumed(request, found)

    async def _ask_again(self) -> None:
        """The server may have lost what waits here."""
        kept = self._settings.background_kept
        for id, (pending, request) in list(self._waiting.items()):
            found = await self._ledger.look(id)
            if not found.state and pending.is_open:
                good = max(0.001, pending.start_by - time.monotonic())
                body = signed_request(self._envelope, request)
                await self._ledger.ask(id, body, record=pending.root, good=good, kept=kept)

    def _resumed(self, request: ApprovalRequest, found: Found) -> Pending:
        """The call of a request that another dispatcher noted, waited for or sent from here."""
        known = self._traffic.root(request.message.key)
        if known is not None:
            return known
        tool = request.message.tool
        spec = self._catalog.spec_of(tool) or ToolSpec(name=tool)
        left = max(0.0, request.expires_at - self._transport.server_time())
        pending = self._traffic.take_over(request, spec, left=left)
        self._hold(pending, request.id, left)
        self._take(pending, request, found)
        return pending

    def _hold(self, pending: Pending, id: str, good: float) -> None:
        """Have a call wait for so many seconds, and answer it although the server is away."""
        until = time.monotonic() + good
        pending.awaits(id, until=until, queue_wait=self._settings.queue_wait)
        pending.when_answered = self._answered
        self._traffic.keep_deadline(pending)

    def _read(self, found: Found) -> ApprovalRequest | None:
        return trusted_request(
            self._envelope, found.request, id=found.id, tenant=self._settings.tenant
        )

    def _tell_once(self, what: str, request: ApprovalRequest, by: str, reason: str) -> None:
        """Audit a decision, which several dispatchers may learn of."""

        async def tell() -> None:
            with suppress(*_AWAY):
                if await self._ledger.is_untold(request.id):
                    self._tell(what, request, by, reason)

        self._leave(tell())

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


_UNSENT = frozenset({Stage.NEW, Stage.WAITING, Stage.PUBLISHING})

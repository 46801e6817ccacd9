"""Publishes a batch until the server confirms it, and applies the answer for each call."""

import time
from typing import Protocol

from toolpool.contract import logs
from toolpool.contract.envelope import Batch
from toolpool.contract.errors import CommandRejected, ServerUnavailable
from toolpool.contract.ledger.answers import CallState, LedgerAnswer
from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.contract.outcome import Code, Executed, failure
from toolpool.dispatcher.calls.pending import PendingCall, Stage
from toolpool.dispatcher.calls.services import Calls, Services
from toolpool.dispatcher.outcomes import forgotten, unreachable

log = logs.logger("publishing")

_NOT_TAKEN = (CallState.WAITING, CallState.APPROVED, CallState.LAPSED, CallState.MOVED)
"""The answers for an approved call whose message the server did not accept."""


class Queue(Protocol):
    """The queue that the calls of a batch came from."""

    name: str

    def started(self, pending: PendingCall) -> None:
        """Record that a worker has claimed a call."""
        ...

    def orphaned(self, pending: PendingCall) -> None:
        """Record that no worker will start a call."""
        ...


class Publisher:
    """Publishes the batches of one queue."""

    def __init__(self, services: Services, calls: Calls, queue: Queue) -> None:
        self._transport = services.transport
        self._envelope = services.envelope
        self._settings = services.settings
        self._observers = services.observers
        self._calls = calls
        self._queue = queue

    async def publish(
        self, taken: list[PendingCall], *, sent: bool = False, epoch: str | None = None
    ) -> bool:
        """Publish until the server confirms.

        Calls whose queue wait ends first are answered. `sent`: the server may have accepted an
        earlier message, in `epoch`. Returns whether a message was sent.
        """
        epoch = epoch if sent else self._transport.epoch  # read before the first message is sent
        # the same for every attempt, so that the ledger publishes the calls it has recorded
        nonce = new_nonce()
        while taken := [pending for pending in taken if pending.outcome is None]:
            try:
                await self._publish_once(taken, nonce, epoch if sent else None)
                return True
            except ServerUnavailable as away:
                sent = sent or away.sent
                self._give_up_overdue(taken, sent=sent)
            except Exception as error:
                log.exception("publish_failed queue=%s calls=%d", self._queue.name, len(taken))
                if len(taken) > 1:  # one call may be at fault for all
                    went = [await self.publish([one], sent=sent, epoch=epoch) for one in taken]
                    return any(went)
                if isinstance(error, CommandRejected):
                    outcome = unreachable(Executed.UNKNOWN, is_full=False)
                else:
                    reason = f"publishing failed ({type(error).__name__})"
                    outcome = failure(Code.INTERNAL, reason, Executed.UNKNOWN)
                self._calls.resolve(taken[0], outcome)
                break  # it may reopen as a retry, submitted later
        return False

    def _give_up_overdue(self, taken: list[PendingCall], *, sent: bool) -> None:
        now = time.monotonic()
        for pending in taken:
            if pending.start_by <= now:
                may_have_run = sent or pending.may_be_known
                executed = Executed.UNKNOWN if may_have_run else Executed.NO
                is_full = self._transport.is_full
                self._calls.resolve(pending, unreachable(executed, is_full=is_full))

    async def _publish_once(self, taken: list[PendingCall], nonce: str, epoch: str | None) -> None:
        """Publish once.

        `epoch` is the server's epoch from before any message that it may have accepted.
        """
        now, server_now = time.monotonic(), self._transport.server_time()
        batch = Batch(
            id=new_nonce(),
            reply=self._transport.reply,
            calls=tuple([pending.message for pending in taken]),
            tenant=self._settings.tenant,
            sent_at=server_now,
            ends_at=server_now + max([pending.start_by for pending in taken]) - now,
        )
        current, answers = await self._transport.publish(
            [pending.opening(now, server_now) for pending in taken],
            nonce=nonce,
            queue=self._queue.name,
            message=self._envelope.encode_batch(batch),
            give_up_at=min([pending.start_by for pending in taken]),
            tried_in=epoch,
        )
        confirmed_at = time.monotonic()
        self._observers.notify("sent", self._queue.name, len(taken))
        abandoned: list[PendingCall] = []
        for pending, message, answer in zip(taken, batch.calls, answers, strict=True):
            if pending.outcome is not None:
                abandoned += [pending] if answer.state is CallState.NEW else []
            elif pending.message.key == message.key and pending.message.attempt == message.attempt:
                # else it is another attempt by now
                if answer.state not in _NOT_TAKEN or pending.message.approval is None:
                    pending.published(current, now, confirmed_at=confirmed_at)
                elif epoch is not None:
                    pending.published(epoch, now)
                pending.was_held = answer.state is CallState.MOVED and epoch is None
                self._apply_answer(pending, answer)
        if abandoned:
            self._calls.abandoned(abandoned)

    def _apply_answer(self, pending: PendingCall, answer: LedgerAnswer) -> None:
        if pending.stage is Stage.PUBLISHING:
            pending.move_to(Stage.QUEUED)
            if self._observers.listeners["queued"]:
                self._observers.call("queued", pending)
        state = answer.state
        if state is CallState.NEW and not pending.is_attached:
            return  # the usual case
        pending.is_attached = state is CallState.RUNNING or state is CallState.ATTACHED
        match state:
            case CallState.NEW | CallState.ATTACHED:
                pass
            case CallState.RUNNING:
                pending.worker = answer.worker
                self._queue.started(pending)
            case CallState.MOVED if pending.message.approval is None:
                self._queue.orphaned(pending)
            case CallState.RAN:
                pending.is_new_outcome = False
                self._calls.resolve(pending, forgotten())
            case CallState.WAITING | CallState.APPROVED | CallState.LAPSED | CallState.MOVED:
                self._calls.approval_required(pending)
            case _:
                self._calls.known(pending, answer.outcome)

"""Reads the reply stream and applies each reply to its call."""

import asyncio
from collections.abc import Callable

from toolpool.contract import logs
from toolpool.contract.envelope import (
    Decided,
    Progress,
    Question,
    Released,
    RunsEnded,
    Settled,
    Started,
    Unclaimed,
)
from toolpool.contract.errors import MessageRejected
from toolpool.contract.outcome import Outcome, is_temporary_refusal
from toolpool.contract.redis_keys import root_of
from toolpool.dispatcher.calls.services import Calls, Services
from toolpool.dispatcher.outcomes import with_time_left

log = logs.logger("reply_reader")

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 1.0


class ReplyReader:
    """Runs until cancelled; a fault is logged and reading goes on.

    `on_interruption` is called when reading fails, and once more when it works again.
    """

    def __init__(
        self, services: Services, calls: Calls, *, on_interruption: Callable[[], None]
    ) -> None:
        self._transport = services.transport
        self._envelope = services.envelope
        self._observers = services.observers
        self._calls = calls
        self._on_interruption = on_interruption

    async def run(self) -> None:
        """Read replies until cancelled."""
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                replies = await self._transport.receive()
            except Exception as error:  # noqa: BLE001 - reading goes on, whatever it was
                log.warning("replies_unread: %s", str(error) or type(error).__name__)
                self._on_interruption()
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
                continue
            if pause > _FIRST_PAUSE_SECONDS:
                self._on_interruption()
                pause = _FIRST_PAUSE_SECONDS
            for reply in replies:
                try:
                    self.take(reply, is_record=False)
                except Exception:
                    log.exception("reply_not_taken")  # other replies must not wait forever

    def take(self, data: bytes, *, is_record: bool = True) -> None:
        """Apply one signed reply. A reply for an answered or unknown call is ignored.

        `is_record`: the reply is the outcome that the call's record has now.
        """
        try:
            reply = self._envelope.decode_reply(data)
        except MessageRejected as error:
            log.warning("reply_rejected reason=%s: %s", error.reason, error)
            return
        match reply:
            case Settled():
                outcome = self._with_time_left(reply)
                # it may be the refusal of an earlier attempt
                if not is_record and not outcome.ok and is_temporary_refusal(outcome):
                    return
                pending = self._calls.find(reply.key)
                if pending is not None and pending.outcome is None:
                    if not outcome.ok:
                        pending.is_recorded = True
                    self._calls.resolve(pending, outcome)
                else:
                    self._observers.notify("late_outcome", root_of(reply.key), outcome.worker)
            case Started():
                for key in reply.keys:
                    if (pending := self._calls.find(key)) is not None:
                        self._calls.started(pending, reply.worker)
            case RunsEnded():
                self._calls.ended(reply.keys)
            case Question():
                self._calls.asked(reply)
            case _:
                self._apply(reply)

    def _with_time_left(self, reply: Settled) -> Outcome:
        """The outcome. A refusal that was recorded before holds only for the rest of its time."""
        if not reply.at or not is_temporary_refusal(reply.outcome):
            return reply.outcome
        return with_time_left(reply.outcome, self._transport.server_time() - reply.at)

    def _apply(self, reply: Released | Unclaimed | Progress | Decided) -> None:
        pending = self._calls.find(reply.key)
        if pending is None:
            return
        if isinstance(reply, Progress):
            self._observers.progressed(pending, reply)
        elif isinstance(reply, Decided):
            self._calls.decided(pending, reply.decision)
        elif isinstance(reply, Unclaimed):
            if pending.message.attempt == reply.attempt:
                if reply.limits:
                    self._calls.limited(pending, reply.limits)
                else:
                    self._calls.unclaimed(pending, reply.reason)
        elif pending.message.attempt <= reply.attempt:
            self._calls.released(pending)

"""Reads the reply stream and hands each reply to the call it belongs to."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from toolpool.contract.envelope import Ended, Envelope, Passed, Progress, Released, Settled, Started
from toolpool.contract.errors import MessageRejected
from toolpool.contract.outcome import Outcome
from toolpool.dispatcher.calls.pending import Pending, root_of
from toolpool.dispatcher.observe import Observers
from toolpool.dispatcher.transports.base import Transport

log = logging.getLogger("toolpool.collect")

_LONGEST_PAUSE_SECONDS = 1.0


class Collector:
    """Runs until cancelled; a fault is logged and the reading goes on."""

    def __init__(
        self,
        *,
        transport: Transport,
        envelope: Envelope,
        find: Callable[[str], Pending | None],
        resolve: Callable[[Pending, Outcome], None],
        started: Callable[[Pending], None],
        released: Callable[[Pending], None],
        passed: Callable[[Pending], None],
        progressed: Callable[[Pending, Progress], None],
        ended: Callable[[Sequence[str]], None],
        observers: Observers,
    ) -> None:
        self._transport = transport
        self._envelope = envelope
        self._find = find
        self._resolve = resolve
        self._started = started
        self._released = released
        self._passed = passed
        self._progressed = progressed
        self._ended = ended
        self._observers = observers

    async def run(self) -> None:
        """Read replies for ever."""
        pause = 0.05
        while True:
            try:
                replies = await self._transport.receive()
                pause = 0.05
            except Exception as error:  # noqa: BLE001 - reading goes on, whatever it was
                log.warning("replies_unread: %s", error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
                continue
            for reply in replies:
                try:
                    self.take(reply)
                except Exception:
                    log.exception("reply_not_taken")  # the others are not to wait for ever

    def take(self, data: bytes) -> None:
        """One signed reply; one for a call that is answered, or not ours, is passed over."""
        try:
            reply = self._envelope.decode_reply(data)
        except MessageRejected as error:
            log.warning("reply_rejected reason=%s: %s", error.reason, error)
            return
        match reply:
            case Settled():
                self._take_outcome(reply)
            case Started():
                for key in reply.keys:
                    if (pending := self._find(key)) is not None:
                        pending.worker = reply.worker
                        self._started(pending)
            case Ended():
                self._ended(reply.keys)
            case _:
                self._take_word_of_one(reply)

    def _take_outcome(self, reply: Settled) -> None:
        pending = self._find(reply.key)
        if pending is not None and pending.is_open:
            self._resolve(pending, reply.outcome)
        else:
            self._observers.tell("late", root_of(reply.key), reply.outcome.worker)

    def _take_word_of_one(self, reply: Released | Passed | Progress) -> None:
        pending = self._find(reply.key)
        if pending is None:
            return
        if isinstance(reply, Progress):
            self._progressed(pending, reply)
        elif isinstance(reply, Passed):
            if pending.message.attempt == reply.attempt:
                self._passed(pending)
        elif pending.message.attempt <= reply.attempt:
            self._released(pending)

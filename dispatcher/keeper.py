"""Keeps every deadline from this process's own clock, whatever Redis does.

One timer a call: at the end of the queue wait a call that nobody started is fenced; from 100 ms
before the deadline the ledger is asked to expire it; at the deadline it is answered.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from contract.envelope import Cancel, Envelope, Settled
from contract.ledger import MISSING, RUNNING, Closing
from contract.outcome import Code, Executed, Outcome, failure
from contract.steps import ServerAway, new_nonce
from dispatcher.classify import not_queued, unconfirmed
from dispatcher.pending import Pending, Stage
from dispatcher.transport import Transport

log = logging.getLogger("toolpool.keeper")

_AHEAD_SECONDS = 0.1
_GROUP = 64
_FENCE_PATIENCE_SECONDS = 60.0

Resolve = Callable[[Pending, Outcome], None]


class Keeper:
    """Expires and cancels. `settled` takes a signed outcome from the ledger."""

    def __init__(
        self,
        *,
        transport: Transport,
        envelope: Envelope,
        resolve: Resolve,
        settled: Callable[[bytes], None],
        started: Callable[[Pending], None],
    ) -> None:
        self._transport = transport
        self._envelope = envelope
        self._resolve = resolve
        self._settled = settled
        self._started = started
        self._due: dict[bool, list[Pending]] = {True: [], False: []}
        self._closing: set[asyncio.Task[None]] = set()

    def watch(self, pending: Pending) -> None:
        """Keep a call's times from now on."""
        self._at(pending.start_by, self._queue_wait_over, pending)

    async def cancel(self, calls: Sequence[Pending]) -> None:
        """End calls that nobody wants any more; each is answered `aborted.cancelled` (R34)."""
        waiting = [pending for pending in calls if pending.stage in (Stage.NEW, Stage.WAITING)]
        for pending in waiting:
            if pending.is_open:
                self._resolve(pending, not_queued(Code.CANCELLED))
        sent = [pending for pending in calls if pending.is_open]
        for start in range(0, len(sent), _GROUP):
            await self._close(
                sent[start : start + _GROUP], unstarted_only=False, code=Code.CANCELLED
            )

    def close(self) -> None:
        """Stop every background step."""
        for task in self._closing:
            task.cancel()

    def _at(self, when: float, call: Callable[[Pending], None], pending: Pending) -> None:
        loop = asyncio.get_running_loop()
        delay = when - time.monotonic()
        pending.timer = loop.call_later(max(0.0, delay), call, pending)

    def _queue_wait_over(self, pending: Pending) -> None:
        if not pending.is_open:
            return
        if pending.stage is Stage.WAITING:
            self._resolve(pending, not_queued(Code.EXPIRED))
            return
        self._at(pending.deadline - _AHEAD_SECONDS, self._nearly_over, pending)
        if pending.stage is Stage.QUEUED:
            self._add_due(pending, unstarted_only=True)

    def _nearly_over(self, pending: Pending) -> None:
        if pending.is_open:
            self._at(pending.deadline, self._over, pending)
            self._add_due(pending, unstarted_only=False)

    def _over(self, pending: Pending) -> None:
        if pending.is_open:
            self._resolve(
                pending,
                unconfirmed(
                    started=pending.stage is Stage.RUNNING,
                    sent=pending.stage is not Stage.WAITING,
                ),
            )

    def _add_due(self, pending: Pending, *, unstarted_only: bool) -> None:
        """Calls that are due in the same turn of the loop are closed together."""
        due = self._due[unstarted_only]
        due.append(pending)
        if len(due) == 1:
            asyncio.get_running_loop().call_soon(self._close_due, unstarted_only)

    def _close_due(self, unstarted_only: bool) -> None:
        due, self._due[unstarted_only] = self._due[unstarted_only], []
        for start in range(0, len(due), _GROUP):
            task = asyncio.ensure_future(
                self._close(
                    due[start : start + _GROUP], unstarted_only=unstarted_only, code=Code.EXPIRED
                )
            )
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _close(
        self, calls: Sequence[Pending], *, unstarted_only: bool, code: Code
    ) -> None:
        closings = [self._closing_of(pending, code) for pending in calls]
        try:
            answers = await self._transport.close_calls(
                closings,
                unstarted_only=unstarted_only,
                give_up_at=time.monotonic() + _FENCE_PATIENCE_SECONDS,
            )
        except ServerAway:
            log.warning("calls_not_fenced calls=%d: the server is away", len(calls))
            return
        except Exception:
            log.exception("close_failed calls=%d", len(calls))
            return
        for pending, answer in zip(calls, answers, strict=True):
            if answer == RUNNING:
                self._started(pending)
            elif answer == MISSING:
                if pending.is_open and not unstarted_only:
                    self._resolve(pending, _unknown(code))
            else:
                self._settled(answer)

    def _closing_of(self, pending: Pending, code: Code) -> Closing:
        claimed = Code.CANCELLED if code is Code.CANCELLED else Code.TIMEOUT
        return Closing(
            key=pending.key,
            nonce=new_nonce(),
            epoch=pending.epoch,
            keep=pending.keep,
            unclaimed=self._signed(pending, failure(code, "", Executed.NO)),
            claimed=self._signed(pending, failure(claimed, "", Executed.UNKNOWN)),
            doubtful=self._signed(pending, _unknown(code)),
            cancel=self._envelope.encode_cancel(Cancel(key=pending.key)),
        )

    def _signed(self, pending: Pending, outcome: Outcome) -> bytes:
        return self._envelope.encode_reply(Settled(key=pending.key, outcome=outcome))


def _unknown(code: Code) -> Outcome:
    return failure(code, "", Executed.UNKNOWN)

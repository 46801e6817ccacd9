"""Answers calls that are refused, once the ledger has recorded that no worker may run them.

Any dispatcher may create the record of a call with a stable key. An `executed: no` that was only
read becomes false when another dispatcher sends the call, so the record is settled first. Later
requests for the call get the same answer until the `retry_after` time has passed.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from toolpool.contract import logs
from toolpool.contract.envelope import Settled
from toolpool.contract.errors import MessageRejected
from toolpool.contract.ledger.answers import CallState, LedgerAnswer
from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.contract.ledger.protocols import (
    CloseReason,
    Closing,
)
from toolpool.contract.outcome import Executed, Outcome
from toolpool.dispatcher.calls.pending import CLOCK_MARGIN_SECONDS, PendingCall
from toolpool.dispatcher.calls.services import Calls, Services
from toolpool.dispatcher.classifier import is_final
from toolpool.dispatcher.outcomes import with_time_left

log = logs.logger("refusals")

_GROUP = 256
_ROUNDED_SECONDS = 0.1
"""The precision of a result's `retry_after`, in seconds."""
_WRITE_SECONDS = 2.0
_ASKED_TOGETHER_SECONDS = 10.0
"""How many seconds after its queue wait a refused call may still be dispatched elsewhere."""
LEAST_KEPT_SECONDS = 40.0
"""A refusal is kept for at least this many seconds."""
_LONGEST_KEPT_SECONDS = 3_600.0
"""The longest time for which a refusal is kept because of its `retry_after`."""

Refused = tuple[PendingCall, Outcome]


class RecordedRejection(NamedTuple):
    """What the ledger knows of a rejected call.

    `executed` is NO if it did not run and no longer can; None if its record could not be written.
    `is_new`: it was neither dispatched nor rejected before.
    """

    executed: Executed | None
    is_new: bool = False


class Refusals:
    """Writes refusals. Refusals of the same iteration of the event loop are written together."""

    def __init__(self, services: Services, calls: Calls) -> None:
        self._transport = services.transport
        self._envelope = services.envelope
        wait = services.settings.queue_timeout + _ASKED_TOGETHER_SECONDS
        self._keep = max(wait, LEAST_KEPT_SECONDS)
        self._result_ttl = services.settings.result_ttl
        self._calls = calls
        self._gathered: list[Refused] = []

    def refuse(self, pending: PendingCall, outcome: Outcome) -> None:
        """Answer a refused call with the outcome in its ledger record; see `Calls.refuse`."""
        if pending.is_unsent and not pending.may_be_known:  # no other dispatcher can know its key
            self._calls.resolve(pending, outcome)
            return
        self._gathered.append((pending, outcome))
        if len(self._gathered) == 1:
            asyncio.get_running_loop().call_soon(self._write_gathered)

    def _write_gathered(self) -> None:
        gathered, self._gathered = self._gathered, []
        unsent = [each for each in gathered if each[0].is_unsent]
        sent = [each for each in gathered if not each[0].is_unsent]
        for calls, end in ((unsent, CloseReason.REFUSED), (sent, CloseReason.DENIED)):
            for start in range(0, len(calls), _GROUP):
                self._calls.in_background(self._write(calls[start : start + _GROUP], end))

    async def reject(
        self, rejected: Sequence[tuple[str, Outcome]], epoch: str, *, again: bool
    ) -> list[RecordedRejection]:
        """Settle the records of calls that were never accepted. Each is a key and its outcome.

        `again`: they may have been dispatched before, so that a missing record proves nothing.
        """
        closings = [self._rejection(key, outcome, epoch, again=again) for key, outcome in rejected]
        answers: list[LedgerAnswer | None] = []
        for start in range(0, len(closings), _GROUP):
            answers += await self._close(closings[start : start + _GROUP], CloseReason.REJECTED)
            if None in answers:  # the server is unreachable: the other calls would wait as long
                break
        answers += [None] * (len(closings) - len(answers))
        return list(map(self._rejected, closings, answers))

    def _rejection(self, key: str, outcome: Outcome, epoch: str, *, again: bool) -> Closing:
        at = self._transport.server_time()  # no other rejection of the call has the same bytes
        encode = self._envelope.encode_reply
        doubtful = encode(Settled(key=key, outcome=_unsure(outcome), at=at))
        return Closing(
            key=key,
            nonce=new_nonce(),
            epoch=epoch,
            keep=self._result_ttl,
            unclaimed=encode(Settled(key=key, outcome=outcome, at=at)),
            claimed=doubtful,
            doubtful=doubtful,
            unsent=not again,
            leaves_mark=False,
        )

    def _rejected(self, closing: Closing, answer: LedgerAnswer | None) -> RecordedRejection:
        if answer is None:
            return RecordedRejection(None, is_new=True)
        if not answer.outcome:
            return RecordedRejection(Executed.UNKNOWN)
        if answer.outcome == closing.unclaimed:
            return RecordedRejection(Executed.NO, is_new=True)
        try:
            settled = self._envelope.decode_settled(closing.key, answer.outcome)
        except MessageRejected as error:
            log.warning("outcome_rejected reason=%s: %s", error.reason, error)
            return RecordedRejection(Executed.UNKNOWN)
        did_not_run = (
            settled is not None
            and settled.outcome.executed is Executed.NO
            and is_final(settled.outcome)
        )
        return RecordedRejection(Executed.NO if did_not_run else Executed.UNKNOWN)

    async def _close(
        self, closings: Sequence[Closing], end: CloseReason
    ) -> Sequence[LedgerAnswer | None]:
        """The ledger's answers; None for each if they could not be written."""
        try:
            async with asyncio.timeout(_WRITE_SECONDS):
                return await self._transport.close_calls(
                    closings,
                    end=end,
                    give_up_at=time.monotonic() + _WRITE_SECONDS,
                )
        except Exception as error:  # noqa: BLE001 - whatever it was, nobody can know
            log.warning("refusals_not_written calls=%d: %s", len(closings), error)
            return [None] * len(closings)

    async def _write(self, refused: Sequence[Refused], end: CloseReason) -> None:
        closings = [self._closing(pending, outcome) for pending, outcome in refused]
        asked_at = time.monotonic()
        answers = await self._close(closings, end)
        seconds = time.monotonic() - asked_at
        refused = [(pending, with_time_left(outcome, seconds)) for pending, outcome in refused]
        for (pending, outcome), closing, answer in zip(refused, closings, answers, strict=True):
            if not pending.is_open:
                continue
            if answer is None:
                self._calls.resolve(pending, _unsure(outcome))
            else:
                self._apply_answer(pending, outcome, closing, answer, end)

    def _apply_answer(
        self,
        pending: PendingCall,
        outcome: Outcome,
        closing: Closing,
        answer: LedgerAnswer,
        end: CloseReason,
    ) -> None:
        match answer.state:
            case CallState.WAITING | CallState.APPROVED:  # another dispatcher waits for it too
                self._calls.approval_required(pending)
            case CallState.RUNNING if end is CloseReason.DENIED:
                self._calls.started(pending, answer.worker)
            case CallState.ATTACHED | CallState.RUNNING:
                pending.is_attached = True
                self._calls.join(pending)
            case _ if answer.outcome == closing.unclaimed:
                self._calls.resolve(pending, outcome)
            case _ if answer.outcome == closing.doubtful:
                self._calls.resolve(pending, _unsure(outcome))
            case _:
                self._calls.known(pending, answer.outcome)

    def _closing(self, pending: PendingCall, outcome: Outcome) -> Closing:
        at = self._transport.server_time()
        encode = self._envelope.encode_reply
        doubtful = encode(Settled(key=pending.key, outcome=_unsure(outcome), at=at))
        keep = self._keep if pending.is_unsent and not pending.in_background else pending.keep
        return Closing(
            key=pending.key,
            nonce=new_nonce(),
            epoch=pending.epoch or pending.accepted_in,
            keep=max(keep, min(outcome.retry_after or 0.0, _LONGEST_KEPT_SECONDS)),
            unclaimed=encode(Settled(key=pending.key, outcome=outcome, at=at)),
            claimed=doubtful,
            doubtful=doubtful,
            unsent=pending.certainly_not_run,
            anew_after=_anew_after(outcome),
            leaves_mark=pending.leaves_mark,
        )


def _anew_after(outcome: Outcome) -> float | None:
    """Seconds until the call may be dispatched again: `retry_after` less clock error and
    rounding.
    """
    if outcome.retry_after is None:
        return None
    return max(0.0, outcome.retry_after - CLOCK_MARGIN_SECONDS - _ROUNDED_SECONDS)


def _unsure(outcome: Outcome) -> Outcome:
    return msgspec.structs.replace(outcome, executed=Executed.UNKNOWN)

"""Remembers the outcomes of recent calls, and writes them again if the server has lost them.

Without this, after a failover to a replica that lagged, a call that was cancelled or denied here
could run elsewhere, and a call that ran could be denied and reported as not run.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.contract.ledger.protocols import CloseReason, Closing
from toolpool.contract.outcome import Executed, Outcome
from toolpool.dispatcher.calls.pending import PendingCall
from toolpool.dispatcher.calls.services import Calls, Services
from toolpool.dispatcher.outcomes import forgotten

_REMEMBERED_AT_MOST = 1024
_BODY_BYTES = 16 * 1024
"""For a larger result, only the fact that the call may have run is remembered."""
_RESTORED_AT_ONCE = 32
_PATIENCE_SECONDS = 5.0
_NOTICED_SECONDS = 3.0
"""How many seconds dispatchers need at most to notice and restore what the server has lost."""


class _End(NamedTuple):
    """The outcome of a call, and until when it is kept (monotonic clock).

    `is_final`: the call's record has this outcome, or had it before it was lost. Otherwise
    it is only known that the call may have run.
    """

    key: str
    body: bytes
    is_final: bool
    until: float


class EndedCalls:
    """The outcomes of calls that must not run any more, and of calls that needed approval."""

    def __init__(self, services: Services, calls: Calls) -> None:
        self._transport = services.transport
        self._envelope = services.envelope
        self._settings = services.settings
        self._calls = calls
        self._ends: OrderedDict[str, _End] = OrderedDict()
        """The outcomes by root."""
        self._unrestored: dict[str, _End] = {}
        """The outcomes, by root, that the server may have lost and that were not restored yet."""
        self._epoch = ""
        """The server's epoch, as last noticed."""
        self._epoch_since = 0.0
        self._lost_until = 0.0
        """Until when other dispatchers write again what the server has lost."""
        self.on_new_epoch: Callable[[], None] = lambda: None
        """Called when the server may have lost data; what else is written again."""
        self._sent_restored_in = ""
        """The last epoch for which the calls sent before it were added to `_unrestored`."""

    def note(self, pending: PendingCall, outcome: Outcome) -> None:
        """Remember the outcome of a call, if it applies to all of the call's callers."""
        is_known = pending.is_recorded or bool(pending.epoch)
        is_known = is_known or outcome.executed is not Executed.UNKNOWN
        if not is_known or outcome.retry_after is not None:
            return
        epoch = self._transport.epoch or ""
        for key in {pending.root, pending.key}:  # of a retry, the record of the call too
            end = self._ends[key] = self._end_of(key, pending, outcome)
            if epoch != self._sent_restored_in and pending.was_sent_before(epoch):
                self._unrestored[key] = end
        while len(self._ends) > _REMEMBERED_AT_MOST:
            self._ends.popitem(last=False)

    def end_as_forgotten(self, pending: PendingCall) -> None:
        """End the record of a call that needs approval and may have run before a loss of data."""
        self._unrestored[pending.root] = self._end_of(pending.root, pending, forgotten())

    def sent_before_loss(self, pending: PendingCall) -> None:
        """End the record of a call that was sent before the server lost its record."""
        if self._sent_restored_in == self._transport.epoch:  # else it is restored with the others
            self.end_as_forgotten(pending)

    def interrupted(self) -> None:
        """Record that the server may have been restarted, with older data.

        Its epoch does not show that before the next survey.
        """
        self._lost_until = max(self._lost_until, time.monotonic() + _NOTICED_SECONDS)

    def pause_after_loss(self, epoch: str) -> float:
        """How many seconds an approved call has to wait, as it may have ended before a loss of
        data. `epoch` is the epoch of its record. Other dispatchers that know its outcome write it
        in this time.
        """
        if self._epoch and epoch != self._epoch:
            return _NOTICED_SECONDS
        return max(0.0, self._lost_until - time.monotonic())

    async def restore(self, epoch: str) -> None:
        """Write what the server may have lost: first the outcomes, later which calls had been sent.

        In between, workers report the calls that they run. Raises `ServerError`.
        """
        now = time.monotonic()
        if epoch != self._epoch:
            self._unrestored.update(self._ends)
            if self._epoch:
                self._lost_until = now + _NOTICED_SECONDS
                self.on_new_epoch()
            self._epoch, self._epoch_since = epoch, now
        # Workers may be one beat late; after a whole lease other dispatchers may send these calls.
        is_time = now - self._epoch_since >= self._settings.lease_ttl * 0.75
        if is_time and epoch != self._sent_restored_in:
            for pending in self._calls.all_open():
                if pending.was_sent_before(epoch):
                    self.end_as_forgotten(pending)
            self._sent_restored_in = epoch
        # When its outcome is no longer kept, a call may be dispatched as a new one.
        self._unrestored = {key: end for key, end in self._unrestored.items() if end.until > now}
        while ends := list(self._unrestored.values())[:_RESTORED_AT_ONCE]:
            answers = await self._transport.close_calls(
                [_closing(end) for end in ends],
                end=CloseReason.RESTORED,
                give_up_at=time.monotonic() + _PATIENCE_SECONDS,
            )
            for end, answer in zip(ends, answers, strict=True):
                if self._unrestored.get(end.key) is end:
                    del self._unrestored[end.key]
                if answer.outcome and self._calls.find(end.key) is not None:
                    self._calls.settled(answer.outcome)

    def _end_of(self, key: str, pending: PendingCall, outcome: Outcome) -> _End:
        """The outcome in encoded form, because the host gets its data and may change them."""
        kept = pending.keep
        if outcome.executed is not Executed.NO:
            kept = max(kept, self._settings.dedup_ttl)
        until = time.monotonic() + kept
        if pending.is_recorded or outcome.executed is not Executed.UNKNOWN:
            with suppress(TypeError, ValueError, RecursionError):
                body = self._envelope.encode_settled(key, outcome)
                if len(body) <= _BODY_BYTES:
                    return _End(key, body, True, until)
        return _End(key, self._envelope.encode_settled(key, forgotten()), False, until)


def _closing(end: _End) -> Closing:
    return Closing(
        key=end.key,
        nonce=new_nonce(),
        epoch="",
        keep=max(1.0, end.until - time.monotonic()),
        unclaimed=end.body,
        claimed=b"",
        doubtful=end.body,
        unsent=end.is_final,
    )

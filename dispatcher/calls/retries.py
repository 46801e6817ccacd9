"""Decides when the pool retries a failed call by itself, for tools that declare `retries=`."""

import asyncio
import random
import time
from collections.abc import Callable

from toolpool.contract.credentials import missing_secret_in
from toolpool.contract.outcome import Code, Outcome
from toolpool.dispatcher.calls.deadlines import Deadlines
from toolpool.dispatcher.calls.pending import PendingCall
from toolpool.dispatcher.calls.pending_factory import ANSWER_MARGIN_SECONDS
from toolpool.dispatcher.calls.pump import Pump
from toolpool.dispatcher.calls.services import Services
from toolpool.dispatcher.classifier import NEVER_RETRIED, is_retryable

_LONGEST_PAUSE_SECONDS = 10.0


def pause_before(
    pending: PendingCall, outcome: Outcome, *, first_pause: float, time_left: float
) -> float | None:
    """Seconds before the next attempt, doubled each time, with jitter; None for no retry.

    `time_left` is the time until the last moment at which a reply can still arrive in time.
    """
    message = pending.message  # a later release may declare other retries
    if outcome.ok or not message.retries or not message.rerunnable:
        return None
    if outcome.code is None or outcome.code in NEVER_RETRIED:
        return None
    if pending.is_abandoned and not pending.is_cancelled:
        return None
    if outcome.code is Code.REPORTED and missing_secret_in(outcome.details):
        return None  # it waits for a person
    if not is_retryable(outcome.code, outcome.executed, pending.spec):
        return None
    pause = min(first_pause * 2**pending.retries, _LONGEST_PAUSE_SECONDS)
    pause *= random.uniform(0.5, 1.5)  # noqa: S311 - jitter
    return pause if pause < time_left else None


class Retries:
    """Retries failed calls; `submit` sends one when its pause is over."""

    def __init__(
        self,
        services: Services,
        *,
        pump: Pump,
        deadlines: Deadlines,
        submit: Callable[[PendingCall], None],
    ) -> None:
        self._settings = services.settings
        self._observers = services.observers
        self._pump = pump
        self._deadlines = deadlines
        self._submit = submit

    def try_again(self, pending: PendingCall, outcome: Outcome) -> bool:
        """Whether a call with this outcome is retried. Schedules the retry.

        A retry has its own record, whose key follows from that of the first. So a call that is
        dispatched again finds the same records, and the same outcome.
        """
        share = pending.share
        if share is not None and not share.may_retry(pending):
            return False  # its sharers look for another run
        if share is not None:
            pending.deadline = max(asker.deadline for asker in share.askers)
        now = time.monotonic()
        pause = pause_before(
            pending,
            outcome,
            first_pause=self._settings.retry_delay,
            time_left=pending.deadline - ANSWER_MARGIN_SECONDS - now,
        )
        if pause is None:
            return False
        if pending.is_cancelled and not (pending.in_background or pending.is_attached):
            return False
        if not pending.is_new_outcome:  # another dispatcher may have retried it long ago
            pause = 0.0
        if not pending.is_cancelled:
            self._observers.call("retried", pending, pause)
        self._pump.done(pending)
        self._deadlines.forget(pending)
        start_by = min(now + pause + self._settings.queue_timeout, pending.deadline)
        pending.start_again(start_by=start_by, before=outcome)
        self._deadlines.watch(pending, alone=True)
        if pending.is_cancelled:  # another dispatcher would start the next attempt
            self._deadlines.close_abandoned([pending])
            return True
        asyncio.get_running_loop().call_later(pause, self._submit, pending)
        return True

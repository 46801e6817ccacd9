"""Reports a dispatcher's state to observers about four times a second, if any listen."""

import asyncio
import time
from collections.abc import Collection

from toolpool.contract.observer_dispatch import PULSE_SECONDS
from toolpool.dispatcher.calls.pending import PendingCall, Stage
from toolpool.dispatcher.calls.pump import Pump
from toolpool.dispatcher.calls.services import Calls
from toolpool.dispatcher.observer import Observers, Pulse

_SHARE_OF_TIME = 100
"""Checking the waiting calls may take 1 % of the time at most."""
_UNSTARTED = (Stage.NEW, Stage.WAITING, Stage.PUBLISHING, Stage.QUEUED)


async def beat(calls: Calls, pump: Pump, observers: Observers) -> None:
    """Report until cancelled. A blocked event loop is reported as soon as it runs again."""
    due = time.monotonic()
    oldest_waiting, look_at = 0.0, 0.0
    while True:
        now = time.monotonic()
        open_calls = calls.all_open()
        asked_about = [pending for pending in open_calls if pending.awaits_approval]
        if now >= look_at:
            oldest_waiting = _oldest_waiting(open_calls, pump, now)
            look_at = now + _SHARE_OF_TIME * (time.monotonic() - now)
        pulse = Pulse(
            lag=max(0.0, now - due),
            waiting=pump.waiting + pump.unstarted,
            oldest_waiting=oldest_waiting,
            waiting_approvals=len(asked_about),
            oldest_approval=now - asked_about[0].began if asked_about else 0.0,
            in_flight=sum(not pending.is_run for pending in open_calls),
            dropped=observers.dropped,
        )
        observers.notify("pulse", pulse)
        due = time.monotonic() + PULSE_SECONDS
        await asyncio.sleep(PULSE_SECONDS)


def _oldest_waiting(calls: Collection[PendingCall], pump: Pump, now: float) -> float:
    """The age of the oldest call that waits for a worker, in seconds.

    `calls` are in order of acceptance. Calls that a limit of their tool or session holds back do
    not count.
    """
    for pending in calls:
        if pending.awaits_approval or pending.shares_run:
            continue
        if (
            pending.stage is Stage.WAITING
            and pump.queue_of(pending).blocked_by(pending) != "workers"
        ):
            continue
        if pending.limited is not None and pending.limited.waits:
            continue
        is_first_wait = pending.stage in _UNSTARTED and not pending.was_started
        # Without a queue, this dispatcher answers the call itself.
        if is_first_wait and not pending.retries and pending.queue:
            return now - pending.began
    return 0.0

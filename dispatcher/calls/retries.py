"""When the pool tries a failed call again by itself: for tools that asked for it (`retries=`)."""

import random

from toolpool.contract.credentials import lacked
from toolpool.contract.outcome import Code, Outcome, is_retryable
from toolpool.dispatcher.calls.pending import Pending

_LONGEST_PAUSE_SECONDS = 10.0
_NEVER_RETRIED = frozenset(
    {Code.OVERLOADED, Code.CIRCUIT_OPEN, Code.QUEUE_UNREACHABLE, Code.EXPIRED}
)
"""What the call would only wait for again."""


def pause_before(
    pending: Pending, outcome: Outcome, *, first_pause: float, time_left: float
) -> float | None:
    """Seconds to wait before the next try, doubled each time and with jitter; None for no more.

    `time_left` is until the last moment that still leaves room for an answer.
    """
    spec = pending.spec
    if outcome.ok or pending.retries >= spec.retries or not spec.rerunnable:
        return None
    if pending.is_unwanted or outcome.code is None or outcome.code in _NEVER_RETRIED:
        return None
    if outcome.code is Code.REPORTED and lacked(outcome.details):
        return None  # it waits for a person
    if not is_retryable(outcome.code, outcome.executed, rerunnable=True):
        return None
    pause = min(first_pause * 2**pending.retries, _LONGEST_PAUSE_SECONDS)
    pause *= random.uniform(0.5, 1.5)  # noqa: S311 - jitter
    return pause if pause < time_left else None

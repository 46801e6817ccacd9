"""Outcomes that a dispatcher concludes itself, and the reasons in them."""

import msgspec

from toolpool.contract.outcome import Code, Executed, Outcome, failure
from toolpool.contract.rates import Rate

_LEAST_RETRY_SECONDS = 0.1
OVER_RATE = "over_rate"
"""The prefix of a limit's kind and rate: the reason of a call over its rate."""
SERVER_FULL = "server_full"
"""The reason of a call for which the server had no memory."""
NOBODY_APPROVED = "nobody_approved"
"""The reason of a call that was not approved in time."""
CHANGED_SINCE = "changed_since"
"""The reason of a call whose tool has changed since its approval."""
OTHERS_WAIT = "others"
"""The reason of a call that goes on for other callers."""


def not_queued(code: Code, error: str = "", *, retry_after: float | None = None) -> Outcome:
    """The outcome of a call that did not run: it was not sent, or no worker claimed it."""
    return failure(code, error, Executed.NO, retry_after=retry_after)


def with_time_left(outcome: Outcome, seconds: float) -> Outcome:
    """A refusal that is `seconds` old: the time until it is over is shorter by that."""
    if outcome.retry_after is None or seconds <= 0.0:
        return outcome
    left = max(_LEAST_RETRY_SECONDS, round(outcome.retry_after - seconds, 1))
    return msgspec.structs.replace(outcome, retry_after=left)


def server_full(retry_after: float) -> Outcome:
    """The outcome of a call that was not sent because the server is almost out of memory."""
    return not_queued(Code.OVERLOADED, SERVER_FULL, retry_after=retry_after)


def over_rate(kind: str, rate: Rate) -> str:
    """The reason in the outcome of a call over a limit; `messages` makes its sentence."""
    return f"{OVER_RATE} {kind} {rate}"


def forgotten() -> Outcome:
    """The outcome of a repeated call that may have run and has no record."""
    return failure(Code.WORKER_LOST, "forgotten", Executed.UNKNOWN)


def not_cancelled() -> Outcome:
    """The outcome of a cancel that the server did not confirm: the background call goes on."""
    return failure(Code.QUEUE_UNREACHABLE, "not_cancelled", Executed.UNKNOWN)


def left_to_others(*, started: bool) -> Outcome:
    """The outcome for one caller of a call that goes on for callers with later deadlines."""
    code = Code.TIMEOUT if started else Code.EXPIRED
    return failure(code, OTHERS_WAIT, Executed.UNKNOWN, still_running=started)


def unreachable(executed: Executed, *, is_full: bool) -> Outcome:
    """The outcome of a call that the server did not accept; `is_full`: for lack of memory."""
    return failure(Code.QUEUE_UNREACHABLE, SERVER_FULL if is_full else "", executed)

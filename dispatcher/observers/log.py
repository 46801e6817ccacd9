"""Logs the failed calls that no worker answered, and at debug level every step of every call.

The log of a worker has the failed calls that the worker answered, with the traceback.
"""

import logging

from toolpool.contract import logs
from toolpool.contract.exception_report import traceback_of
from toolpool.contract.outcome import ErrorType
from toolpool.dispatcher.observer import CallFacts, Ended, HookFailure, Observer, Rejected

calls = logs.logger("calls")
policy = logs.logger("policy")

_WARNED = frozenset({ErrorType.RUNTIME, ErrorType.EXCEPTION})
"""Failures of the tool or the pool rather than of the caller: operators have to see them."""


class Log(Observer):
    """Logs each call that failed in the dispatcher."""

    is_quick = True

    def rejected(self, rejected: Rejected) -> None:
        """A call was rejected: the model has to correct it."""
        calls.info(
            "call_rejected tool=%s code=%s executed=no call=%s session=%s",
            rejected.tool, rejected.code.value, rejected.call_id, rejected.session,
        )  # fmt: skip

    def lost(self, call: CallFacts, worker: str) -> None:
        """The worker that ran the call was lost."""
        calls.warning(
            "call_worker_lost tool=%s call=%s session=%s attempt=%d worker=%s",
            call.tool, call.call_id, call.session, call.attempt, worker,
        )  # fmt: skip

    def failed(self, call: CallFacts, ended: Ended) -> None:
        """Log a failed call, unless its worker has logged it."""
        if ended.code is None or ended.is_by_worker:
            return
        level = logging.WARNING if ended.code.error_type in _WARNED else logging.INFO
        calls.log(
            level,
            "call_failed tool=%s code=%s executed=%s call=%s session=%s attempt=%d seconds=%.3f",
            call.tool, ended.code.value, ended.executed.value, call.call_id, call.session,
            call.attempt, ended.seconds,
        )  # fmt: skip

    def hook_failed(self, failure: HookFailure) -> None:
        """A hook, policy rule or webhook failed."""
        trace = f"\n{traceback_of(failure.faults)}" if failure.faults else ""
        policy.error(
            "hook_failed hook=%s tool=%s call=%s: %s%s",
            failure.hook, failure.tool, failure.call_id, failure.why, logs.lines(trace),
        )  # fmt: skip


class Steps(Log):
    """Also logs each step of every call."""

    def accepted(self, call: CallFacts) -> None:
        """The call waits to be sent."""
        _step("call_accepted", call)

    def queued(self, call: CallFacts) -> None:
        """The call is in the queue."""
        _step("call_queued", call)

    def started(self, call: CallFacts, worker: str) -> None:
        """A worker runs the call."""
        _step("call_started", call)

    def released(self, call: CallFacts) -> None:
        """A worker gave the call back."""
        _step("call_released", call)

    def retried(self, call: CallFacts, pause: float) -> None:
        """The pool retries the call."""
        _step("call_retried", call)

    def ended(self, call: CallFacts, ended: Ended) -> None:
        """The call has its result."""
        _step("call_answered", call)


def log() -> Log:
    """The observer for the level of the `toolpool.calls` logger."""
    return Steps() if calls.isEnabledFor(logging.DEBUG) else Log()


def _step(event: str, call: CallFacts) -> None:
    calls.debug(
        event + " tool=%s call=%s session=%s attempt=%d retry=%d",
        call.tool, call.call_id, call.session, call.attempt, call.retry,
    )  # fmt: skip

"""What an operator reads of a dispatcher: the calls that no worker answered, and their steps.

Calls that a worker answered are in the log of that worker, with the traceback.
"""

import logging

from toolpool.contract import logs
from toolpool.contract.exception_report import traceback_of
from toolpool.contract.outcome import ErrorType
from toolpool.dispatcher.observer import CallFacts, Ended, HookFailure, Observer, Rejected

calls = logs.logger("calls")
policy = logs.logger("policy")

_LOUD = frozenset({ErrorType.RUNTIME, ErrorType.EXCEPTION})
"""What an operator has to see: the tool or the pool is at fault, not who called it."""


class Log(Observer):
    """Writes a line for each call that failed here."""

    is_quick = True

    def rejected(self, rejected: Rejected) -> None:
        """The model has to mend a call."""
        calls.info(
            "call_rejected tool=%s code=%s executed=no call=%s session=%s",
            rejected.tool, rejected.code.value, rejected.call_id, rejected.session,
        )  # fmt: skip

    def lost(self, call: CallFacts, worker: str) -> None:
        """The worker that ran it is gone."""
        calls.warning(
            "call_lost_its_worker tool=%s call=%s session=%s attempt=%d worker=%s",
            call.tool, call.call_id, call.session, call.attempt, worker,
        )  # fmt: skip

    def ended(self, call: CallFacts, ended: Ended) -> None:
        """A call failed, and no worker said so."""
        if ended.code is None or ended.is_by_worker:
            return
        level = logging.WARNING if ended.code.error_type in _LOUD else logging.INFO
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
    """Writes a line for each step of every call as well."""

    def accepted(self, call: CallFacts) -> None:
        """It waits to be sent."""
        _step("call_accepted", call)

    def queued(self, call: CallFacts) -> None:
        """It is in the queue."""
        _step("call_queued", call)

    def started(self, call: CallFacts, worker: str) -> None:
        """A worker runs it."""
        _step("call_started", call)

    def released(self, call: CallFacts) -> None:
        """A worker gave it back."""
        _step("call_released", call)

    def retried(self, call: CallFacts, pause: float) -> None:
        """It is run again."""
        _step("call_retried", call)

    def ended(self, call: CallFacts, ended: Ended) -> None:
        """It has its result."""
        _step("call_answered", call)
        super().ended(call, ended)


def log() -> Log:
    """What writes as much as the logger takes."""
    return Steps() if calls.isEnabledFor(logging.DEBUG) else Log()


def _step(event: str, call: CallFacts) -> None:
    calls.debug(
        event + " tool=%s call=%s session=%s attempt=%d retry=%d",
        call.tool, call.call_id, call.session, call.attempt, call.retry,
    )  # fmt: skip

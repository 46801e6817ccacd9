"""Logs the start and stop of a worker, and every call that failed in it."""

import logging

from toolpool.contract import logs
from toolpool.contract.exception_report import traceback_of
from toolpool.contract.outcome import Code, ErrorType
from toolpool.workers.worker_observer import (
    LeftBehind,
    Received,
    RunEnded,
    RunFacts,
    Unresolved,
    WorkerFacts,
    WorkerObserver,
)

service = logs.logger("worker")
calls = logs.logger("calls")

_WARNED = frozenset({ErrorType.RUNTIME, ErrorType.EXCEPTION})
"""Failures of the tool or the pool rather than of the caller: operators have to see them."""


class Log(WorkerObserver):
    """Logs the start and stop of the worker, and each call that failed in it."""

    is_quick = True

    def ready(self, worker: WorkerFacts) -> None:
        """The worker takes calls."""
        service.info(
            "worker_ready id=%s tools=%s kinds=%s queues=%s server=%s version=%s",
            worker.id,
            ",".join(worker.tools),
            ",".join(worker.kinds),
            ",".join(worker.queues),
            worker.server,
            worker.version,
        )

    def draining(self, worker: WorkerFacts) -> None:
        """The worker takes no new calls."""
        service.info(
            "worker_draining id=%s: running calls may end, no new calls are taken", worker.id
        )

    def stopped(self, worker: WorkerFacts) -> None:
        """The worker exits."""
        service.info("worker_stopped id=%s", worker.id)

    def left_behind(self, left: LeftBehind) -> None:
        """Tools left tasks or threads running."""
        service.error(
            "%s_left_behind count=%d: they outlive their calls; the most common stack is\n%s",
            left.what, left.count, logs.lines(left.stack),
        )  # fmt: skip

    def unresolved(self, unresolved: Unresolved) -> None:
        """A secret is not available: logged once a minute for each secret."""
        trace = f"\n{traceback_of(unresolved.faults)}" if unresolved.faults else ""
        calls.error(
            "secret_unresolved name=%s tool=%s source=%s: %s%s%s",
            unresolved.name, unresolved.tool, unresolved.source, unresolved.why,
            f": {unresolved.text}" if unresolved.text else "", logs.lines(trace),
        )  # fmt: skip

    def failed(self, call: RunFacts, ended: RunEnded) -> None:
        """Log a failed call, unless its worker was lost, which dispatchers log."""
        if ended.code is None or ended.code is Code.WORKER_LOST:
            return
        is_warning = ended.code.error_type in _WARNED or ended.code is Code.DENIED
        level = logging.WARNING if is_warning else logging.INFO
        if not calls.isEnabledFor(level):
            return
        assert ended.failure is not None
        failure, faults = ended.failure, ended.failure.faults
        trace = f"\n{traceback_of(faults)}" if faults and ended.code is not Code.REPORTED else ""
        more = {"cause": failure.cause, "result_bytes": failure.result_bytes}
        more = {name: value for name, value in more.items() if value}
        calls.log(
            level,
            "call_failed tool=%s code=%s executed=%s call=%s session=%s attempt=%d seconds=%.3f "
            "exception=%s" + "".join(f" {name}=%s" for name in more) + "%s%s",
            call.tool, ended.code.value, ended.executed.value, call.call_id, call.session,
            call.attempt, ended.seconds, faults[-1].name if faults else None, *more.values(),
            f": {failure.text}" if failure.text else "", logs.lines(trace),
        )  # fmt: skip


class Steps(Log):
    """Also logs each step of every call."""

    def started(self, call: RunFacts, received: Received) -> None:
        """The tool is entered."""
        _step("call_started", call, f" queue={call.queue} waited={received.seconds:.3f}")

    def ended(self, call: RunFacts, ended: RunEnded) -> None:
        """The call was answered."""
        _step("call_ended", call, f" seconds={ended.seconds:.3f}")

    def released(self, call: RunFacts) -> None:
        """The call was given back."""
        _step("call_released", call)

    def unclaimed(self, call: RunFacts) -> None:
        """The call is for a worker with another version of its tool."""
        _step("call_unclaimed", call)


def log() -> Log:
    """The observer for the level of the `toolpool.calls` logger."""
    return Steps() if calls.isEnabledFor(logging.DEBUG) else Log()


def _step(event: str, call: RunFacts, more: str = "") -> None:
    calls.debug(
        event + " tool=%s call=%s session=%s attempt=%d" + more,
        call.tool, call.call_id, call.session, call.attempt,
    )  # fmt: skip

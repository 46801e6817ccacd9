"""Runs one claimed call to an `Outcome`: on the loop, in a thread or in a child process."""

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from secrets import randbits
from typing import Any

import msgspec

from toolpool.contract import logs
from toolpool.contract.approval_messages import digest_of, read_decision
from toolpool.contract.envelope import CallMessage, Envelope, Switch
from toolpool.contract.errors import MessageRejected, ToolDeclarationInvalid
from toolpool.contract.exception_report import faults_of
from toolpool.contract.outcome import (
    BLOCKED_LOOP,
    NOT_JUDGED,
    Code,
    Executed,
    Outcome,
    failure,
)
from toolpool.contract.record_keys import idempotency_key, retry_of, root_of
from toolpool.contract.schema.validator import SchemaCache
from toolpool.contract.spec import RunIn
from toolpool.workers.context import ProgressGate, ReportProgress, ToolContext
from toolpool.workers.credentials.lookup import Credentials
from toolpool.workers.running import forks, frames
from toolpool.workers.running.children import ChildPool
from toolpool.workers.running.claimed_call import ClaimedCall
from toolpool.workers.running.heartbeat import RunTimeout
from toolpool.workers.running.invoke import invoke, invoke_coroutine
from toolpool.workers.running.output import Completion
from toolpool.workers.running.threads import ThreadPool
from toolpool.workers.tool import Tool
from toolpool.workers.tool_loading import Catalog

log = logs.logger("call_runner")

_REPLY_MARGIN_SECONDS = 0.25
"""A run ends this long before the caller's deadline, so that its outcome still arrives."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """A completion, and what still occupies the slot (a thread that outlived its timeout)."""

    completion: Completion
    busy_until: Awaitable[None] | None = None


@dataclass(frozen=True, slots=True)
class _RunParameters:
    """The parameters of a run besides its call."""

    secrets: Mapping[str, str] = field(repr=False)
    report_progress: ReportProgress
    on_silence: Callable[[], None]
    on_begin: Callable[[], None]
    on_entered: Callable[[], None] | None
    switches: tuple[Switch, ...]


class CallRunner:
    """Runs calls. `run` raises nothing that a tool does; only cancellation passes."""

    def __init__(
        self,
        *,
        worker: str,
        catalog: Catalog,
        max_result_bytes: int,
        children: ChildPool | None,
        credentials: Credentials,
        envelope: Envelope,
        prefix: str,
        policy_required: bool = False,
    ) -> None:
        self._policy_required = policy_required
        self._worker = worker
        self._catalog = catalog
        self._max_result_bytes = max_result_bytes
        self._children = children
        self._credentials = credentials
        self._envelope = envelope
        self._prefix = prefix
        self.server_time: Callable[[], float] = time.time
        """Unix time by the server's clock."""
        self._threads = ThreadPool()
        self._schemas = SchemaCache()
        self._numbers = itertools.count(1 + randbits(62))

    async def run(
        self,
        call: CallMessage,
        time_left: float,
        report_progress: ReportProgress,
        on_silence: Callable[[], None] = lambda: None,
        on_begin: Callable[[], None] = lambda: None,
        on_entered: Callable[[], None] | None = None,
        *,
        tenant: str,
        switches: tuple[Switch, ...] = (),
    ) -> RunResult:
        """Run the claimed `call` within its timeout and the `time_left` to its deadline.

        `switches` are the kill switches on arguments of the tool, for `tenant`.

        These are called on the event loop: `report_progress`; `on_begin` when the tool is entered,
        or sent to a child process, `on_entered` when it is entered in any case;
        and `on_silence` when a coroutine is cancelled because its heartbeat stopped.
        """
        began = time.monotonic()
        tool = self._catalog.tools.get(call.tool)
        assert tool is not None  # the executor releases calls of unknown tools
        refusal = None
        if self._policy_required or tool.spec.approval is True or call.approval is not None:
            refusal = self._not_allowed(tool, call, tenant)
        if refusal := refusal or self._refuse(tool, call):
            done = RunResult(Completion(refusal))
        else:
            ends_at = began + time_left - _REPLY_MARGIN_SECONDS
            secrets = await self._secrets(tool, call, ends_at, tenant) if tool.secrets else {}
            if isinstance(secrets, Outcome):
                done = RunResult(Completion(secrets))
            else:
                left = ends_at - time.monotonic()
                parameters = _RunParameters(
                    secrets, report_progress, on_silence, on_begin, on_entered, switches
                )
                done = await self._run(tool, call, left, parameters)
        outcome = self._signed_off(done.completion.outcome, call, time.monotonic() - began)
        return RunResult(Completion(outcome, done.completion.whole), done.busy_until)

    def can_run(self, call: CallMessage) -> bool:
        """Whether this worker has the call's tool in a version that accepts its arguments."""
        tool = self._catalog.tools.get(call.tool)
        if tool is None:
            return False
        return call.final or self._refuse(tool, call) is None

    def canonical(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments in canonical form; unchanged if the schema has none."""
        tool = self._catalog.tools.get(name)
        try:
            validator = self._schemas.validator(tool.spec) if tool is not None else None
            return arguments if validator is None else validator.canonical(arguments)
        except (ToolDeclarationInvalid, ValueError):
            return arguments

    def cannot_hold(self, switch: Switch) -> bool:
        """Whether no call can have the value that a switch denies, because its type rejects it."""
        tool = self._catalog.tools.get(switch.tool)
        if tool is None or switch.argument is None or not switch.on:
            return False
        return not tool.signature.can_read(switch.argument, switch.value)

    def started_before(self, call: CallMessage) -> Outcome:
        """The outcome of a call that this worker started before, against its record."""
        return self._signed_off(failure(Code.WORKER_LOST, "forgotten", Executed.UNKNOWN), call, 0.0)

    def cancelled(self, call: CallMessage) -> Outcome:
        """The outcome of a run that was cancelled."""
        return self._signed_off(failure(Code.CANCELLED, "", Executed.UNKNOWN), call, 0.0)

    def never_started(self, call: CallMessage) -> Outcome:
        """The outcome of a call that was cancelled during its claim."""
        return self._signed_off(failure(Code.CANCELLED, "", Executed.NO), call, 0.0)

    def lost(self, call: CallMessage, reason: str) -> Outcome:
        """The outcome of a run whose end this worker will not see."""
        outcome = failure(Code.WORKER_LOST, reason, Executed.UNKNOWN)
        return self._signed_off(outcome, call, 0.0)

    def failed(self, call: CallMessage, error: BaseException) -> Outcome:
        """The outcome of a run that failed for a reason outside its tool."""
        reason, details = type(error).__name__, {"faults": faults_of(error)}
        outcome = failure(Code.INTERNAL, reason, Executed.UNKNOWN, details=details)
        return self._signed_off(outcome, call, 0.0)

    def released_too_often(self, call: CallMessage) -> Outcome:
        """The outcome of a call that workers kept releasing without starting it."""
        outcome = failure(Code.INTERNAL, "no worker would start it", Executed.NO)
        return self._signed_off(outcome, call, 0.0)

    def not_stoppable(self, call: CallMessage) -> Outcome:
        """The outcome of a run that continues although it was told to stop."""
        outcome = failure(
            Code.TIMEOUT, "it did not stop when told to", Executed.UNKNOWN, still_running=True
        )
        return self._signed_off(outcome, call, call.timeout)

    def blocked(self, running: ClaimedCall) -> Outcome:
        """The outcome of a run that blocked the event loop until its worker was killed."""
        outcome = failure(Code.TIMEOUT, BLOCKED_LOOP, Executed.UNKNOWN)
        return self._signed_off(outcome, running.call, running.seconds)

    def _signed_off(self, outcome: Outcome, call: CallMessage, duration: float) -> Outcome:
        if outcome.executed is Executed.NO and call.attempt > 1 and call.rerunnable:
            # An earlier attempt may have entered the tool; a call that may not run twice is only
            # attempted again if it was never entered.
            outcome = msgspec.structs.replace(outcome, executed=Executed.UNKNOWN)
        return msgspec.structs.replace(
            outcome, worker=self._worker, attempt=call.attempt, duration=round(duration, 6)
        )

    def _not_allowed(self, tool: Tool, call: CallMessage, tenant: str) -> Outcome | None:
        """Why a call that needs a policy's verdict or an approval may not run."""
        if self._policy_required and (call.verdict is None or not call.verdict.policy):
            details = {"cause": "no policy judged it"}
            return failure(Code.DENIED, NOT_JUDGED, Executed.NO, details=details)
        needs_approval = tool.spec.approval is True or call.approval is not None
        return self._not_approved(tool, call, tenant) if needs_approval else None

    def _not_approved(self, tool: Tool, call: CallMessage, tenant: str) -> Outcome | None:
        """Why a call that needs approval, for this version of the tool, may not run."""
        try:
            decision = read_decision(
                self._envelope,
                call.approval or b"",
                key=root_of(call.key),
                tenant=tenant,
                prefix=self._prefix,
                digest=digest_of(call.tool, call.arguments, tool.spec.bound_digest),
            )
        except MessageRejected as error:
            log.error("message_rejected reason=%s tool=%s: %s", error.reason, call.tool, error)
            return failure(Code.DENIED, "not_approved", Executed.NO)
        if not decision.approved:
            return failure(Code.DENIED, "not_approved", Executed.NO)
        is_over = self.server_time() >= decision.ends_at
        return failure(Code.EXPIRED, "", Executed.NO) if is_over else None

    def _refuse(self, tool: Tool, call: CallMessage) -> Outcome | None:
        """Arguments validated against another version of the tool are validated again here.

        A retry is refused if this version may not run twice.
        """
        if call.digest == tool.spec.digest:
            return None
        if retry_of(call.key) and not tool.spec.rerunnable:
            return failure(Code.EXPIRED, "changed", Executed.NO)
        judged = call.verdict.tool if call.verdict is not None else ""
        if judged and judged != tool.spec.bound_digest:
            return failure(Code.EXPIRED, "changed", Executed.NO)
        try:
            validator = self._schemas.validator(tool.spec)
        except ToolDeclarationInvalid as error:
            return failure(Code.INTERNAL, str(error), Executed.NO)
        problems = validator.problems(call.arguments) if validator else ()
        if problems:
            # They were valid for the dispatcher's version: blame the rolling release, not the
            # model.
            return failure(Code.EXPIRED, "changed", Executed.NO)
        return None

    async def _secrets(
        self, tool: Tool, call: CallMessage, ends_at: float, tenant: str
    ) -> Mapping[str, str] | Outcome:
        """The secrets that the tool declares, or the outcome if one is unavailable."""
        left = ends_at - time.monotonic()
        if left <= 0:
            return failure(Code.EXPIRED, "", Executed.NO)
        try:
            return await self._credentials.of(tool, call, tenant=tenant, within=left)
        except asyncio.CancelledError:
            return failure(Code.CANCELLED, "", Executed.NO)

    async def _run(
        self, tool: Tool, call: CallMessage, left: float, parameters: "_RunParameters"
    ) -> RunResult:
        if left <= 0:
            return RunResult(Completion(failure(Code.EXPIRED, "", Executed.NO)))
        if tool.spec.run_in is RunIn.PROCESS:
            return RunResult(await self._run_in_child(tool, call, left, parameters))
        parameters.on_begin()
        if parameters.on_entered is not None:
            parameters.on_entered()
        seconds = min(call.timeout, left)
        if tool.spec.run_in is RunIn.THREAD:
            return await self._run_in_thread(tool, call, seconds, parameters)
        gate = _gate(parameters.report_progress)
        life = RunTimeout(seconds, tool.spec.silence, parameters.on_silence)
        is_injected = tool.signature.injected
        context = _context(call, seconds, gate, life, parameters.secrets) if is_injected else None
        try:
            async with life:
                completion = await invoke_coroutine(
                    tool,
                    call.arguments,
                    context,
                    self._max_result_bytes,
                    call.verdict,
                    parameters.switches,
                )
                forks.end_stray()
                return RunResult(completion)
        except TimeoutError:
            return RunResult(Completion(life.outcome()))
        finally:
            gate.close()

    async def _run_in_child(
        self, tool: Tool, call: CallMessage, left: float, parameters: "_RunParameters"
    ) -> Completion:
        if self._children is None:
            reason = "this worker runs no child processes"
            return Completion(failure(Code.INTERNAL, reason, Executed.NO))
        run = frames.Run(
            run=next(self._numbers),
            call_id=call.id,
            tool=call.tool,
            arguments=call.arguments,
            timeout=call.timeout,
            heartbeat=tool.spec.silence,
            session=call.session,
            attempt=call.attempt,
            idempotency_key=idempotency_key(call.key),
            context=call.context,
            trace=call.trace,
            secrets=dict(parameters.secrets) or None,
            verdict=call.verdict,
            switches=parameters.switches,
            tells_entry=parameters.on_entered is not None,
        )
        return await self._children.run(
            run,
            parameters.report_progress,
            within=left,
            on_begin=parameters.on_begin,
            on_entered=parameters.on_entered or (lambda: None),
        )

    async def _run_in_thread(
        self, tool: Tool, call: CallMessage, seconds: float, parameters: "_RunParameters"
    ) -> RunResult:
        """A thread cannot be killed: its call is answered, and its slot stays occupied."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Completion] = loop.create_future()
        stopped = threading.Event()

        gate = _gate(parameters.report_progress)
        life = RunTimeout(seconds, tool.spec.silence)
        context = _context(call, seconds, gate, life, parameters.secrets, stopped.is_set)

        def work() -> None:
            completion = invoke(
                tool,
                call.arguments,
                context,
                self._max_result_bytes,
                call.verdict,
                parameters.switches,
            )
            forks.end_stray()
            gate.close()
            with contextlib.suppress(RuntimeError):  # the loop ended before this thread did
                loop.call_soon_threadsafe(_resolve, ended, completion)

        self._threads.submit(work)
        try:
            async with life:
                await asyncio.wait({ended})
            return RunResult(ended.result())
        except TimeoutError:
            if ended.done():
                return RunResult(ended.result())
            outcome = life.outcome("its thread cannot be stopped", still_running=True)
        except asyncio.CancelledError:
            outcome = msgspec.structs.replace(self.cancelled(call), still_running=True)
        stopped.set()
        return RunResult(Completion(outcome), asyncio.ensure_future(_wait_for(ended)))

    def close(self) -> None:
        """End idle threads."""
        self._threads.close()


def _gate(report_progress: ReportProgress) -> ProgressGate:
    """A gate that passes reports from any thread to this event loop."""
    loop = asyncio.get_running_loop()

    def send(done: float, total: float | None, message: str | None) -> None:
        loop.call_soon_threadsafe(report_progress, done, total, message)

    return ProgressGate(send)


def _context(
    call: CallMessage,
    seconds: float,
    report_progress: ReportProgress,
    life: RunTimeout,
    secrets: Mapping[str, str],
    is_cancelled: Callable[[], bool] = lambda: False,
) -> ToolContext:
    return ToolContext(
        call_id=call.id,
        tool=call.tool,
        session=call.session,
        attempt=call.attempt,
        idempotency_key=idempotency_key(call.key),
        context=call.context or {},
        trace=call.trace or {},
        ends_at=time.monotonic() + seconds,
        report_progress=report_progress,
        beat=life.beat,
        is_cancelled=is_cancelled,
        secrets=secrets,
    )


def _resolve(future: "asyncio.Future[Completion]", completion: Completion) -> None:
    if not future.done():
        future.set_result(completion)


async def _wait_for(future: "asyncio.Future[Completion]") -> None:
    await future

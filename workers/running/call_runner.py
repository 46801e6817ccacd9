"""Runs one claimed call to an `Outcome`: on the loop, in a thread or in a child process."""

import asyncio
import contextlib
import itertools
import math
import threading
import time
from collections.abc import Callable, Mapping
from secrets import randbits

import msgspec

from toolpool.contract import logs
from toolpool.contract.daemon_threads import DaemonThreads
from toolpool.contract.envelope import CallMessage, Switch
from toolpool.contract.outcome import (
    Code,
    Executed,
    Outcome,
    failure,
)
from toolpool.contract.spec import RunIn
from toolpool.workers.context import ProgressThrottle, ReportProgress, context_of
from toolpool.workers.credentials.lookup import Credentials
from toolpool.workers.lifespan import Resources
from toolpool.workers.running import forks, frames
from toolpool.workers.running.admission import Admission
from toolpool.workers.running.children import ChildPool
from toolpool.workers.running.invoke import Invocation, invoke, invoke_coroutine
from toolpool.workers.running.outcomes import WorkerOutcomes
from toolpool.workers.running.output import Completion
from toolpool.workers.running.run_timeout import RunTimeout, RunTimers
from toolpool.workers.tool import Tool
from toolpool.workers.tool_loading import Catalog

log = logs.logger("call_runner")

_NOT_ENTERED = failure(Code.EXPIRED, "", Executed.NO)
_REPLY_MARGIN_SECONDS = 0.25
"""A run ends this many seconds before the caller's deadline, so that its outcome still arrives."""


class _RunParameters(msgspec.Struct, frozen=True, gc=False):
    """The parameters of a run besides its call."""

    secrets: Mapping[str, str]
    report_progress: ReportProgress
    on_silence: Callable[[], None]
    on_begin: Callable[[], None]
    on_entered: Callable[[], None] | None
    enter_by: float
    switches: tuple[Switch, ...]

    def __repr__(self) -> str:
        """Shows no secrets."""
        return f"{type(self).__name__}(…)"


class CallRunner:
    """Runs calls. `run` raises no exception of a tool; only CancelledError is passed on."""

    def __init__(
        self,
        *,
        worker: str,
        catalog: Catalog,
        max_result_bytes: int,
        children: ChildPool | None,
        resources: Resources,
        credentials: Credentials,
        admission: Admission,
    ) -> None:
        self.outcomes = WorkerOutcomes(worker)
        self._admission = admission
        self._catalog = catalog
        self._max_result_bytes = max_result_bytes
        self._children = children
        self._resources = resources
        self._credentials = credentials
        self._threads = DaemonThreads("tool")
        self._timers = RunTimers()
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
        enter_by: float = math.inf,
    ) -> Completion:
        """Run the claimed `call` within its timeout and the `time_left` to its deadline.

        The tool is not entered after `enter_by` (monotonic clock): its place under a limit may then
        be gone.

        These are called on the event loop: `report_progress`; `on_begin` when the tool is handed
        to the loop, a thread or a child process; `on_entered` when its function is entered there;
        and `on_silence` when a coroutine is cancelled because its heartbeat stopped.
        """
        began = time.monotonic()
        tool = self._catalog.tools[call.tool]  # the executor releases calls of unknown tools
        if refusal := self._admission.refusal(tool, call, tenant):
            done = Completion(refusal)
        else:
            ends_at = began + time_left - _REPLY_MARGIN_SECONDS
            secrets = await self._secrets(tool, call, ends_at, tenant) if tool.secrets else {}
            if isinstance(secrets, Outcome):
                done = Completion(secrets)
            else:
                left = ends_at - time.monotonic()
                switches = (
                    self._admission.switches_on_arguments(call, tenant)
                    if self._admission.switches.on
                    else ()
                )
                parameters = _RunParameters(
                    secrets, report_progress, on_silence, on_begin, on_entered, enter_by, switches
                )
                done = await self._run(tool, call, left, parameters)
        outcome = self.outcomes.signed(done.outcome, call, time.monotonic() - began)
        return msgspec.structs.replace(done, outcome=outcome)

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
    ) -> Completion:
        if left <= 0 or time.monotonic() > parameters.enter_by:
            return Completion(_NOT_ENTERED)
        if tool.spec.run_in is RunIn.PROCESS:
            return await self._run_in_child(tool, call, left, parameters)
        parameters.on_begin()
        seconds = min(call.timeout, left)
        if tool.spec.run_in is RunIn.THREAD:
            return await self._run_in_thread(tool, call, seconds, parameters)
        if parameters.on_entered is not None:
            parameters.on_entered()
        life = RunTimeout(self._timers, seconds, tool.spec.silence, parameters.on_silence)
        context = progress = None
        if tool.signature.injected:
            progress = _throttled(parameters.report_progress)
            resources = self._resources.of(tool)
            context = context_of(call, seconds, progress, life.beat, parameters.secrets, resources)
        invocation = Invocation(
            tool, call.arguments, context, self._max_result_bytes, call.verdict, parameters.switches
        )
        try:
            async with life:
                completion = await invoke_coroutine(invocation)
                forks.end_stray()
                return completion
        except TimeoutError:
            return Completion(life.outcome())
        finally:
            if progress is not None:
                progress.close()

    async def _run_in_child(
        self, tool: Tool, call: CallMessage, left: float, parameters: "_RunParameters"
    ) -> Completion:
        if self._children is None:
            reason = "this worker runs no child processes"
            return Completion(failure(Code.INTERNAL, reason, Executed.NO))
        run = frames.Run(
            run=next(self._numbers),
            call=call,
            timeout=call.timeout,
            heartbeat=tool.spec.silence,
            secrets=dict(parameters.secrets) or None,
            switches=parameters.switches,
            enter_by=parameters.enter_by if parameters.on_entered is not None else None,
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
    ) -> Completion:
        """A thread cannot be killed: the call is answered, and its slot stays occupied."""
        loop, stopped = asyncio.get_running_loop(), threading.Event()

        progress = _throttled(parameters.report_progress)
        life = RunTimeout(self._timers, seconds, tool.spec.silence)
        resources = self._resources.of(tool)
        context = context_of(
            call, seconds, progress, life.beat, parameters.secrets, resources, stopped.is_set
        )
        invocation = Invocation(
            tool, call.arguments, context, self._max_result_bytes, call.verdict, parameters.switches
        )

        def work() -> Completion:  # the thread may begin late, if the machine is busy
            if time.monotonic() > parameters.enter_by:
                completion = Completion(_NOT_ENTERED)
            else:
                if parameters.on_entered is not None:
                    with contextlib.suppress(RuntimeError):
                        loop.call_soon_threadsafe(parameters.on_entered)
                completion = invoke(invocation)
            forks.end_stray()
            progress.close()
            return completion

        ended = self._threads.call(work)
        try:
            async with life:
                await asyncio.wait({ended})
            return ended.result()
        except TimeoutError:
            if ended.done():
                return ended.result()
            outcome = life.outcome("its thread cannot be stopped", still_running=True)
        except asyncio.CancelledError:
            outcome = msgspec.structs.replace(self.outcomes.cancelled(call), still_running=True)
        stopped.set()
        return Completion(outcome, busy_until=asyncio.ensure_future(_wait_for(ended)))

    def close(self) -> None:
        """End idle threads."""
        self._threads.close()


def _throttled(report_progress: ReportProgress) -> ProgressThrottle:
    """A throttle that passes reports from any thread to this event loop."""
    loop = asyncio.get_running_loop()

    def send(done: float, total: float | None, message: str | None) -> None:
        loop.call_soon_threadsafe(report_progress, done, total, message)

    return ProgressThrottle(send)


async def _wait_for(future: "asyncio.Future[Completion]") -> None:
    await future

"""The pool of child processes: started early, reused, recycled, killed with descendants."""

import asyncio
import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from toolpool.contract import logs
from toolpool.contract.background_tasks import BackgroundTasks
from toolpool.contract.errors import ToolsUnimportable
from toolpool.contract.outcome import Code, Executed, failure
from toolpool.contract.settings import Settings
from toolpool.contract.spec import RunIn
from toolpool.workers.context import ReportProgress
from toolpool.workers.lifespan import Resources
from toolpool.workers.running import frames
from toolpool.workers.running.child_handle import Child, ChildLost, RunningCall
from toolpool.workers.running.output import Completion
from toolpool.workers.running.run_timeout import RunTimeout, RunTimers, interval
from toolpool.workers.tool_loading import Catalog

log = logs.logger("children")

_START_SECONDS = 60.0
_CHILDREN_A_CALL = 3
"""How many child processes a call is tried in, if each of them ends before the call begins."""
_CALLS_PER_CHILD = 10_000  # afterwards a child is replaced, since tools may leak memory
_ROOM_BYTES = 4 << 20


class ChildPool:
    """Runs calls in at most `size` child processes at once; the caller limits concurrent calls.

    `start` raises `ToolsUnimportable` if a child cannot load the tools.
    """

    def __init__(
        self,
        *,
        size: int,
        tools: Sequence[str],
        max_result_bytes: int,
        calls_per_child: int,
        queues: Sequence[str] = (),
        has_resources: bool = False,
        imported_at: float | None = None,
    ) -> None:
        self._size = size
        self._tools = tools
        self._max_result_bytes = max_result_bytes
        self._calls_per_child = calls_per_child
        self._queues = queues
        self._has_resources = has_resources
        self._imported_at = time.time() if imported_at is None else imported_at
        self._timers = RunTimers()
        self._idle: deque[Child] = deque()
        self._living: set[Child] = set()
        self._leaving: set[Child] = set()
        self._waiters: deque[asyncio.Future[Child]] = deque()
        self._starting = 0
        self._background = BackgroundTasks()
        self._logged_spent: set[tuple[str, str]] = set()
        self._closed = False

    async def start(self) -> None:
        """Start every child and wait until they have loaded their tools."""
        children = await asyncio.gather(*(self._spawn() for _ in range(self._size)))
        for child in children:
            self._give_back(child)

    async def run(
        self,
        run: frames.Run,
        report_progress: ReportProgress,
        *,
        within: float,
        on_begin: Callable[[], None] = lambda: None,
        on_entered: Callable[[], None] = lambda: None,
    ) -> Completion:
        """Run one call in a child, for `run.timeout` from its begin and `within` seconds in all.

        The call begins when it is sent to a ready child; `on_begin` is then called on the event
        loop. If `run.enter_by` is set, `on_entered` is called when the child enters the tool.
        Raises only CancelledError, and only if the tool may have been entered.
        """
        ends_at = asyncio.get_running_loop().time() + within
        for _ in range(_CHILDREN_A_CALL):
            try:
                child = await self._idle_child(ends_at)
            except TimeoutError:
                return Completion(failure(Code.EXPIRED, "no process was ready for it", Executed.NO))
            except asyncio.CancelledError:
                return Completion(failure(Code.CANCELLED, "", Executed.NO))
            except (OSError, ToolsUnimportable) as error:
                reason = f"no process could be started: {error}"
                return Completion(failure(Code.INTERNAL, reason, Executed.NO))
            completion = await self._run_in(
                child, run, report_progress, ends_at, on_begin, on_entered
            )
            if completion is not None:
                return completion
        reason = f"{_CHILDREN_A_CALL} processes ended before it began in them"
        return Completion(failure(Code.INTERNAL, reason, Executed.NO))

    async def _run_in(
        self,
        child: Child,
        run: frames.Run,
        report_progress: ReportProgress,
        ends_at: float,
        on_begin: Callable[[], None],
        on_entered: Callable[[], None],
    ) -> Completion | None:
        """How the call ended; None if the child was lost before the call began."""
        left = ends_at - asyncio.get_running_loop().time()
        if run.timeout > left:
            run = msgspec.structs.replace(run, timeout=left)
        # The child forwards at most one heartbeat per interval, and may drop the last.
        slack = interval(run.heartbeat) if run.heartbeat is not None else 0.0
        life = RunTimeout(self._timers, run.timeout, run.heartbeat, slack=slack)
        running = RunningCall(
            run.run, on_beat=life.beat, on_progress=report_progress, on_entered=on_entered
        )
        on_begin()
        try:
            async with life:
                child.give(run, running)
                done = await running.done
        except TimeoutError:
            await self._end(child)
            if child.has_entered:
                return Completion(life.outcome())
            return Completion(failure(Code.EXPIRED, "its process did not begin it", Executed.NO))
        except ChildLost:
            return await self._lost_in(child)
        except BaseException:
            self._background.start(self._end(child))
            raise
        if done.spent or child.calls >= self._calls_per_child:
            self._log_spent(run.call.tool, done.spent)
            self._background.start(self._end(child, is_idle=True))
        else:
            self._give_back(child)
        return Completion(done.outcome, done.whole)

    async def _lost_in(self, child: Child) -> Completion | None:
        try:
            how = await child.how_it_ended()
        except BaseException:  # cancelled, or a live child closed its socket
            self._background.start(self._end(child))
            raise
        self._leaving.discard(child)
        if not child.has_entered:
            log.warning("child_lost: it %s before the call began; trying another", how)
            return None
        reason = f"the tool's process {how} in the middle of the call"
        details = {"exit_code": child.exit_code, "cause": how}
        return Completion(failure(Code.CRASHED, reason, Executed.UNKNOWN, details=details))

    def _log_spent(self, tool: str, why: str) -> None:
        """Warn once per tool and reason: a new process for every call makes a tool slow."""
        if why and (tool, why) not in self._logged_spent:
            self._logged_spent.add((tool, why))
            log.warning("child_spent tool=%s reason=%s: its process is replaced", tool, why)

    async def _idle_child(self, ends_at: float) -> Child:
        """Wait for an idle child. Raises the exception of a failed start."""
        while self._idle:
            child = self._idle.popleft()
            if child.lost is None:
                return child
        self._background.start(self._refill())
        waiter: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout_at(ends_at):
                return await waiter
        except (asyncio.CancelledError, TimeoutError):
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._give_back(waiter.result())
            raise

    def _give_back(self, child: Child) -> None:
        if child.lost is not None:
            return
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(child)
                return
        self._idle.append(child)

    def _on_lost(self, child: Child) -> None:
        """Replace a child that was lost between calls; `_run_in` replaces others."""
        if child not in self._living:
            return
        if not child.is_busy:
            log.warning("child_lost: it ended or sent an invalid frame between calls; replacing it")
            self._background.start(self._end(child))
        else:
            self._living.discard(child)
            self._leaving.add(child)
            self._background.start(self._refill())

    async def _end(self, child: Child, *, is_idle: bool = False) -> None:
        """End a child while a new one starts in its place. An idle one closes its resources."""
        self._living.discard(child)
        with contextlib.suppress(ValueError):
            self._idle.remove(child)
        self._background.start(self._refill())
        self._leaving.add(child)
        await (child.close() if is_idle and self._has_resources else child.end())
        self._leaving.discard(child)

    async def _refill(self) -> None:
        if self._closed or len(self._living) + self._starting >= self._size:
            return
        self._starting += 1
        try:
            self._give_back(await self._spawn())
        except (OSError, ToolsUnimportable) as error:
            log.error("child_start_failed: %s", error)
            while self._waiters:
                waiter = self._waiters.popleft()
                if not waiter.done():
                    waiter.set_exception(error)
        finally:
            self._starting -= 1

    async def _spawn(self) -> Child:
        child = await Child.start(self._command, max_frame=4 * self._max_result_bytes + _ROOM_BYTES)
        try:
            failed = await child.ready(_START_SECONDS)
        except BaseException:
            await child.end()
            raise
        if failed:
            await child.end()
            raise ToolsUnimportable(failed)
        child.on_lost = lambda: self._on_lost(child)
        self._living.add(child)
        return child

    def _command(self, socket: int, entry_flag: int) -> list[str]:
        return [
            sys.executable,
            "-P",
            "-m",
            "toolpool.workers.running.child",
            f"--socket={socket}",
            f"--entry-flag={entry_flag}",
            f"--parent={os.getpid()}",
            f"--max-result-bytes={self._max_result_bytes}",
            f"--calls={self._calls_per_child}",
            f"--imported-at={self._imported_at!r}",
            *(f"--tools={source}" for source in self._tools),
            *(f"--queue={queue}" for queue in self._queues),
        ]

    async def close(self) -> None:
        """End every child. Await running calls first: they would be lost."""
        self._closed = True
        await self._background.end()
        children = self._living | self._leaving
        self._living.clear()
        ends = [child.close() if self._has_resources else child.end() for child in children]
        await asyncio.gather(*ends, return_exceptions=True)


async def started_children(
    catalog: Catalog, size: int, tools: Sequence[str], queues: Sequence[str], settings: Settings
) -> ChildPool | None:
    """Children for the tools of this catalog on these queues; None if no tool runs in a child."""
    uses_them = any(tool.spec.run_in is RunIn.PROCESS for tool in catalog.tools.values())
    if not size or not uses_them:
        return None
    children = ChildPool(
        size=size,
        tools=tools,
        max_result_bytes=settings.max_result_bytes,
        calls_per_child=_CALLS_PER_CHILD,
        queues=queues,
        has_resources=bool(Resources(catalog.of_processes(queues))),
        imported_at=catalog.imported_at,
    )
    try:
        await children.start()
    except BaseException:
        await children.close()
        raise
    return children

"""The pool of child processes: started early, reused, recycled, killed as a tree."""

import asyncio
import logging
import os
import socket
import sys
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from contract.errors import ToolsUnimportable
from contract.outcome import Code, Executed, failure
from workers import descendants, exits, frames
from workers.context import ReportProgress
from workers.heartbeat import Lifetime, interval
from workers.output import Ending

log = logging.getLogger("toolpool.children")

_START_SECONDS = 60.0


class ChildLost(Exception):
    """Raised when a child's end of the socket closed or spoke out of form."""


class _Pipe(asyncio.Protocol):
    """Frames of one child: one await a frame, which asyncio's streams cannot do."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._arrived: deque[frames.Frame] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._lost = False

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= frames.HEADER_BYTES:
            end = frames.HEADER_BYTES + frames.body_length(self._received[: frames.HEADER_BYTES])
            if len(self._received) < end:
                break
            try:
                self._arrived.append(frames.unpack(self._received[frames.HEADER_BYTES : end]))
            except (msgspec.DecodeError, RecursionError):
                self._lost = True
            del self._received[:end]
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._wake()

    async def receive(self) -> frames.Frame:
        while not self._arrived:
            if self._lost:
                raise ChildLost
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._arrived.popleft()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Child:
    """One child process and the socket to it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        transport: asyncio.WriteTransport,
        pipe: _Pipe,
        calls: int,
    ) -> None:
        self.process = process
        self._transport = transport
        self._pipe = pipe
        self.calls_left = calls

    async def receive(self) -> frames.Frame:
        """The next frame. Raises `ChildLost`."""
        return await self._pipe.receive()

    def send(self, frame: frames.Frame) -> None:
        """Queue a frame; a lost child shows at `receive`."""
        self._transport.write(frames.pack(frame))

    async def end(self) -> int:
        """Kill the child with everything below it; its exit code (minus the signal's number)."""
        self._transport.close()
        if self.process.returncode is None:
            await asyncio.to_thread(descendants.end_tree, self.process.pid)
        else:
            descendants.end_group(self.process.pid)
        return await self.process.wait()

    async def exit_code(self) -> int:
        """How a child that closed its socket ended."""
        self._transport.close()
        try:
            async with asyncio.timeout(1.0):
                code = await self.process.wait()
        except TimeoutError:
            return await self.end()
        descendants.end_group(self.process.pid)
        return code


class ChildPool:
    """Runs calls in at most `size` child processes at once; the caller bounds how many it sends.

    `start` raises `ToolsUnimportable` when a child cannot load the tools.
    """

    def __init__(
        self, *, size: int, tools: Sequence[str], max_result: int, calls_per_child: int
    ) -> None:
        self._size = size
        self._tools = tools
        self._max_result = max_result
        self._calls_per_child = calls_per_child
        self._idle: deque[Child] = deque()
        self._living: set[Child] = set()
        self._waiters: deque[asyncio.Future[Child]] = deque()
        self._starting = 0
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def start(self) -> None:
        """Start every child and wait until they have loaded their tools."""
        children = await asyncio.gather(*(self._spawn() for _ in range(self._size)))
        self._idle.extend(children)

    async def run(self, run: frames.Run, report_progress: ReportProgress) -> Ending:
        """One call in one child. Cancellation kills the child; nothing else is raised."""
        try:
            child = await self._take()
        except (OSError, ToolsUnimportable) as error:
            reason = f"no process could be started: {error}"
            return Ending(failure(Code.INTERNAL, reason, Executed.NO))
        # The child passes on one sign of life an interval, and perhaps not the last.
        slack = interval(run.heartbeat) if run.heartbeat is not None else 0.0
        life = Lifetime(run.timeout, run.heartbeat, slack=slack)
        try:
            async with life:
                return await self._run_in(child, run, report_progress, life)
        except TimeoutError:
            await self._end(child)
            return Ending(life.outcome())
        except ChildLost:
            self._living.discard(child)
            self._in_background(self._refill())
            code = await child.exit_code()
            reason = f"the tool's process {exits.described(code)} in the middle of the call"
            details = {"exit_code": code}
            return Ending(failure(Code.CRASHED, reason, Executed.UNKNOWN, details=details))
        except BaseException:
            self._in_background(self._end(child))
            raise

    async def _run_in(
        self, child: Child, run: frames.Run, report_progress: ReportProgress, life: Lifetime
    ) -> Ending:
        child.send(run)
        child.calls_left -= 1
        frame = await child.receive()
        while isinstance(frame, (frames.Progressed, frames.Beat)):
            life.beat()
            if isinstance(frame, frames.Progressed):
                report_progress(frame.done, frame.total, frame.message)
            frame = await child.receive()
        if not isinstance(frame, frames.Done):
            raise ChildLost
        if frame.spent or child.calls_left <= 0:
            self._in_background(self._end(child))
        else:
            self._give_back(child)
        return Ending(frame.outcome, frame.whole)

    async def _take(self) -> Child:
        """An idle child, or the next one that starts. Raises what starting one raised."""
        if self._idle:
            return self._idle.popleft()
        if not self._starting:
            self._in_background(self._refill())
        waiter: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._give_back(waiter.result())
            raise

    def _give_back(self, child: Child) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(child)
                return
        self._idle.append(child)

    async def _end(self, child: Child) -> None:
        """End a child; a fresh one starts in its place meanwhile."""
        self._living.discard(child)
        self._in_background(self._refill())
        await child.end()

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

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)

    async def _spawn(self) -> Child:
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        transport, pipe = await asyncio.get_running_loop().create_connection(_Pipe, sock=ours)
        child = Child(process, transport, pipe, self._calls_per_child)
        try:
            async with asyncio.timeout(_START_SECONDS):
                frame = await child.receive()
        except (ChildLost, TimeoutError):
            frame = frames.Failed(error="its process ended, or hung, while it loaded the tools")
        except BaseException:
            await child.end()
            raise
        if isinstance(frame, frames.Failed):
            await child.end()
            raise ToolsUnimportable(frame.error)
        self._living.add(child)
        return child

    def _command(self, descriptor: int) -> list[str]:
        return [
            sys.executable,
            "-m",
            "workers.child",
            f"--socket={descriptor}",
            f"--parent={os.getpid()}",
            f"--max-result={self._max_result}",
            f"--calls={self._calls_per_child}",
            *(f"--tools={source}" for source in self._tools),
        ]

    async def close(self) -> None:
        """End every child. Calls still running in one are lost: wait for them before."""
        self._closed = True
        for task in list(self._background_tasks):
            task.cancel()
        await asyncio.gather(*self._background_tasks, return_exceptions=True)
        children, self._living = self._living, set()
        await asyncio.gather(*(child.end() for child in children), return_exceptions=True)

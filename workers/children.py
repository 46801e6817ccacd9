"""The pool of child processes: started before they are needed, reused, recycled, killed as a tree."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from contract.errors import ToolsUnimportable
from contract.outcome import Code, Executed, Outcome, failure
from workers import descendants, frames

log = logging.getLogger("toolpool.children")

_START_SECONDS = 60.0


class ChildLost(Exception):
    """Raised when a child's end of the socket closed or spoke out of form."""


class Child:
    """One child process and the socket to it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        calls: int,
    ) -> None:
        self.process = process
        self._reader = reader
        self._writer = writer
        self.calls_left = calls

    async def receive(self) -> frames.Frame:
        """The next frame. Raises `ChildLost`."""
        try:
            header = await self._reader.readexactly(frames.HEADER_BYTES)
            return frames.unpack(await self._reader.readexactly(frames.body_length(header)))
        except (EOFError, OSError, msgspec.DecodeError) as error:
            raise ChildLost(str(error)) from None

    def send(self, frame: frames.Frame) -> None:
        """Queue a frame; a lost child shows at `receive`."""
        self._writer.write(frames.pack(frame))

    async def end(self) -> int:
        """Kill the child with everything below it; its exit code (minus the signal's number)."""
        self._writer.close()
        if self.process.returncode is None:
            await asyncio.to_thread(descendants.end_tree, self.process.pid)
        else:
            descendants.end_group(self.process.pid)
        return await self.process.wait()

    async def exit_code(self) -> int:
        """How a child that closed its socket ended."""
        self._writer.close()
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
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def start(self) -> None:
        """Start every child and wait until they have loaded their tools."""
        children = await asyncio.gather(*(self._spawn() for _ in range(self._size)))
        self._idle.extend(children)

    async def run(self, run: frames.Run) -> Outcome:
        """One call in one child. Cancellation kills the child; nothing else is raised."""
        try:
            child = self._idle.popleft() if self._idle else await self._spawn()
        except (OSError, ToolsUnimportable) as error:
            return failure(Code.INTERNAL, f"no process could be started: {error}", Executed.NO)
        try:
            return await self._run_in(child, run)
        except ChildLost:
            self._living.discard(child)
            code = await child.exit_code()
            self._in_background(self._refill())
            return failure(
                Code.CRASHED,
                f"the tool's process {_death(code)}",
                Executed.UNKNOWN,
                details={"exit_code": code},
            )
        except BaseException:
            self._in_background(self._retire(child))
            raise

    async def _run_in(self, child: Child, run: frames.Run) -> Outcome:
        child.send(run)
        child.calls_left -= 1
        try:
            async with asyncio.timeout(run.timeout):
                frame = await child.receive()
        except TimeoutError:
            await self._retire(child, refill=False)
            self._in_background(self._refill())
            return failure(Code.TIMEOUT, "", Executed.UNKNOWN)
        if not isinstance(frame, frames.Done):
            raise ChildLost("unexpected frame")
        if frame.spent or child.calls_left <= 0:
            self._in_background(self._retire(child))
        else:
            self._idle.append(child)
        return frame.outcome

    async def _retire(self, child: Child, *, refill: bool = True) -> None:
        self._living.discard(child)
        await child.end()
        if refill:
            await self._refill()

    async def _refill(self) -> None:
        if self._closed or len(self._living) >= self._size:
            return
        try:
            self._idle.append(await self._spawn())
        except (OSError, ToolsUnimportable) as error:
            log.error("child_start_failed: %s", error)

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
        reader, writer = await asyncio.open_connection(sock=ours, limit=1 << 20)
        child = Child(process, reader, writer, self._calls_per_child)
        self._living.add(child)
        try:
            async with asyncio.timeout(_START_SECONDS):
                frame = await child.receive()
        except (ChildLost, TimeoutError):
            frame = frames.Failed(error="its process ended, or hung, while it loaded the tools")
        except BaseException:
            await self._retire(child, refill=False)
            raise
        if isinstance(frame, frames.Failed):
            await self._retire(child, refill=False)
            raise ToolsUnimportable(frame.error)
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


def _death(code: int) -> str:
    if code >= 0:
        return f"exited with code {code} in the middle of the call"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name} in the middle of the call"
    return f"was killed by signal {-code} in the middle of the call"

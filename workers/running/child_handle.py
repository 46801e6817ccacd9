"""A worker's handle of one child process: its socket and its exit."""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from typing import Self

import msgspec

from toolpool.workers import exit_status
from toolpool.workers.context import ReportProgress
from toolpool.workers.lifespan import CLOSING_SECONDS
from toolpool.workers.running import descendants, entry_flag, frames
from toolpool.workers.running.leak_check import OWN_TASK

_EXIT_SECONDS = 1.0
"""How many seconds a child may take to exit, after closing its socket, to get its exit code."""


class ChildLost(Exception):
    """Raised when a child process is lost."""


class _Breach(Exception):
    """Raised when a frame cannot be the child's own; the text says why."""


class RunningCall:
    """A run in a child.

    `done` raises `ChildLost`; the other callbacks are called on the event loop.
    """

    def __init__(
        self,
        run: int,
        *,
        on_beat: Callable[[], None],
        on_progress: ReportProgress,
        on_entered: Callable[[], None],
    ) -> None:
        self.run = run
        self._on_entered = on_entered
        self.done: asyncio.Future[frames.Done] = asyncio.get_running_loop().create_future()
        self._on_beat = on_beat
        self._on_progress = on_progress

    def take(self, frame: frames.Beat | frames.Progressed | frames.Entered) -> None:
        """Handle a progress report, a heartbeat, or the entry of the tool."""
        if isinstance(frame, frames.Entered):
            self._on_entered()
            return
        self._on_beat()
        if isinstance(frame, frames.Progressed):
            self._on_progress(frame.done, frame.total, frame.message)


class Child(asyncio.Protocol):
    """A child process. `lost` is why it is unusable; "" if its exit explains it.

    `on_lost` is called once, on the event loop.
    """

    def __init__(self, *, max_frame: int) -> None:
        self.lost: str | None = None
        self.calls = 0
        self.on_lost: Callable[[], None] = lambda: None
        self._max_frame = max_frame
        self._received = bytearray()
        self._running: RunningCall | None = None
        self._ready: asyncio.Future[frames.Ready | frames.Failed]
        self._ready = asyncio.get_running_loop().create_future()
        self._ending: asyncio.Task[int] | None = None

    @classmethod
    async def start(cls, command: Callable[[int, int], Sequence[str]], *, max_frame: int) -> Self:
        """Spawn `command` with the descriptors of its socket and entry flag. Raises OSError."""
        shared = entry_flag.create()
        ours, theirs = socket.socketpair()
        try:
            descriptors = theirs.fileno(), shared
            process = await asyncio.create_subprocess_exec(
                *command(*descriptors),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=descriptors,
                start_new_session=True,
            )
            child = cls(max_frame=max_frame)
            child._entry_flag = entry_flag.EntryFlag(shared)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(shared)
        child._socket, child._process = ours, process
        # A process that the tool started may keep the socket open after the child's own end.
        child._exit = asyncio.create_task(process.wait(), name=OWN_TASK)
        loop = asyncio.get_running_loop()
        try:
            child._transport, _ = await loop.create_connection(lambda: child, sock=ours)
        except BaseException:
            ours.close()
            process.kill()
            await child._exit
            raise
        child._exit.add_done_callback(child._exited)
        return child

    _socket: socket.socket
    _process: asyncio.subprocess.Process
    _transport: asyncio.Transport
    _exit: "asyncio.Task[int]"
    _entry_flag: entry_flag.EntryFlag
    _mark_before: int = 0
    """The flag's value when the last run was sent to the child."""

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_busy(self) -> bool:
        """Whether a run was sent and has not ended."""
        return self._running is not None

    async def ready(self, within: float) -> str:
        """Wait until it has loaded its tools. Returns the reason if it fails."""
        try:
            async with asyncio.timeout(within):
                frame = await self._ready
        except (ChildLost, TimeoutError):
            return "its process ended or hung while it loaded the tools"
        return frame.error if isinstance(frame, frames.Failed) else ""

    def give(self, frame: frames.Run, running: RunningCall) -> None:
        """Send it a call to run. Nothing else is sent until that call has ended."""
        self._mark_before = self._entry_flag.run
        if self.lost is not None:
            running.done.set_exception(ChildLost())
            return
        self._running = running
        self.calls += 1
        self._transport.write(frames.pack(frame))

    async def close(self) -> None:
        """Let an idle child close its resources and exit; then, or else, `end` it."""
        if self.lost is None and not self.is_busy:
            self._transport.write_eof()
            await asyncio.wait({self._exit}, timeout=CLOSING_SECONDS)
        await self.end()

    async def end(self) -> int:
        """Kill it and its descendants, and read its last frames; returns its exit code.

        The exit code is negative if a signal ended it.
        """
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end())
        return await asyncio.shield(self._ending)

    async def how_it_ended(self) -> str:
        """How a lost child ended, as the predicate of "the tool's process"."""
        if self.lost:
            await self.end()
            return self.lost
        done, _ = await asyncio.wait({self._exit}, timeout=_EXIT_SECONDS)
        code = await self.end()
        if not done or code == frames.CUT_OFF:
            return "closed its connection to the worker"
        return exit_status.described(code)

    @property
    def has_entered(self) -> bool:
        """Whether the tool of its last run may have been entered.

        Once the child has ended, this is certain.
        """
        return self._entry_flag.run != self._mark_before

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.returncode

    async def _end(self) -> int:
        if self._process.returncode is None:
            await asyncio.to_thread(descendants.end_tree, self._process.pid)
        else:
            descendants.end_group(self._process.pid)
        code = await asyncio.shield(self._exit)
        self._transport.abort()
        return code

    def _exited(self, exit_: "asyncio.Task[int]") -> None:
        """The child can send nothing more: read what it has written, and stop."""
        if not self._transport.is_closing():
            self._transport.pause_reading()
            left = self._max_frame
            while left > 0 and self.lost is None:
                try:
                    data = self._socket.recv(1 << 18)
                except OSError:
                    break
                if not data:
                    break
                left -= len(data)
                self.data_received(data)
        self._lose("")

    def data_received(self, data: bytes) -> None:
        """Handle data from the socket (called by the event loop)."""
        if self.lost is not None:
            return
        self._received += data
        try:
            while (frame := self._next_frame()) is not None:
                self._apply_frame(frame)
        except _Breach as breach:
            self._lose(str(breach))

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the socket (called by the event loop)."""
        self._lose("")

    def _next_frame(self) -> frames.Frame | None:
        received = self._received
        if len(received) < frames.HEADER_BYTES:
            return None
        end = frames.HEADER_BYTES + frames.body_length(received[: frames.HEADER_BYTES])
        if end > self._max_frame:
            raise _Breach("sent its worker an invalid frame")
        if len(received) < end:
            return None
        try:
            frame = frames.unpack(received[frames.HEADER_BYTES : end])
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise _Breach("sent its worker an invalid frame") from None
        del received[:end]
        return frame

    def _apply_frame(self, frame: frames.Frame) -> None:
        if isinstance(frame, frames.Run):
            raise _Breach("sent its worker an invalid frame")
        if frame.pid != self._process.pid:
            raise _Breach("was forked, and its fork answered in its place")
        running = self._running
        if isinstance(frame, (frames.Ready, frames.Failed)):
            if self._ready.done():
                raise _Breach("started twice")
            self._ready.set_result(frame)
        elif running is None or frame.run != running.run:
            raise _Breach("answered a call that it does not run")
        elif isinstance(frame, frames.Done):
            self._running = None
            if not running.done.done():
                running.done.set_result(frame)
        else:
            running.take(frame)

    def _lose(self, why: str) -> None:
        if self.lost is not None:
            return
        self.lost = why
        if not self._ready.done():
            self._ready.set_exception(ChildLost())
            self._ready.exception()  # it may not be awaited
        if self._running is not None and not self._running.done.done():
            self._running.done.set_exception(ChildLost())
            self._running.done.exception()
        self.on_lost()

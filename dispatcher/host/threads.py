"""Runs a blocking function beside the event loop, many calls for one switch of threads.

One thread does all where the function is quick. What waits behind a call that blocks is taken over
by other threads; a call that is not done in its time is given up, and its thread with it.
"""

import asyncio
import contextvars
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_HELP_SECONDS = 0.02
"""How long a thread may be at its calls before others take the rest of them."""
_THREADS_AT_MOST = 32


class _Call:
    """One call of the function."""

    __slots__ = ("arguments", "context", "error", "future", "has_run", "value")

    def __init__(self, arguments: tuple[Any, ...], future: "asyncio.Future[Any]") -> None:
        self.arguments = arguments
        self.context = contextvars.copy_context()
        self.future = future
        self.value: Any = None
        self.error: BaseException | None = None
        self.has_run = False

    def run(self, function: Callable[..., Any]) -> None:
        """In a thread."""
        try:
            self.value = self.context.run(function, *self.arguments)
        except BaseException as error:  # noqa: BLE001 - a hook may not end its thread
            self.error = error
        self.has_run = True

    def deliver(self) -> None:
        """On the event loop."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.value)
        elif isinstance(self.error, Exception) and not isinstance(self.error, StopIteration):
            self.future.set_exception(self.error)
        else:
            self.future.set_exception(RuntimeError(type(self.error).__name__))


_Batch = deque[_Call]


class HookThreads:
    """The threads of one function; started as they are needed, on the loop that asks first."""

    def __init__(self, name: str, function: Callable[..., Any], *, seconds: float) -> None:
        self._name = name
        self._function = function
        self._seconds = seconds
        self._gathered: list[_Call] = []
        self._batches: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0
        self._is_closed = False

    def call(self, arguments: tuple[Any, ...]) -> "asyncio.Future[Any]":
        """What the function returns, or raises; TimeoutError after the limit."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if not self._gathered:
            loop.call_soon(self._hand_over, loop)
        self._gathered.append(_Call(arguments, future))
        return future

    def close(self) -> None:
        """Let the threads end; one that blocks is left behind."""
        self._is_closed = True
        for _ in range(self._threads):
            self._batches.put(None)

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        gathered, self._gathered = self._gathered, []
        batch = deque(gathered)
        self._start(loop, 1)
        self._batches.put(batch)
        loop.call_later(_HELP_SECONDS, self._look_after, loop, batch, gathered)

    def _look_after(
        self, loop: asyncio.AbstractEventLoop, batch: _Batch, calls: list[_Call]
    ) -> None:
        _deliver([call for call in calls if call.has_run])  # their thread may be at one that blocks
        if all(call.future.done() for call in calls):
            return
        left: list[_Call] = []
        while batch:
            try:
                left.append(batch.popleft())
            except IndexError:
                break
        self._start(loop, len(left))
        for call in left:
            self._batches.put(deque([call]))
        loop.call_later(self._seconds - _HELP_SECONDS, _give_up, calls)

    def _start(self, loop: asyncio.AbstractEventLoop, wanted: int) -> None:
        """See that so many calls can be run at once, as far as threads may be started."""
        with self._lock:
            missing = min(wanted - self._idle, _THREADS_AT_MOST - self._threads)
            if self._is_closed or missing <= 0:
                return
            self._threads += missing
        for _ in range(missing):
            threading.Thread(
                target=self._run, args=(loop,), name=f"toolpool {self._name}", daemon=True
            ).start()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while (batch := self._next()) is not None:
            done: list[_Call] = []
            while batch:
                try:
                    call = batch.popleft()
                except IndexError:  # others have taken it
                    break
                if not call.future.done():
                    call.run(self._function)
                    done.append(call)
            self._tell(loop, done)
        with self._lock:
            self._threads -= 1

    def _next(self) -> _Batch | None:
        with self._lock:
            self._idle += 1
        try:
            return self._batches.get()
        finally:
            with self._lock:
                self._idle -= 1

    @staticmethod
    def _tell(loop: asyncio.AbstractEventLoop, done: list[_Call]) -> None:
        if not done:
            return
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(_deliver, done)


def _deliver(calls: list[_Call]) -> None:
    for call in calls:
        call.deliver()


def _give_up(calls: list[_Call]) -> None:
    for call in calls:
        if not call.future.done():
            call.future.set_exception(TimeoutError())

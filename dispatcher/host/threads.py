"""Runs a blocking function of the host in threads beside the event loop.

They are daemon threads, unlike those of `concurrent.futures`: a hung one does not hold up the exit
of the process.
"""

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

_THREADS_AT_MOST = 32


class _Call(NamedTuple):
    arguments: tuple[Any, ...]
    context: contextvars.Context
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"


class HookThreads:
    """The threads of one function, started as needed, 32 at most."""

    def __init__(self, name: str, function: Callable[..., Any], *, seconds: float) -> None:
        self._name = name
        self._function = function
        self._seconds = seconds
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads = 0
        self._is_closed = False

    def call(self, arguments: tuple[Any, ...]) -> "asyncio.Future[Any]":
        """Return or raise what the function does; TimeoutError after the limit."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        timer = loop.call_later(self._seconds, _settle, future, None, TimeoutError())
        future.add_done_callback(lambda _: timer.cancel())
        self._calls.put(_Call(arguments, contextvars.copy_context(), loop, future))
        if not self._idle.acquire(blocking=False) and self._threads < _THREADS_AT_MOST:
            self._threads += 1
            name = f"toolpool {self._name}"
            threading.Thread(target=self._run, name=name, daemon=True).start()
        return future

    def close(self) -> None:
        """Let the threads end; a blocked one is abandoned."""
        if not self._is_closed:
            self._is_closed = True
            for _ in range(self._threads):
                self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            if not call.future.done():  # its caller has timed out
                self._run_one(call)
            del call
            self._idle.release()

    def _run_one(self, call: _Call) -> None:
        value, error = None, None
        try:
            value = call.context.run(self._function, *call.arguments)
        except BaseException as raised:  # noqa: BLE001 - a hook must not end its thread
            error = raised
            if not isinstance(error, Exception) or isinstance(error, StopIteration):
                error = RuntimeError(type(raised).__name__)  # a future accepts no other
        with suppress(RuntimeError):  # the loop is closed, and no caller waits
            call.loop.call_soon_threadsafe(_settle, call.future, value, error)


def _settle(future: "asyncio.Future[Any]", value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)

"""Runs a blocking function of the host in threads beside the event loop."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from toolpool.contract.daemon_threads import DaemonThreads

_THREADS_AT_MOST = 32


class HookThreads:
    """The threads of one function, started as needed, 32 at most."""

    def __init__(self, name: str, function: Callable[..., Any], *, seconds: float) -> None:
        self._function = function
        self._seconds = seconds
        self._threads = DaemonThreads(f"toolpool {name}", at_most=_THREADS_AT_MOST)

    def call(self, arguments: tuple[Any, ...]) -> "asyncio.Future[Any]":
        """Return or raise what the function does; TimeoutError after the limit."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        timer = loop.call_later(self._seconds, _settle, future, None, TimeoutError())
        future.add_done_callback(lambda _: timer.cancel())
        self._threads.submit(lambda: self._run(arguments, loop, future))
        return future

    def close(self) -> None:
        """Let the threads end; a blocked one is abandoned."""
        self._threads.close()

    def _run(
        self,
        arguments: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        future: "asyncio.Future[Any]",
    ) -> None:
        if future.done():  # its caller has timed out
            return
        value, error = None, None
        try:
            value = self._function(*arguments)
        except BaseException as raised:  # noqa: BLE001 - a hook must not end its thread
            error = raised
            if not isinstance(error, Exception) or isinstance(error, StopIteration):
                error = RuntimeError(type(raised).__name__)  # a future accepts no other
        with suppress(RuntimeError):  # the loop is closed, and no caller waits
            loop.call_soon_threadsafe(_settle, future, value, error)


def _settle(future: "asyncio.Future[Any]", value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)

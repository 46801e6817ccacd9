"""Runs a blocking function of the host in threads beside the event loop."""

import asyncio
from collections.abc import Callable
from typing import Any

from toolpool.contract.daemon_threads import DaemonThreads, settle

_THREADS_AT_MOST = 32


class HookThreads:
    """The threads of one function, started as needed, 32 at most."""

    def __init__(self, name: str, function: Callable[..., Any], *, seconds: float) -> None:
        self._function = function
        self._seconds = seconds
        self._threads = DaemonThreads(f"toolpool {name}", at_most=_THREADS_AT_MOST)

    def call(self, arguments: tuple[Any, ...]) -> "asyncio.Future[Any]":
        """Return or raise what the function does; TimeoutError after the limit."""
        future = self._threads.call(self._function, *arguments)
        timer = future.get_loop().call_later(self._seconds, settle, future, None, TimeoutError())
        future.add_done_callback(lambda _: timer.cancel())
        return future

    def close(self) -> None:
        """Let the threads end; a blocked one is abandoned."""
        self._threads.close()

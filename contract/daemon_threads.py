"""Daemon threads: unlike those of `concurrent.futures`, a stuck one does not delay the exit."""

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
Work = Callable[[], None]


class DaemonThreads:
    """A pool that starts a thread if none is idle, up to `at_most`; further work is queued."""

    def __init__(self, name: str, *, at_most: int | None = None) -> None:
        self._name = name
        self._at_most = at_most
        self._work: queue.SimpleQueue[tuple[contextvars.Context, Work] | None]
        self._work = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self.threads = 0

    def submit(self, work: Work) -> None:
        """Run `work`, which must not raise, on a thread soon, in a copy of this context.

        Raises RuntimeError if no thread can be started.
        """
        with self._lock:
            if self._idle:
                self._idle -= 1
            elif self._at_most is None or self.threads < self._at_most:
                threading.Thread(target=self._serve, name=self._name, daemon=True).start()
                self.threads += 1
        self._work.put((contextvars.copy_context(), work))

    def call(self, function: Callable[..., T], *arguments: Any) -> "asyncio.Future[T]":
        """Call a function on a thread; the future of this event loop has what it returns or raises.

        It is not called if the future is done before a thread is free. A `BaseException` becomes a
        RuntimeError with the name of its class, and so does a StopIteration: no future accepts it.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            if future.done():
                return
            outcome: tuple[Any, BaseException | None]
            try:
                outcome = function(*arguments), None
            except BaseException as error:  # noqa: BLE001 - it is raised where the future is awaited
                is_accepted = isinstance(error, Exception) and not isinstance(error, StopIteration)
                outcome = None, error if is_accepted else RuntimeError(type(error).__name__)
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(settle, future, *outcome)

        self.submit(work)
        return future

    def close(self) -> None:
        """End the idle threads; a busy one ends after its work."""
        for _ in range(self.threads):
            self._work.put(None)

    def _serve(self) -> None:
        while (taken := self._work.get()) is not None:
            # A copy: context variables that a call sets are for that call alone.
            variables, work = taken
            variables.run(work)
            del taken, variables, work
            with self._lock:
                self._idle += 1


def settle(future: "asyncio.Future[Any]", value: Any, error: BaseException | None) -> None:
    """Set the result or the exception of a future, unless it is done."""
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)

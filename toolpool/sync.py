"""The dispatcher for blocking code."""

import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
)
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from toolpool.contract.event_loop import new_event_loop
from toolpool.contract.result import ToolResult
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.approvals import Approvals
from toolpool.dispatcher.events import CHANNELS, Event
from toolpool.dispatcher.lifetime import AFTER_A_FORK, MAKE_ANOTHER, Lifetime
from toolpool.loop_thread import (
    CLOSED_AT_EXIT,
    NOT_OPEN,
    OPEN_ALREADY,
    OWN_THREAD,
    Stage,
    as_coroutine,
    each,
    end_tasks,
    give_up,
)
from toolpool.pool import Dispatcher

T = TypeVar("T")
P = ParamSpec("P")
AskedT = TypeVar("AskedT")

_STOP_SECONDS = 5.0
_EXIT_SECONDS = 2.0
"""How many seconds an open dispatcher may delay the end of the program."""


def _blocking(
    method: Callable[Concatenate[AskedT, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """The blocking form of a method: it runs on the dispatcher's loop."""

    @functools.wraps(method)
    def blocking(self: Any, /, *args: P.args, **options: P.kwargs) -> T:
        work = getattr(self._opened(), method.__name__)(*args, **options)
        result: T = self._run(work)
        return result

    return blocking


def _made_by(
    make: Callable[P, AbstractAsyncContextManager[Dispatcher]],
) -> "Callable[P, SyncDispatcher]":
    @functools.wraps(make)
    def made(*args: P.args, **options: P.kwargs) -> "SyncDispatcher":
        return SyncDispatcher(make(*args, **options))

    return made


class SyncApprovals:
    """The blocking form of `Approvals`."""

    def __init__(
        self, approvals: Approvals, run: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        self._approvals = approvals
        self._run = run

    waiting = _blocking(Approvals.waiting)
    get = _blocking(Approvals.get)
    approve = _blocking(Approvals.approve)
    deny = _blocking(Approvals.deny)

    def _opened(self) -> Approvals:
        return self._approvals


class SyncDispatcher:
    """A `Dispatcher` on its own event loop, in its own thread.

    Safe to use from any number of threads at once. Use it as `with SyncDispatcher.connect(url) as
    dispatcher`, or call `open()` and `close()` yourself. Every method raises RuntimeError if the
    dispatcher is not open, or belongs to the process before a fork. If it is never closed, it
    delays the end of the program by two seconds at most.
    """

    def __init__(self, dispatcher: AbstractAsyncContextManager[Dispatcher]) -> None:
        self._manager = dispatcher
        self._lifetime = Lifetime()  # counts forks
        self._stage = Stage.NEW
        self._lock = threading.RLock()  # a signal handler may take it while its thread holds it
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None
        self._dispatcher: Dispatcher | None = None
        self._asked: set[concurrent.futures.Future[Any]] = set()

    connect = staticmethod(_made_by(Dispatcher.connect))
    local = staticmethod(_made_by(Dispatcher.local))
    in_memory = staticmethod(_made_by(Dispatcher.in_memory))

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *raised: object) -> None:
        self.close()

    def open(self) -> Self:
        """Connect, or start the server and workers; return self. Undo with `close`.

        Raises `Misconfigured` as entering a `Dispatcher` does.
        """
        if self._lifetime.is_forked:
            raise RuntimeError(AFTER_A_FORK)
        with self._lock:
            if self._stage is Stage.CLOSED:
                raise RuntimeError(self._what_is_wrong())
            if self._stage is not Stage.NEW:
                raise RuntimeError(OPEN_ALREADY)
            self._start_loop()
            self._stage = Stage.OPEN
        CLOSED_AT_EXIT.add(self)
        try:
            self._dispatcher = self._run(self._manager.__aenter__())
        except BaseException:
            self.close()
            raise
        return self

    def _start_loop(self) -> None:
        self._loop = new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name="dispatcher", daemon=True)
        try:
            thread.start()
        except BaseException:
            self._loop.close()
            raise
        self._thread = thread

    def close(self) -> None:
        """Answer the waiting calls and close every connection. Idempotent.

        Calls that no other dispatcher waits for are ended; background calls go on. Does nothing in
        a forked process: the connections belong to its parent.
        """
        self._close(None, _STOP_SECONDS)

    def close_at_exit(self) -> None:
        """Close it within the time that the end of a program may take."""
        with suppress(Exception):
            self._close(_EXIT_SECONDS, _STOP_SECONDS / 10)

    def _close(self, seconds: float | None, stop_seconds: float) -> None:
        """Close; `seconds` limit the orderly part, `stop_seconds` the rest."""
        if self._lifetime.is_forked:
            return
        if self._stage is Stage.OPEN:
            self._refuse_own_thread()
        with self._lock:
            was, self._stage = self._stage, Stage.CLOSED
        if was is not Stage.OPEN:
            return
        CLOSED_AT_EXIT.discard(self)
        try:
            if self._dispatcher is not None:
                leaving = self._manager.__aexit__(None, None, None)
                asyncio.run_coroutine_threadsafe(as_coroutine(leaving), self._loop).result(seconds)
        finally:
            self._stop(stop_seconds)

    def _stop(self, seconds: float) -> None:
        """Cancel the remaining waits, then end the loop and its thread."""
        with suppress(concurrent.futures.TimeoutError):
            asyncio.run_coroutine_threadsafe(end_tasks(), self._loop).result(seconds)
        self._loop.call_soon_threadsafe(self._loop.stop)
        assert self._thread is not None
        self._thread.join(seconds)
        if not self._thread.is_alive():
            self._loop.close()
        for future in list(self._asked):
            future.cancel()

    @property
    def specs(self) -> list[ToolSpec]:
        """The tools that can be called, by name."""
        return self._opened().specs

    @property
    def refused(self) -> Mapping[str, str]:
        """Why each published tool with an unusable schema is not offered, by name."""
        return self._opened().refused

    def tools(self, format: str = "anthropic", *, only: Collection[str] | None = None) -> list[Any]:
        """The tools to offer the model, in a provider's form; see `Dispatcher.tools`."""
        return self._opened().tools(format, only=only)

    dispatch = _blocking(Dispatcher.dispatch)
    call = _blocking(Dispatcher.call)
    resume = _blocking(Dispatcher.resume)
    preview = _blocking(Dispatcher.preview)
    cancel = _blocking(Dispatcher.cancel)
    deny = _blocking(Dispatcher.deny)
    allow = _blocking(Dispatcher.allow)
    task_result = _blocking(Dispatcher.task_result)
    task_cancel = _blocking(Dispatcher.task_cancel)
    task_list = _blocking(Dispatcher.task_list)
    output = _blocking(Dispatcher.output)

    def check(
        self, response: Any, *, only: Collection[str] | None = None
    ) -> list[ToolResult | None]:
        """Validate each call; see `Dispatcher.check`."""
        return self._opened().check(response, only=only)

    def in_flight(self, session: str | None = None) -> int:
        """The number of open calls, of one session or of all."""
        return self._opened().in_flight(session)

    def completed(self, *, session: str | None = None) -> Iterator[str]:
        """Yield the handles of background calls as they end; see `Dispatcher.completed`.

        Blocks for the next one, until the dispatcher is closed.
        """
        return self._stream(lambda opened: opened.completed(session=session))

    @property
    def approvals(self) -> SyncApprovals:
        """The approvals of the dispatcher's tenant; see `Dispatcher.approvals`."""
        return SyncApprovals(self._opened().approvals, self._run)

    def events(
        self,
        since: str | None = None,
        channels: Collection[str] = CHANNELS,
        *,
        session: str | None = None,
    ) -> Iterator[Event]:
        """Yield events until the dispatcher is closed; blocks. See `Dispatcher.events`."""
        return self._stream(lambda opened: opened.events(since, channels, session=session))

    def _opened(self) -> Dispatcher:
        """The dispatcher. Raises RuntimeError unless it is open and belongs to this process."""
        if (
            self._stage is not Stage.OPEN
            or self._lifetime.is_forked
            or (opened := self._dispatcher) is None
        ):
            raise RuntimeError(self._what_is_wrong())
        return opened

    def _what_is_wrong(self) -> str:
        if self._lifetime.is_forked:
            return AFTER_A_FORK
        if self._stage is Stage.CLOSED:
            return f"this dispatcher is closed: {MAKE_ANOTHER}"
        return NOT_OPEN

    def _refuse_own_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise RuntimeError(OWN_THREAD)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future, is_asked = None, False
        try:
            if self._lifetime.is_forked:  # before the lock, which another thread may hold
                raise RuntimeError(AFTER_A_FORK)
            self._refuse_own_thread()
            with self._lock:  # so that `close` sees every earlier request
                if self._stage is not Stage.OPEN:
                    raise RuntimeError(self._what_is_wrong())
                is_asked = True
                future = asyncio.run_coroutine_threadsafe(work, self._loop)
                self._asked.add(future)
            future.add_done_callback(self._asked.discard)
            return future.result()
        except BaseException as error:
            if future is not None:
                future.cancel()
            elif is_asked and not self._has_closed():
                give_up(work, self._loop)
            else:
                work.close()
            is_of_close = isinstance(error, (concurrent.futures.CancelledError, RuntimeError))
            if is_of_close and self._has_closed():
                raise RuntimeError(self._what_is_wrong()) from None
            raise

    def _has_closed(self) -> bool:
        return self._stage is Stage.CLOSED

    def _stream(self, follow: Callable[[Dispatcher], AsyncIterator[T]]) -> Iterator[T]:
        opened = self._opened()

        async def on_loop() -> AsyncIterator[T]:
            return follow(opened)

        return each(self._run(on_loop()), self._run, self._has_closed)

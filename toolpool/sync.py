"""The dispatcher for blocking code."""

import asyncio
import concurrent.futures
import threading
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Self, TypeVar

from toolpool.contract.result import ToolResult
from toolpool.contract.settings import Settings
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.approvals import Approvals
from toolpool.dispatcher.events import CHANNELS, Event
from toolpool.dispatcher.lifetime import AFTER_A_FORK, MAKE_ANOTHER, Lifetime
from toolpool.dispatcher.observer import Observer
from toolpool.dispatcher.observers.observer_setup import Record
from toolpool.dispatcher.policy.approval_view import Approval
from toolpool.dispatcher.policy.hooks import Hooks
from toolpool.dispatcher.policy.verdict_types import Preview
from toolpool.dispatcher.turn_result import TurnResult
from toolpool.local import ToolSource
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
from toolpool.workers.credentials.secret_sources import Resolve
from toolpool.workers.tool import Tool

T = TypeVar("T")

_STOP_SECONDS = 5.0
_EXIT_SECONDS = 2.0
"""How long an open dispatcher may hold up the end of the program."""


class SyncApprovals:
    """The blocking form of `Approvals`."""

    def __init__(
        self, approvals: Approvals, run: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        self._approvals = approvals
        self._run = run

    def waiting(self, *, session: str | None = None) -> list[Approval]:
        """The pending approvals, of one session or of all, the first to expire first."""
        found: list[Approval] = self._run(self._approvals.waiting(session=session))
        return found

    def get(self, id: str) -> Approval:
        """An approval in any state; see `Approvals.get`."""
        found: Approval = self._run(self._approvals.get(id))
        return found

    def approve(self, id: str, *, by: str, digest: str | None = None, reason: str = "") -> Approval:
        """Let a call run, once, with its exact arguments; see `Approvals.approve`."""
        work = self._approvals.approve(id, by=by, digest=digest, reason=reason)
        decided: Approval = self._run(work)
        return decided

    def deny(self, id: str, *, by: str, digest: str | None = None, reason: str = "") -> Approval:
        """Have a call answered `aborted.denied`; see `Approvals.deny`."""
        work = self._approvals.deny(id, by=by, digest=digest, reason=reason)
        decided: Approval = self._run(work)
        return decided


class SyncDispatcher:
    """A `Dispatcher` on its own event loop, in its own thread.

    Safe to use from any number of threads at once. Use it as `with SyncDispatcher.connect(url) as
    dispatcher`, or call `open()` and `close()` yourself. Every method raises RuntimeError if it is
    not open, or belongs to the process before a fork. If it is never closed, it holds up the end of
    the program for two seconds at most.
    """

    def __init__(self, dispatcher: AbstractAsyncContextManager[Dispatcher]) -> None:
        self._manager = dispatcher
        self._lifetime = Lifetime()  # counts forks
        self._stage = Stage.NEW
        self._lock = threading.RLock()  # a signal handler may ask while its thread holds it
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None
        self._dispatcher: Dispatcher | None = None
        self._asked: set[concurrent.futures.Future[Any]] = set()

    @classmethod
    def connect(
        cls,
        redis_url: str | None = None,
        *,
        broker_url: str | None = None,
        settings: Settings | None = None,
        only: Collection[str] | None = None,
        catalog: str | Path | None = None,
        hooks: Hooks | None = None,
        observers: Sequence[Observer] = (),
        record: Record | None = None,
    ) -> Self:
        """A dispatcher for workers on a Redis or Valkey server; see `Dispatcher.connect`."""
        return cls(
            Dispatcher.connect(
                redis_url,
                broker_url=broker_url,
                settings=settings,
                only=only,
                catalog=catalog,
                hooks=hooks,
                observers=observers,
                record=record,
            )
        )

    @classmethod
    def local(
        cls,
        tools: Sequence[ToolSource] = (),
        *,
        settings: Settings | None = None,
        hooks: Hooks | None = None,
        observers: Sequence[Observer] = (),
        record: Record | None = None,
    ) -> Self:
        """A dispatcher with its own embedded server and workers; see `Dispatcher.local`."""
        return cls(
            Dispatcher.local(
                tools, settings=settings, hooks=hooks, observers=observers, record=record
            )
        )

    @classmethod
    def in_memory(
        cls,
        tools: Sequence[Tool | ModuleType],
        *,
        settings: Settings | None = None,
        only: Collection[str] | None = None,
        hooks: Hooks | None = None,
        observers: Sequence[Observer] = (),
        record: Record | None = None,
        secrets: Resolve | None = None,
    ) -> Self:
        """A dispatcher and worker inside this process; see `Dispatcher.in_memory`."""
        return cls(
            Dispatcher.in_memory(
                tools,
                settings=settings,
                only=only,
                hooks=hooks,
                observers=observers,
                record=record,
                secrets=secrets,
            )
        )

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
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name="dispatcher", daemon=True)
        try:
            thread.start()
        except BaseException:
            self._loop.close()
            raise
        self._thread = thread

    def close(self) -> None:
        """Cancel running calls and close every connection. Idempotent.

        Calls that other threads wait for are answered. Does nothing in a forked process: the
        connections belong to its parent.
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

    def dispatch(
        self,
        response: Any,
        *,
        session: str | None = None,
        turn: str | None = None,
        only: Collection[str] | None = None,
        context: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        wait: float | None = None,
        format: str | None = None,
        again: bool = False,
    ) -> TurnResult:
        """Run every tool call of a model response; see `Dispatcher.dispatch`.

        An interrupted wait (Ctrl-C) cancels the calls.
        """
        return self._run(
            self._opened().dispatch(
                response,
                session=session,
                turn=turn,
                only=only,
                context=context,
                timeout=timeout,
                wait=wait,
                format=format,
                again=again,
            )
        )

    def resume(
        self,
        messages: Sequence[Any],
        *,
        session: str,
        only: Collection[str] | None = None,
        context: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        wait: float | None = None,
        format: str | None = None,
    ) -> list[Any]:
        """Answer every unanswered call of a conversation; see `Dispatcher.resume`."""
        return self._run(
            self._opened().resume(
                messages,
                session=session,
                only=only,
                context=context,
                timeout=timeout,
                wait=wait,
                format=format,
            )
        )

    def check(
        self, response: Any, *, only: Collection[str] | None = None
    ) -> list[ToolResult | None]:
        """Validate each call; see `Dispatcher.check`."""
        return self._opened().check(response, only=only)

    def preview(self, response: Any, **options: Any) -> list[Preview]:
        """Preview each call; see `Dispatcher.preview`."""
        return self._run(self._opened().preview(response, **options))

    def in_flight(self, session: str | None = None) -> int:
        """The number of open calls, of one session or of all."""
        return self._opened().in_flight(session)

    def cancel(
        self, session: str | None = None, *, call_id: str | None = None, **audited: str
    ) -> int:
        """Cancel calls that other threads wait for; see `Dispatcher.cancel`."""
        return self._run(self._opened().cancel(session, call_id=call_id, **audited))

    def deny(self, tool: str, *, reason: str, **narrowed: Any) -> None:
        """Switch a tool off for the whole fleet; see `Dispatcher.deny`."""
        self._run(self._opened().deny(tool, reason=reason, **narrowed))

    def allow(self, tool: str, **narrowed: Any) -> None:
        """Undo a `deny`; see `Dispatcher.allow`."""
        self._run(self._opened().allow(tool, **narrowed))

    def task_result(
        self, handle: str, *, session: str | None = None, wait: float = 0.0
    ) -> ToolResult | None:
        """The final result of a background call; see `Dispatcher.task_result`."""
        return self._run(self._opened().task_result(handle, session=session, wait=wait))

    def task_cancel(self, handle: str, *, session: str | None = None) -> ToolResult:
        """Stop a background call; see `Dispatcher.task_cancel`."""
        return self._run(self._opened().task_cancel(handle, session=session))

    def task_list(self, *, session: str | None = None) -> list[dict[str, Any]]:
        """A session's background calls; see `Dispatcher.task_list`."""
        return self._run(self._opened().task_list(session=session))

    def output(self, handle: str, *, session: str | None = None, page: int = 1) -> dict[str, Any]:
        """A page of a full output; see `Dispatcher.output`."""
        return self._run(self._opened().output(handle, session=session, page=page))

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
        self, since: str | None = None, channels: Collection[str] = CHANNELS
    ) -> Iterator[Event]:
        """Yield events, blocking for the next one, until it is closed; see `Dispatcher.events`."""
        return self._stream(lambda opened: opened.events(since, channels))

    def _opened(self) -> Dispatcher:
        """The dispatcher. Raises RuntimeError unless it is open, in this process."""
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

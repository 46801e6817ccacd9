"""The dispatcher for blocking code."""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from types import ModuleType, TracebackType
from typing import Any, Self, TypeVar

from contract.result import ToolResult
from contract.settings import Settings
from dispatcher.turn import TurnResult
from toolpool.local import ToolSource
from toolpool.pool import Dispatcher
from workers.tool import Tool

T = TypeVar("T")


class SyncDispatcher:
    """A `Dispatcher` on an event loop of its own, in a thread of its own.

    Safe to use from any number of threads at once. Use it as `with SyncDispatcher.connect(url) as
    dispatcher`.
    """

    def __init__(self, dispatcher: AbstractAsyncContextManager[Dispatcher]) -> None:
        self._manager = dispatcher
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="dispatcher", daemon=True
        )

    @classmethod
    def connect(cls, redis_url: str | None = None, **options: Any) -> Self:
        """See `Dispatcher.connect`."""
        return cls(Dispatcher.connect(redis_url, **options))

    @classmethod
    def local(cls, tools: Sequence[ToolSource] = (), *, settings: Settings | None = None) -> Self:
        """See `Dispatcher.local`."""
        return cls(Dispatcher.local(tools, settings=settings))

    @classmethod
    def in_memory(cls, tools: Sequence[Tool | ModuleType], **options: Any) -> Self:
        """See `Dispatcher.in_memory`."""
        return cls(Dispatcher.in_memory(tools, **options))

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._dispatcher = self._run(self._manager.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._run(self._manager.__aexit__(kind, error, trace))
        finally:
            self._stop()

    def tools(self, format: str = "anthropic", **options: Any) -> list[dict[str, Any]]:
        """See `Dispatcher.tools`."""
        return self._dispatcher.tools(format, **options)

    def dispatch(self, response: Any, **options: Any) -> TurnResult:
        """See `Dispatcher.dispatch`. An interrupted wait (Ctrl-C) cancels the calls."""
        return self._run(self._dispatcher.dispatch(response, **options))

    def check(self, response: Any, **options: Any) -> list[ToolResult | None]:
        """See `Dispatcher.check`."""
        return self._dispatcher.check(response, **options)

    def cancel(self, session: str | None = None, *, call_id: str | None = None) -> int:
        """See `Dispatcher.cancel`: for calls that another thread waits for."""
        return self._run(self._dispatcher.cancel(session, call_id=call_id))

    def task_result(
        self, handle: str, *, session: str | None = None, wait: float = 0.0
    ) -> ToolResult | None:
        """See `Dispatcher.task_result`."""
        return self._run(self._dispatcher.task_result(handle, session=session, wait=wait))

    def task_cancel(self, handle: str, *, session: str | None = None) -> ToolResult:
        """See `Dispatcher.task_cancel`."""
        return self._run(self._dispatcher.task_cancel(handle, session=session))

    def task_list(self, *, session: str | None = None) -> list[dict[str, Any]]:
        """See `Dispatcher.task_list`."""
        return self._run(self._dispatcher.task_list(session=session))

    def output(self, handle: str, *, session: str | None = None, page: int = 1) -> dict[str, Any]:
        """See `Dispatcher.output`."""
        return self._run(self._dispatcher.output(handle, session=session, page=page))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

"""Resources of a tools module, opened once in each process that runs its tools."""

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from typing import Any

from toolpool.contract import logs
from toolpool.contract.daemon_threads import DaemonThreads
from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.workers import safe_text
from toolpool.workers.tool import Tool
from toolpool.workers.tool_loading import failed

log = logs.logger("lifespan")

CLOSING_SECONDS = 5.0
"""How long a process may take to close its resources, in seconds."""


class Lifespan:
    """The resources of the tools of a module: see `lifespan`."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.is_async = inspect.isasyncgenfunction(function)
        self.name = f"{function.__module__}.{function.__qualname__}"
        if not self.is_async and not inspect.isgeneratorfunction(function):
            raise ToolDeclarationInvalid(
                f"@lifespan {self.name} must be a function that yields the resources once, as for "
                "contextlib.contextmanager"
            )
        if inspect.signature(function).parameters:
            raise ToolDeclarationInvalid(f"@lifespan {self.name} must have no parameters")


def lifespan(function: Callable[[], AsyncIterator[Any] | Iterator[Any]]) -> Lifespan:
    """Declare the resources of a tools module, such as a database pool or an HTTP client.

    The function yields them once, and closes them after the `yield`. It is called once in each
    process that runs tools of the module: an `async def` on the worker's event loop, any other
    in a thread, and in each child process for tools with `run_in="process"`, for which it must not
    be `async`. Tools get what it yields as `ToolContext.resources`. Modules may share one by
    importing it. Raises `ToolDeclarationInvalid`.
    """
    return Lifespan(function)


def lifespan_of(tool: Tool) -> Lifespan | None:
    """The lifespan in a tool's module. Raises `ToolDeclarationInvalid` if there are several."""
    module = sys.modules.get(tool.__module__)
    found = {id(v): v for v in vars(module).values() if isinstance(v, Lifespan)} if module else {}
    if len(found) > 1:
        names = ", ".join(sorted(each.name for each in found.values()))
        raise ToolDeclarationInvalid(f"{tool.__module__} has several lifespans: {names}; keep one")
    return next(iter(found.values()), None)


class Resources:
    """The open resources of the tools of one process, by tool."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._lifespans: dict[str, Lifespan] = {}
        for tool in tools:
            if (found := lifespan_of(tool)) is not None:
                self._lifespans[tool.name] = found
        self._values: dict[int, Any] = {}
        self._closing = asyncio.Event()
        self.on_ended: Callable[[], None] = lambda: None
        """Called if they end before they are closed."""
        self._holding: asyncio.Task[None] | None = None

    def of(self, tool: Tool) -> Any:
        """What the lifespan of a tool's module yielded; None without a lifespan."""
        found = self._lifespans.get(tool.name)
        return None if found is None else self._values[id(found)]

    async def open(self) -> None:
        """Open each once, on this event loop. Raises `ToolsUnimportable` if one fails."""
        if not self._lifespans:
            return
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._holding = asyncio.create_task(self._hold(opened))
        try:
            await opened
        except BaseException:
            await self.close()
            raise

    async def _hold(self, opened: "asyncio.Future[None]") -> None:
        """Open and close in one task: a cancel scope of anyio may not be left in another."""
        async with AsyncExitStack() as stack:
            for each in dict.fromkeys(self._lifespans.values()):
                manager = asynccontextmanager(each.function)() if each.is_async else _InThread(each)
                try:
                    self._values[id(each)] = await stack.enter_async_context(manager)
                except BaseException as error:
                    if not opened.done():
                        opened.set_exception(failed(each.name, "was opened", error))
                    if (task := asyncio.current_task()) is not None and task.cancelling():
                        raise
                    return
            if not opened.done():
                opened.set_result(None)
            try:
                await self._closing.wait()
            finally:
                if not self._closing.is_set():
                    log.error("lifespan_ended: the resources of tools ended by themselves")
                    self.on_ended()

    async def close(self) -> None:
        """Close them, the last opened first. Never raises for what a lifespan does."""
        if self._holding is None:
            return
        self._closing.set()
        await asyncio.wait({self._holding}, timeout=CLOSING_SECONDS)
        if not self._holding.done():
            self._holding.cancel()
            log.warning("lifespan_not_closed: it took more than %g s", CLOSING_SECONDS)
        elif not self._holding.cancelled() and (error := self._holding.exception()) is not None:
            log.warning("lifespan_not_closed: %s", safe_text.name_of(error))

    def open_in_child(self) -> ExitStack:
        """Open each in a child process; the returned stack closes them.

        Raises `ToolsUnimportable` if one fails, and `ToolDeclarationInvalid` if one is `async`.
        """
        stack = ExitStack()
        for each in dict.fromkeys(self._lifespans.values()):
            if each.is_async:
                raise ToolDeclarationInvalid(
                    f"@lifespan {each.name} is `async`, and its module has tools that run in child "
                    "processes, which have no event loop of their own: write it as a plain `def`"
                )
            try:
                manager = contextmanager(each.function)()
                self._values[id(each)] = stack.enter_context(manager)
            except BaseException as error:
                stack.close()
                raise failed(each.name, "was opened", error) from error
        return stack


class _InThread(AbstractAsyncContextManager[Any]):
    """A blocking lifespan that is opened and closed in one thread."""

    def __init__(self, lifespan: Lifespan) -> None:
        self._manager = contextmanager(lifespan.function)()
        self._thread = DaemonThreads("lifespan", at_most=1)

    async def __aenter__(self) -> Any:
        return await self._thread.call(self._manager.__enter__)

    async def __aexit__(self, *raised: Any) -> None:
        await self._thread.call(self._manager.__exit__, None, None, None)
        self._thread.close()

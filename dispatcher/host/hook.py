"""Asks a function of the host: sync or async, within a time limit."""

import asyncio
import inspect
from typing import Any

from toolpool.contract.errors import Misconfigured
from toolpool.contract.importing import imported
from toolpool.dispatcher.host.threads import HookThreads


class HookFailed(Exception):
    """Raised where a hook raised or took too long. The text names no value, `kind` the exception.

    The cause is the exception that the hook raised, if it did.
    """

    def __init__(self, name: str, kind: str) -> None:
        super().__init__(f"{name} failed: {kind}")
        self.kind = kind


class Hook:
    """A function of the host under the name that logs know it by.

    A sync function runs in a thread, so that one that blocks holds up nobody. Raises
    `Misconfigured` for what cannot be called.
    """

    def __init__(self, name: str, function: Any, *, seconds: float) -> None:
        self.name = name
        function = imported(name, function) if isinstance(function, str) else function
        if not callable(function):
            raise Misconfigured(f"{name} must be a function, not {type(function).__name__}")
        self._function = function
        self.path = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
        self._seconds = seconds
        self._threads: HookThreads | None = None
        called = getattr(function, "__call__", None)  # noqa: B004 - that of its class
        if not inspect.iscoroutinefunction(function) and not inspect.iscoroutinefunction(called):
            self._threads = HookThreads(name, function, seconds=seconds)

    async def ask(self, *arguments: Any) -> Any:
        """What the function answers. Raises `HookFailed`."""
        try:
            if self._threads is not None:
                answer = await self._threads.call(arguments)
                if answer is None or not inspect.isawaitable(answer):  # to look takes a while
                    return answer
            else:
                answer = self._function(*arguments)
            async with asyncio.timeout(self._seconds):
                return await answer
        except TimeoutError as error:
            took = f"it took longer than {self._seconds:g} s"
            raise HookFailed(self.name, took) from error
        except (KeyboardInterrupt, GeneratorExit):  # not of the hook's own making
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise HookFailed(self.name, type(error).__name__) from error
        except BaseException as error:
            raise HookFailed(self.name, type(error).__name__) from error

    def close(self) -> None:
        """Let its threads end. Idempotent."""
        if self._threads is not None:
            self._threads.close()


def hook_of(name: str, function: Any, *, seconds: float) -> Hook | None:
    """The hook, if there is a function. Raises `Misconfigured`."""
    if function is None or function == "":
        return None
    return Hook(name, function, seconds=seconds)

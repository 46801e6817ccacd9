"""Calls a function of the host, sync or async, within a time limit."""

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any

from toolpool.contract.errors import Misconfigured
from toolpool.contract.importing import imported
from toolpool.dispatcher.host.threads import HookThreads


class HookFailed(Exception):
    """Raised if a hook raised or took too long.

    The text contains no value; `kind` is the class of the exception. The cause is the exception
    that the hook raised, if it did.
    """

    def __init__(self, name: str, kind: str) -> None:
        super().__init__(f"{name} failed: {kind}")
        self.kind = kind


class Hook:
    """A function of the host, under the name used in logs.

    A sync function runs in a thread, so that it cannot block the event loop. Raises `Misconfigured`
    if it is not callable.
    """

    def __init__(self, name: str, function: Any, *, seconds: float) -> None:
        self.name = name
        function = imported(name, function) if isinstance(function, str) else function
        if not callable(function):
            raise Misconfigured(f"{name} must be a function, not {type(function).__name__}")
        self._function = function
        self.path = ":".join(
            getattr(function, name, "") or type(function).__name__
            for name in ("__module__", "__qualname__")
        )
        self._seconds = seconds
        self._threads: HookThreads | None = None
        called = getattr(function, "__call__", None)  # noqa: B004 - that of its class
        if not inspect.iscoroutinefunction(function) and not inspect.iscoroutinefunction(called):
            self._threads = HookThreads(name, function, seconds=seconds)

    async def ask(self, *arguments: Any) -> Any:
        """Return the function's answer. Raises `HookFailed`."""
        try:
            if self._threads is not None:
                answer = await self._threads.call(arguments)
                if answer is None or not inspect.isawaitable(answer):  # the check is slow
                    return answer
            else:
                answer = self._function(*arguments)
            return await self._within(answer)
        except TimeoutError as error:
            took = f"it took longer than {self._seconds:g} s"
            raise HookFailed(self.name, took) from error
        except (HookFailed, KeyboardInterrupt, GeneratorExit):
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise HookFailed(self.name, type(error).__name__) from error
        except BaseException as error:
            raise HookFailed(self.name, type(error).__name__) from error

    async def _within(self, answer: Awaitable[Any]) -> Any:
        """The result of an awaitable. Raises TimeoutError at the limit, and `HookFailed`.

        It runs as a task. If the task ignores its cancellation, it is not awaited, and its result
        is dropped.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._seconds
        task = asyncio.ensure_future(_caught(answer))
        try:
            await asyncio.wait({task}, timeout=self._seconds)
        finally:
            task.cancel()
        if not task.done() or loop.time() > ends_at:
            raise TimeoutError
        value, error = task.result()
        if error is not None:
            raise HookFailed(self.name, type(error).__name__) from error
        return value

    def close(self) -> None:
        """Let its threads end. Idempotent."""
        if self._threads is not None:
            self._threads.close()


async def _caught(answer: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """The result, or the exception as a value: a raised SystemExit would end the event loop."""
    try:
        return await answer, None
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise
    except BaseException as error:  # noqa: BLE001 - the caller reports it
        return None, error


def hook_of(name: str, function: Any, *, seconds: float) -> Hook | None:
    """The hook, if there is a function. Raises `Misconfigured`."""
    if function is None:
        return None
    return Hook(name, function, seconds=seconds)

"""Calls the secret resolver where it cannot block anything else.

It runs on its own event loop in its own thread, and plain functions in further threads: a blocking
resolver blocks neither the worker's event loop nor a slot for tools.
"""

import asyncio
import inspect
import threading
from dataclasses import dataclass

from toolpool.contract.daemon_threads import DaemonThreads
from toolpool.contract.errors import NeedsSignIn
from toolpool.workers.credentials.secret_sources import Resolve

_THREADS = 32
"""The number of threads is limited, because a hanging request occupies its thread."""


@dataclass(frozen=True, slots=True)
class SecretAnswer:
    """The returned value or raised exception. Without a repr, because the value is a secret."""

    value: object = None
    error: BaseException | None = None

    def __repr__(self) -> str:
        return "SecretAnswer()"


class SecretResolver:
    """Calls one `Resolve` function. Starts no thread before the first request."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        called = resolve if inspect.isroutine(resolve) else type(resolve).__call__
        self._is_coroutine = inspect.iscoroutinefunction(called)
        self._threads = DaemonThreads("secret", at_most=_THREADS)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def ask(self, *, tenant: str, user: str | None, name: str) -> SecretAnswer:
        """Resolve one secret; cancelling leaves the request running. Never raises."""
        asked = asyncio.run_coroutine_threadsafe(self._ask(tenant, user, name), self._started())
        return await asyncio.wrap_future(asked)

    def close(self) -> None:
        """End the loop and the idle threads. Hanging threads end with this process."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._threads.close()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._turn, name="secrets", daemon=True).start()
        return self._loop

    def _turn(self) -> None:
        assert self._loop is not None
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        finally:
            self._loop.close()

    async def _ask(self, tenant: str, user: str | None, name: str) -> SecretAnswer:
        try:
            if self._is_coroutine:
                given: object = self._resolve(tenant=tenant, user=user, name=name)
            else:
                answer = await self._threads.call(self._answer, tenant, user, name)
                if answer.error is not None:
                    return answer
                given = answer.value
            return SecretAnswer(await given if inspect.isawaitable(given) else given)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return SecretAnswer(error=error)
        except BaseException as error:  # noqa: BLE001 - sys.exit() would end the loop
            return SecretAnswer(error=error)

    def _answer(self, tenant: str, user: str | None, name: str) -> SecretAnswer:
        try:
            return SecretAnswer(self._resolve(tenant=tenant, user=user, name=name))
        except BaseException as error:  # noqa: BLE001 - it is passed on
            return SecretAnswer(error=error)


def is_none(answer: SecretAnswer) -> bool:
    """Whether the source has no such secret."""
    if answer.error is not None:
        return isinstance(answer.error, KeyError)
    return answer.value is None or answer.value == ""


def sign_in_of(answer: SecretAnswer) -> NeedsSignIn | None:
    """The sign-in that the answer asks for, if any."""
    return answer.error if isinstance(answer.error, NeedsSignIn) else None

"""The tasks of one dispatcher: what goes on beside the calls, until it is closed."""

import asyncio
from collections.abc import Coroutine
from typing import Any

_CANCEL_AGAIN_SECONDS = 0.1


class BackgroundTasks:
    """Work that ends with its dispatcher at the latest."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Let work go on."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def end(self) -> None:
        """Cancel all of it, and wait until it has ended."""
        tasks = running = set(self._running)
        while running:
            for task in running:
                task.cancel()
            # Again: Python 3.11's asyncio.wait_for, which redis-py writes with, may swallow one.
            _, running = await asyncio.wait(running, timeout=_CANCEL_AGAIN_SECONDS)
        await asyncio.gather(*tasks, return_exceptions=True)

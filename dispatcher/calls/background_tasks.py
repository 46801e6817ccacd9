"""The background tasks of one dispatcher, which end when it is closed."""

import asyncio
from collections.abc import Coroutine
from typing import Any

_CANCEL_AGAIN_SECONDS = 0.1


class BackgroundTasks:
    """Tasks that are cancelled, at the latest, when their dispatcher is closed."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start a task."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def end(self) -> None:
        """Cancel every task and wait until all have ended."""
        tasks = running = set(self._running)
        while running:
            for task in running:
                task.cancel()
            # Cancel again: Python 3.11's asyncio.wait_for, which redis-py uses to write, may
            # swallow a cancellation.
            _, running = await asyncio.wait(running, timeout=_CANCEL_AGAIN_SECONDS)
        await asyncio.gather(*tasks, return_exceptions=True)

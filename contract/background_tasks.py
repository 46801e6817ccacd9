"""Asyncio tasks that run beside the work of their owner. The owner ends them."""

import asyncio
from collections.abc import Coroutine
from typing import Any

_CANCEL_AGAIN_SECONDS = 0.1


class BackgroundTasks:
    """The background tasks of one owner."""

    def __init__(self) -> None:
        self.running: set[asyncio.Task[None]] = set()
        """The tasks that have not ended."""

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start a task."""
        task = asyncio.get_running_loop().create_task(work)
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        return task

    async def wait(self, timeout: float | None = None) -> None:
        """Wait until every task has ended, at most `timeout` seconds."""
        if self.running:
            await asyncio.wait(set(self.running), timeout=timeout)

    def cancel(self) -> None:
        """Cancel every task, without waiting for its end."""
        for task in self.running:
            task.cancel()

    async def end(self) -> None:
        """Cancel every task and wait until all have ended."""
        tasks = running = set(self.running)
        while running:
            for task in running:
                task.cancel()
            # Cancel again: Python 3.11's asyncio.wait_for, which redis-py uses to write, may
            # swallow a cancellation.
            _, running = await asyncio.wait(running, timeout=_CANCEL_AGAIN_SECONDS)
        await asyncio.gather(*tasks, return_exceptions=True)

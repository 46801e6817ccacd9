"""What a `SyncDispatcher` runs on the event loop of its own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


async def next_of(stream: AsyncIterator[T]) -> T | None:
    """The next item; None after the last."""
    return await anext(stream, None)


async def end_of(stream: Any) -> None:
    """Take no more items."""
    await stream.aclose()


async def as_coroutine(awaited: Awaitable[T]) -> T:
    """What an awaitable comes to."""
    return await awaited


async def end_tasks() -> None:
    """Cancel what runs on this loop, as `asyncio.run` does in the end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()

"""Helpers for the event-loop thread of a `SyncDispatcher`."""

import asyncio
import atexit
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from enum import Enum
from typing import Any, Protocol, TypeVar

import toolpool.embedded  # noqa: F401 - its exit handler, registered first, runs after ours

T = TypeVar("T")

NOT_OPEN = (
    "this dispatcher is not open: use it inside `with SyncDispatcher.connect(…) as dispatcher:`, "
    "or call open() first and close() in the end"
)
OPEN_ALREADY = (
    "this dispatcher is open already: open it once and share it, any number of threads may use it "
    "at the same time"
)
OWN_THREAD = (
    "a SyncDispatcher cannot be asked from its own thread, which would wait for itself: in a hook "
    "or an observer ask from another thread"
)


class Stage(Enum):
    """The stages of a `SyncDispatcher`."""

    NEW = "new"
    OPEN = "open"
    CLOSED = "closed"


def each(
    stream: AsyncIterator[T], run: Callable[[Any], Any], is_over: Callable[[], bool]
) -> Iterator[T]:
    """Yield the items of a stream until `is_over`. Each item is fetched by `run` on the loop."""
    try:
        while not is_over() and (item := run(next_of(stream))) is not None:
            yield item
    finally:
        if not is_over():
            run(end_of(stream))


async def next_of(stream: AsyncIterator[T]) -> T | None:
    """The next item; None after the last."""
    return await anext(stream, None)


async def end_of(stream: Any) -> None:
    """Close the stream."""
    await stream.aclose()


def give_up(work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> None:
    """Cancel a coroutine that a thread submitted to a loop before it was interrupted.

    Ctrl-C may come between any two steps: the loop may run the coroutine before the thread has its
    future.
    """

    def cancel() -> None:
        for task in asyncio.all_tasks():
            if task.get_coro() is work:
                task.cancel()

    loop.call_soon_threadsafe(cancel)


async def as_coroutine(awaited: Awaitable[T]) -> T:
    """The result of an awaitable."""
    return await awaited


async def end_tasks() -> None:
    """Cancel the tasks of this loop, as `asyncio.run` does at its end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


class ClosedAtExit(Protocol):
    """An object that is closed at the end of the program if it is still open."""

    def close_at_exit(self) -> None:
        """Close it within the time that the end of a program may take."""


CLOSED_AT_EXIT: set[ClosedAtExit] = set()


def _close_all() -> None:
    """Close what is still open. Otherwise a thread that is cut off may write to a closed file.

    Registered on import, so that it runs after the program's own exit handlers.
    """
    for open_one in list(CLOSED_AT_EXIT):
        open_one.close_at_exit()


atexit.register(_close_all)

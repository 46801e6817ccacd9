"""What a `SyncDispatcher` runs on the event loop of its own."""

import asyncio
import atexit
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from enum import Enum
from typing import Any, Protocol, TypeVar

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
    "or a listener ask from another thread"
)


class Stage(Enum):
    """How far a `SyncDispatcher` has come."""

    NEW = "new"
    OPEN = "open"
    CLOSED = "closed"


def each(
    stream: AsyncIterator[T], run: Callable[[Any], Any], is_over: Callable[[], bool]
) -> Iterator[T]:
    """The items of a stream, each by `run` on the loop, until `is_over`."""
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
    """Take no more items."""
    await stream.aclose()


def give_up(work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what a loop was asked to run by a thread that was interrupted as it asked.

    Ctrl-C comes between any two steps: the loop may be at it before the thread has its future.
    """

    def cancel() -> None:
        for task in asyncio.all_tasks():
            if task.get_coro() is work:
                task.cancel()

    loop.call_soon_threadsafe(cancel)


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


class ClosedAtExit(Protocol):
    """What is closed at the end of the program where nobody closed it before."""

    def close_at_exit(self) -> None:
        """Close it as far as that takes no longer than the end of a program may."""


CLOSED_AT_EXIT: set[ClosedAtExit] = set()


def _close_all() -> None:
    """Those that nobody closed: a thread that is cut off in its work may write to a closed file.

    Registered on import, so that it comes after whatever the program itself does at its end.
    """
    for open_one in list(CLOSED_AT_EXIT):
        open_one.close_at_exit()


atexit.register(_close_all)

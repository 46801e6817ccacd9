"""Waiting for a condition, never for a duration."""

import asyncio
import time
from collections.abc import Awaitable, Callable

_PAUSE_SECONDS = 0.01


def wait_until(condition: Callable[[], object], what: str, within_seconds: float = 10.0) -> None:
    """Return as soon as `condition()` is true; fail, saying `what` was awaited, when it is late."""
    deadline = time.monotonic() + within_seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_seconds} s: {what}")
        time.sleep(_PAUSE_SECONDS)


async def eventually(
    condition: Callable[[], object | Awaitable[object]], what: str, within_seconds: float = 10.0
) -> None:
    """`wait_until` for a running event loop; `condition` may be a coroutine function."""
    deadline = time.monotonic() + within_seconds
    while True:
        holds = condition()
        if isinstance(holds, Awaitable):
            holds = await holds
        if holds:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_seconds} s: {what}")
        await asyncio.sleep(_PAUSE_SECONDS)

"""The event loops that toolpool itself starts (uvloop's where it is installed), and fair turns."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_LONGEST_TURN_SECONDS = 0.02


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Make an event loop of the fastest kind that is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class LoopTurn:
    """A task's turn of the event loop. It is given up after 20 ms, so that other tasks can run."""

    def __init__(self) -> None:
        self._began_at = time.monotonic()

    async def yield_if_long(self) -> None:
        """Let other tasks run if the turn has been long."""
        if time.monotonic() - self._began_at > _LONGEST_TURN_SECONDS:
            await asyncio.sleep(0)
            self._began_at = time.monotonic()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does, on such a loop."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)

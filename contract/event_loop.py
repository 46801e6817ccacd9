"""The event loops that toolpool itself starts: uvloop's where it is installed, else asyncio's."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Make an event loop of the fastest kind that is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does, on such a loop."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)

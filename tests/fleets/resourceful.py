"""Tools with resources of their module. Each opening and closing is a line of a file."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from toolpool import ToolContext, lifespan, tool

TRACE = Path(os.environ.get("LIFESPAN_TRACE", os.devnull))


@dataclass
class Counter:
    """What the tools share in one process."""

    calls: int = 0


@contextmanager
def traced() -> Iterator[None]:
    with TRACE.open("a") as trace:
        print("open", os.getpid(), file=trace)
    yield
    with TRACE.open("a") as trace:
        print("close", os.getpid(), file=trace)


@lifespan
def counter() -> Iterator[Counter]:
    """A counter a process."""
    with traced():
        yield Counter()


def count(ctx: ToolContext[Counter]) -> list[int]:
    ctx.resources.calls += 1
    return [os.getpid(), ctx.resources.calls]


@tool(effects="read")
async def count_on_loop(ctx: ToolContext[Counter]) -> list[int]:
    """Count on the loop."""
    return count(ctx)


@tool(effects="read", run_in="thread")
def count_in_thread(ctx: ToolContext[Counter] | None) -> list[int]:
    """Count in a thread."""
    assert ctx is not None
    return count(ctx)


@tool(effects="read", run_in="process")
def count_in_child(ctx: ToolContext[Counter]) -> list[int]:
    """Count in a child process."""
    return count(ctx)


@tool(effects="read", run_in="process")
def leave_a_thread() -> int:
    """Leave something that makes the process unfit for another call."""
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    return os.getpid()

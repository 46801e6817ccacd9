"""Tools that take a while."""

import asyncio
import queue
import threading
import time
from pathlib import Path

from toolpool import ToolContext, tool


@tool(background=True, effects="read")
async def crunch(seconds: float, answer: str = "done") -> str:
    """Compute for a while."""
    await asyncio.sleep(seconds)
    return answer


@tool(background=True, run_in="process")
def crunch_process(seconds: float) -> str:
    """Compute for a while, in a process."""
    time.sleep(seconds)
    return "done"


@tool(background=True)
async def crunch_and_fail(seconds: float) -> str:
    """Compute for a while, in vain."""
    await asyncio.sleep(seconds)
    raise ValueError("no solution")


@tool(max_output=1000)
async def write_much(characters: int) -> str:
    """Write a lot."""
    return "".join(str(number % 10) for number in range(characters))


@tool(max_output=1000, run_in="process")
def list_much(items: int) -> list[int]:
    """List a lot, from a child process."""
    return list(range(items))


@tool
async def steps(count: int, ctx: ToolContext) -> int:
    """Report progress at every step."""
    for number in range(count):
        ctx.progress(number + 1, count, f"step {number + 1}")
        await asyncio.sleep(0)
    return count


@tool(run_in="process")
def steps_process(count: int, ctx: ToolContext) -> int:
    """Report progress at every step, from a child process."""
    for number in range(count):
        ctx.progress(number + 1, count)
    return count


@tool(run_in="thread", timeout=30)
def wait_in_thread(gate: str) -> str:
    """Wait until the gate is there."""
    while not Path(gate).exists():
        time.sleep(0.01)
    return "open"


@tool
async def quick() -> str:
    """Answer at once."""
    return "quick"


@tool(run_in="thread")
def until_cancelled(ctx: ToolContext) -> str:
    """Look whether somebody still wants the result."""
    while not ctx.cancelled and ctx.remaining > 1.0:
        time.sleep(0.01)
    return "cancelled" if ctx.cancelled else "timed out"


@tool
async def steps_aside(ctx: ToolContext) -> str:
    """Report progress from a thread that a coroutine waits for."""
    await asyncio.to_thread(ctx.progress, 1, 2, "aside")
    await asyncio.sleep(0.1)
    return "done"


@tool(run_in="process")
def report_at_once(count: int, ctx: ToolContext) -> int:
    """Report progress from six threads, each time with far too long a message."""

    def report() -> None:
        for _ in range(count):
            ctx.progress(1, 1, "x" * 200_000)

    threads = [threading.Thread(target=report) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return count


_left: queue.SimpleQueue[tuple[str, str, ToolContext]] = queue.SimpleQueue()


def _report_for_others() -> None:
    while True:
        gate, trace, ctx = _left.get()
        while not Path(gate).exists():
            ctx.progress(1, None, "left behind")
            time.sleep(0.05)
        Path(trace).touch()


# From the import on: a thread that a call starts would cost the process its next calls.
threading.Thread(target=_report_for_others, daemon=True).start()


@tool(run_in="process")
def leave_a_reporter(gate: str, trace: str, ctx: ToolContext) -> str:
    """Leave a thread with this call's context, for as long as `gate` is not there."""
    _left.put((gate, trace, ctx))
    return "left"


@tool(run_in="process")
def wait_for(gate: str, trace: str) -> str:
    """Open the gate, and wait until the thread that was left behind has ended."""
    time.sleep(0.6)
    Path(gate).touch()
    while not Path(trace).exists():
        time.sleep(0.01)
    return "seen"

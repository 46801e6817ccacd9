"""Tools that take a while."""

import asyncio
import time

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


@tool(run_in="thread")
def until_cancelled(ctx: ToolContext) -> str:
    """Look whether somebody still wants the result."""
    while not ctx.cancelled and ctx.remaining > 1.0:
        time.sleep(0.01)
    return "cancelled" if ctx.cancelled else "timed out"

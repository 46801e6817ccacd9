"""Reads that equal calls share, with a trace of every run."""

import asyncio
import os
import signal
from pathlib import Path

from toolpool import ToolContext, ToolError, tool


def _trace(file: str, text: str) -> None:
    with Path(file).open("a", encoding="utf-8") as trace:
        trace.write(text + "\n")


async def _open(gate: str) -> None:
    while not Path(gate).exists():
        await asyncio.sleep(0.01)


@tool(effects="read", single_flight=True)
async def look(trace: str, gate: str) -> str:
    """Look, when the gate is open."""
    _trace(trace, "look")
    await _open(gate)
    return "seen"


@tool(effects="read", cache_seconds=1.5)
async def price(trace: str) -> int:
    """A price, which is good for a moment."""
    _trace(trace, "price")
    return len(Path(trace).read_text(encoding="utf-8").split())


@tool(effects="read", cache_seconds=60, run_in="process")
def price_process(trace: str) -> int:
    """A price, from a child process."""
    _trace(trace, "price")
    return len(Path(trace).read_text(encoding="utf-8").split())


@tool(effects="read", cache_seconds=60)
async def fail(trace: str, gate: str) -> None:
    """Fail, when the gate is open."""
    _trace(trace, "fail")
    await _open(gate)
    raise ToolError("not today")


@tool(effects="read", cache_seconds=60)
async def mine(trace: str, ctx: ToolContext) -> list[object]:
    """Whose call it is."""
    _trace(trace, "mine")
    return [ctx.session, ctx.context]


@tool(effects="read", cache_seconds=60)
async def die_once(trace: str, gate: str) -> str:
    """End the worker at the first run, when the gate is open."""
    is_first = not Path(trace).exists()
    _trace(trace, "die_once")
    await _open(gate)
    if is_first:
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


@tool(effects="write")
async def put(trace: str) -> None:
    """Change what is read."""
    _trace(trace, "put")

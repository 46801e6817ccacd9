"""The tools that the clients call."""

import asyncio

from toolpool import ToolContext, tool


@tool(effects="read")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(effects="write")
async def fail() -> None:
    """Fail."""
    raise RuntimeError("on purpose")


@tool(effects="read", background=True)
async def wait(ctx: ToolContext) -> str:
    """Wait until cancelled."""
    ctx.progress("waiting")
    await asyncio.sleep(60)
    return "never"

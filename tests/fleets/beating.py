"""Tools that must give signs of life, and do so as long as they are told to."""

import asyncio
import time

from toolpool import ToolContext, tool

HEARTBEAT = 0.4


def _beats(ctx: ToolContext, beats: int, quiet: float, progress: bool) -> None:
    for _ in range(beats):
        if progress:
            ctx.progress(1, None)
        else:
            ctx.heartbeat()
        time.sleep(0.05)
    time.sleep(quiet)


@tool(heartbeat=HEARTBEAT, timeout=20)
async def beat_loop(beats: int, quiet: float, ctx: ToolContext, progress: bool = False) -> str:
    """Beat, and then be quiet."""
    for _ in range(beats):
        if progress:
            ctx.progress(1, None)
        else:
            ctx.heartbeat()
        await asyncio.sleep(0.05)
    await asyncio.sleep(quiet)
    return "done"


@tool(heartbeat=HEARTBEAT, timeout=20, run_in="thread")
def beat_thread(beats: int, quiet: float, ctx: ToolContext, progress: bool = False) -> str:
    """Beat, and then be quiet."""
    _beats(ctx, beats, quiet, progress)
    return "done"


@tool(heartbeat=HEARTBEAT, timeout=20)
def beat_process(beats: int, quiet: float, ctx: ToolContext, progress: bool = False) -> str:
    """Beat, and then be quiet."""
    _beats(ctx, beats, quiet, progress)
    return "done"

"""The tools that are measured: they do nothing."""

import asyncio

from toolpool import tool


@tool
async def echo_loop(text: str) -> str:
    """Give back the text."""
    return text


@tool(run_in="process")
def echo_process(text: str) -> str:
    """Give back the text."""
    return text


@tool(timeout=600, effects="read")
async def wait(seconds: float) -> None:
    """Wait."""
    await asyncio.sleep(seconds)


@tool(timeout=600, effects="read", background=True)
async def wait_in_background(seconds: float) -> None:
    """Wait, in the background."""
    await asyncio.sleep(seconds)

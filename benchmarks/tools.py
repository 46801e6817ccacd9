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


async def _work(seconds: float) -> None:
    if seconds:
        await asyncio.sleep(seconds)


@tool(effects="read")
async def read_alone(mark: str, seconds: float) -> str:
    """Read; each call has a run of its own."""
    await _work(seconds)
    return mark


@tool(effects="read", single_flight=True)
async def read_single_flight(mark: str, seconds: float) -> str:
    """Read; equal calls share a run."""
    await _work(seconds)
    return mark


@tool(effects="read", cache_seconds=600)
async def read_cached(mark: str, seconds: float) -> str:
    """Read; the result is kept."""
    await _work(seconds)
    return mark

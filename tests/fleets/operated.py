"""Tools that an operator looks for: held up, limited, and failing."""

import asyncio
from pathlib import Path

from toolpool import tool


async def _opened(gate: str) -> str:
    while not Path(gate).exists():
        await asyncio.sleep(0.01)
    return "open"


@tool(timeout=60, effects="read")
async def hold(gate: str) -> str:
    """Wait until the gate is there."""
    return await _opened(gate)


@tool(timeout=60, effects="write", background=True)
async def hold_write(gate: str) -> str:
    """Wait until the gate is there."""
    return await _opened(gate)


@tool(timeout=60, concurrency=1)
async def alone(gate: str) -> str:
    """Wait until the gate is there, one at a time."""
    return await _opened(gate)


@tool(timeout=60, effects="read", single_flight=True)
async def hold_shared(gate: str) -> str:
    """Wait until the gate is there, together with equal calls."""
    return await _opened(gate)


@tool(rate="1/min")
async def rare() -> str:
    """Run once a minute."""
    return "ran"


@tool
async def fails(secret: str = "") -> None:
    """Raise."""
    raise ValueError(secret)

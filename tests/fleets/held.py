"""Tools that write down each start, and wait for a gate."""

import asyncio
from pathlib import Path

from toolpool import tool


@tool(effects="read")
async def held_read(gate: str, trace: str) -> str:
    """Read, once the gate is there."""
    return await _held(gate, trace)


@tool(effects="write")
async def held_write(gate: str, trace: str) -> str:
    """Write, once the gate is there."""
    return await _held(gate, trace)


@tool(effects="read", exclusive=True)
async def held_exclusive(gate: str, trace: str) -> str:
    """Read alone, once the gate is there."""
    return await _held(gate, trace)


async def _held(gate: str, trace: str) -> str:
    await asyncio.to_thread(_write, Path(trace))
    while not Path(gate).exists():
        await asyncio.sleep(0.01)
    return "done"


def _write(trace: Path) -> None:
    with trace.open("a") as file:
        file.write("start\n")

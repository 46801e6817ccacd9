"""Tools that need a person's approval, and write down each run."""

import asyncio
from pathlib import Path

from toolpool import tool


@tool(effects="write", approval=True)
async def pay(trace: str, amount: int) -> str:
    """Pay, once it is approved."""
    await asyncio.to_thread(_write, Path(trace), amount)
    return f"paid {amount}"


def _write(trace: Path, amount: int) -> None:
    with trace.open("a") as file:
        file.write(f"{amount}\n")


@tool(effects="read")
async def look(value: int) -> int:
    """Needs nobody."""
    return value

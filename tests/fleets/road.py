"""Well-behaved tools that leave traces, so that a test can see what ran, how often and when."""

import asyncio
import os
from pathlib import Path
from typing import Any

from toolpool import ToolContext, ToolError, tool


@tool
async def echo(value: Any) -> Any:
    """Give back the value."""
    return value


@tool(run_in="thread")
def echo_thread(value: Any) -> Any:
    """Give back the value."""
    return value


@tool(run_in="process")
def echo_process(value: Any) -> Any:
    """Give back the value."""
    return value


@tool
async def whoami() -> int:
    """The id of the process that runs the tool."""
    return os.getpid()


@tool
async def count(file: str, label: str = "ran") -> str:
    """Add a line to the file."""
    _trace(file, label)
    return label


@tool(run_in="process")
def count_process(file: str, label: str = "ran") -> str:
    """Add a line to the file."""
    _trace(file, label)
    return label


@tool
async def hold(gate: str, trace: str, label: str = "") -> str:
    """Wait until the gate file exists."""
    _trace(trace, f"start {label}")
    try:
        while not Path(gate).exists():
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        _trace(trace, f"cancelled {label}")
        raise
    return label


@tool(effects="read")
async def meet(folder: str, label: str, expected: int) -> int:
    """Wait until as many calls as expected are here at the same time."""
    Path(folder, label).touch()
    while len(os.listdir(folder)) < expected:
        await asyncio.sleep(0.01)
    return expected


@tool(effects="read")
async def read(trace: str, label: str) -> str:
    """Take a moment to read."""
    return await _slowly(trace, label)


@tool(effects="write")
async def write(trace: str, label: str, fail: bool = False) -> str:
    """Take a moment to write."""
    await _slowly(trace, label)
    if fail:
        raise OSError("disk full")
    return label


@tool
async def refuse(reason: str) -> None:
    """Report a failure."""
    raise ToolError(reason)


@tool
async def fail(message: str) -> None:
    """Raise."""
    raise RuntimeError(message)


@tool
async def who_asks(ctx: ToolContext) -> dict[str, Any]:
    """Say what the context says."""
    return {"session": ctx.session, "id": ctx.call_id, "context": dict(ctx.context)}


async def _slowly(trace: str, label: str) -> str:
    _trace(trace, f"start {label}")
    await asyncio.sleep(0.05)
    _trace(trace, f"end {label}")
    return label


def _trace(file: str, line: str) -> None:
    with Path(file).open("a") as opened:
        opened.write(line + "\n")

"""Writes that outlive their calls, and a read to see what came first."""

import asyncio
import os
import signal
import time
from pathlib import Path

from toolpool import tool


def note(trace: str, line: str) -> None:
    """Append a line, in one write."""
    with Path(trace).open("a") as file:
        file.write(line + "\n")


@tool(effects="read")
async def look(trace: str) -> list[str]:
    """What has been noted so far."""
    return Path(trace).read_text().split()


@tool(effects="read")
async def slow_look(trace: str) -> str:
    """Look for a while, and leave a trace of it."""
    note(trace, "looked")
    await asyncio.sleep(0.5)
    return "seen"


@tool(effects="write", run_in="thread")
def write_in_thread(trace: str, seconds: float) -> None:
    """Write, and do not stop when told to."""
    note(trace, "started")
    time.sleep(seconds)
    note(trace, "ended")


@tool(effects="write")
async def write_on_loop(trace: str, seconds: float) -> None:
    """Write, and go on when cancelled."""
    note(trace, "started")
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            note(trace, "cancelled")
    note(trace, "ended")


@tool(effects="write", run_in="process")
def write_in_process(trace: str, seconds: float) -> None:
    """Write, and be killed for it."""
    note(trace, "started")
    time.sleep(seconds)
    note(trace, "ended")


@tool(effects="write")
async def write_and_die(trace: str) -> None:
    """End the worker in the middle."""
    note(trace, "started")
    os.kill(os.getpid(), signal.SIGKILL)

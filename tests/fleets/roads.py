"""Tools that write down each start; most of them wait for a person."""

import asyncio
import os
import time

from toolpool import tool


def _note(trace: str, number: int, what: str = "start") -> int:
    """Append a start, or an end; how many of this call there are."""
    line = f"{number} {time.monotonic():.6f} {what}\n".encode()
    file = os.open(trace, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    os.write(file, line)
    os.lseek(file, 0, os.SEEK_SET)
    starts = [each.split()[0] for each in os.read(file, 1 << 20).splitlines()]
    os.close(file)
    return starts.count(b"%d" % number)


@tool(effects="write", approval=True, timeout=5)
async def pay(trace: str, number: int) -> str:
    """Pay."""
    _note(trace, number)
    await asyncio.sleep(0.3)
    return f"paid {number}"


@tool(effects="read", timeout=5, concurrency=1, concurrency_scope="fleet")
async def look_alone(trace: str, number: int) -> str:
    """Look, one at a time in the whole fleet."""
    _note(trace, number)
    await asyncio.sleep(0.1)
    _note(trace, number, "end")
    return f"seen {number}"


@tool(effects="write", approval=True, timeout=5, rate="2/s")
async def pay_rated(trace: str, number: int) -> str:
    """Pay, twice a second at most."""
    _note(trace, number)
    return f"paid {number}"


@tool(effects="read", approval=True, timeout=5, retries=1)
async def look_again(trace: str, number: int) -> str:
    """Look, which succeeds the second time."""
    if _note(trace, number) == 1:
        raise ConnectionError("not yet")
    return f"seen {number}"


@tool(effects="read", timeout=5, rate="2/s", single_flight=True)
async def look(trace: str, number: int) -> str:
    """Look, once for all who ask at the same time."""
    _note(trace, number)
    await asyncio.sleep(0.05)
    return f"seen {number}"

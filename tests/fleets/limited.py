"""Tools with rates that write down when they were started, by their worker's own clock."""

import asyncio
import os
import time

from toolpool import tool


def _note(trace: str, word: str) -> None:
    line = f"{time.time():.6f} {word}\n".encode()
    file = os.open(trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line)
    os.close(file)


@tool(rate="40/s", effects="read")
async def hit(trace: str, word: str = "") -> str:
    """Be started 40 times a second at most."""
    _note(trace, word)
    return word


@tool(rate="2/s", rate_per="session", effects="write")
async def hit_of_session(trace: str, word: str = "") -> str:
    """Be started twice a second at most in each session."""
    _note(trace, word)
    return word


@tool(rate="1/s")
async def slow_to_come(trace: str, seconds: float = 0.0) -> str:
    """Be started once a second at most."""
    _note(trace, "")
    await asyncio.sleep(seconds)
    return "done"


@tool
async def free(word: str = "") -> str:
    """Be started as often as anybody likes."""
    return word


@tool(concurrency=2, concurrency_scope="fleet", effects="read")
async def few(trace: str, seconds: float = 0.05) -> str:
    """Run twice at once at most."""
    _note(trace, "+1")
    await asyncio.sleep(seconds)
    _note(trace, "-1")
    return "done"


@tool(effects="read", cache_seconds=60)
async def cached(word: str) -> str:
    """Give back the word, to all who ask for it within a minute."""
    return word

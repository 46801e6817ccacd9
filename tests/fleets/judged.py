"""Tools whose types read a text in another way than it was sent, each in another place."""

import asyncio
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

from toolpool import tool

Trimmed = Annotated[str, BeforeValidator(str.strip)]


def _note(file: str, to: str) -> str:
    with Path(file).open("a") as lines:
        print(to, file=lines)
    return to


@tool
async def mail_on_the_loop(file: str, to: Trimmed) -> str:
    """Mail."""
    return _note(file, to)


@tool(run_in="thread")
def mail_in_a_thread(file: str, to: Trimmed) -> str:
    """Mail."""
    return _note(file, to)


@tool
def mail_in_a_child(file: str, to: Trimmed) -> str:
    """Mail."""
    return _note(file, to)


@tool(effects="read", cache_seconds=60)
def search(file: str, to: Trimmed) -> str:
    """Search, which equal calls share."""
    return _note(file, to)


@tool(effects="read", single_flight=True)
async def search_slowly(file: str, to: Trimmed, gate: str) -> str:
    """Search, when the gate is open."""
    _note(file, to)
    while not Path(gate).exists():
        await asyncio.sleep(0.01)
    return to

"""Tools whose types read a text in another way than it was sent, each in another place."""

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

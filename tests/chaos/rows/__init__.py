"""The rows of the suite, one file a family; each is a play on a `Scene`."""

import pkgutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module

from tests.chaos.scene import Scene

Play = Callable[[Scene], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Row:
    """A named play and how many faults it brings about in each form."""

    name: str
    play: Play
    short: int
    long: int


ROWS: dict[str, Row] = {}


def row(name: str, *, short: int, long: int) -> Callable[[Play], Play]:
    """Enter a play into the suite."""

    def enter(play: Play) -> Play:
        ROWS[name] = Row(name, play, short, long)
        return play

    return enter


def load_rows() -> None:
    """Import every family, which enters its rows."""
    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")

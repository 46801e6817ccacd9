"""How often something may be done: `100/min`, and for whom that is counted."""

import re
from enum import StrEnum
from functools import cache
from typing import NamedTuple

MOST = 100_000
"""Starts in one window that can be counted: each takes a place in the server's memory."""

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3_600.0, "day": 86_400.0}
_LONGEST = 40
_FORM = re.compile(r"([1-9][0-9]*)/(\w+)", re.ASCII)


AT_ONCE = "running"
"""The unit of a limit on how many run at the same time; it has no window."""


class Limit(NamedTuple):
    """How often calls of one kind may be started; `kind` says which, for whoever is refused."""

    name: str
    rate: "Rate"
    kind: str


class RatePer(StrEnum):
    """Whose calls a tool's rate counts together."""

    FLEET = "fleet"
    TENANT = "tenant"
    SESSION = "session"


class Rate(NamedTuple):
    """At most `most` starts in any time as long as one `unit`: `s`, `min`, `h` or `day`.

    Or, where the unit is `AT_ONCE`, at most so many calls that run.
    """

    most: int
    unit: str

    @property
    def seconds(self) -> float:
        """The length of a window; 0 where there is none."""
        return _SECONDS.get(self.unit, 0.0)

    def __str__(self) -> str:
        return f"{self.most}/{self.unit}"


@cache
def rate_of(text: str) -> Rate:
    """The rate that is written as `100/min`. Raises ValueError for anything else."""
    found = _FORM.fullmatch(str(text)[:_LONGEST])
    if found is None or found[2] not in _SECONDS:
        raise ValueError(
            f"{str(text)[:_LONGEST]!r} is no rate: write a whole number and /s, /min, /h or /day, "
            "as in 100/min"
        )
    if int(found[1]) > MOST:
        raise ValueError(
            f"a rate counts at most {MOST:,} in a window, not {found[1]}: say it for a shorter one"
        )
    return Rate(int(found[1]), found[2])

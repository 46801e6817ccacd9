"""Rates such as `100/min`, and the scope that they are counted for."""

import re
from enum import StrEnum
from functools import cache
from typing import NamedTuple

MOST = 100_000
"""The most starts that one window can count: each takes server memory."""

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3_600.0, "day": 86_400.0}
_LONGEST = 40
_FORM = re.compile(r"([1-9][0-9]*)/(\w+)", re.ASCII)


AT_ONCE = "running"
"""The unit of a limit on simultaneous calls, which has no window."""


class Limit(NamedTuple):
    """A limit on the starts of calls, or on calls that run at once; `kind` names it in refusals."""

    name: str
    rate: "Rate"
    kind: str


class RatePer(StrEnum):
    """Whose calls a tool's rate counts together."""

    FLEET = "fleet"
    TENANT = "tenant"
    SESSION = "session"


class Rate(NamedTuple):
    """At most `most` starts in any sliding window of one `unit`: `s`, `min`, `h` or `day`.

    If the unit is `AT_ONCE`, at most `most` simultaneous calls.
    """

    most: int
    unit: str

    @property
    def seconds(self) -> float:
        """The length of the window in seconds; 0 without a window."""
        return _SECONDS.get(self.unit, 0.0)

    def __str__(self) -> str:
        return f"{self.most}/{self.unit}"


@cache
def rate_of(text: str) -> Rate:
    """Parse a rate such as `100/min`. Raises ValueError."""
    found = _FORM.fullmatch(str(text)[:_LONGEST])
    if found is None or found[2] not in _SECONDS:
        raise ValueError(
            f"{str(text)[:_LONGEST]!r} is not a rate: write a whole number and /s, /min, /h or "
            "/day, as in 100/min"
        )
    if int(found[1]) > MOST:
        raise ValueError(
            f"a rate counts at most {MOST:,} in a window, not {found[1]}: use a shorter window"
        )
    return Rate(int(found[1]), found[2])

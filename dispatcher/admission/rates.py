"""A call under limits, as far as its dispatcher has come with it."""

from dataclasses import dataclass
from typing import Self

from toolpool.contract.rates import AT_ONCE, Limit


@dataclass(slots=True, eq=False)
class Limited:
    """A call under limits: whether it waits at the gate, and what was said of its places."""

    limits: tuple[Limit, ...]
    windows: tuple[Limit, ...]
    """Those that count starts."""
    running: tuple[Limit, ...]
    """Those that count what runs."""
    is_sent: bool = False
    """Whether it was sent before, and a worker found no place for it."""
    waits: bool = True
    has_places: bool = False

    @classmethod
    def under(cls, limits: tuple[Limit, ...], *, is_sent: bool = False) -> Self:
        """A call that comes to the gate."""
        windows = tuple(limit for limit in limits if limit.rate.unit != AT_ONCE)
        running = tuple(limit for limit in limits if limit.rate.unit == AT_ONCE)
        return cls(limits, windows, running, is_sent)

"""The state of a call under rate limits."""

from dataclasses import dataclass

from toolpool.contract.rates import Limit


@dataclass(slots=True, eq=False)
class RateLimited:
    """A call under rate limits: whether it waits at the rate gate, or has its places."""

    limits: tuple[Limit, ...]
    is_sent: bool = False
    """Whether it was sent before, and a worker found no place for it."""
    waits: bool = True
    has_places: bool = False

"""A call under limits, as far as its dispatcher has come with it."""

from dataclasses import dataclass

from toolpool.contract.rates import Limit


@dataclass(slots=True, eq=False)
class RateLimited:
    """A call under limits: whether it waits at the gate, and whether it has its places."""

    limits: tuple[Limit, ...]
    is_sent: bool = False
    """Whether it was sent before, and a worker found no place for it."""
    waits: bool = True
    has_places: bool = False

"""How much a shape says, and what it came upon that it might have left out."""

from dataclasses import dataclass
from typing import Literal


class TooLong(Exception):
    """Raised as soon as a shape is known to be longer than it may be."""


@dataclass(frozen=True, slots=True)
class Detail:
    """How much a shape says: of fields that were sent right, of optional ones, of how many levels,
    and whether lists are cut. `spare` is the room that a cut list leaves to what follows it.
    """

    right: Literal["shown", "named", "none"] = "shown"
    optional: Literal["shown", "named", "none"] = "shown"
    levels: int = 1_000
    cut: bool = False
    spare: int = 0


@dataclass(slots=True)
class Met:
    """What a writer came upon that less detail would have left out or cut."""

    right: bool = False
    optional: bool = False
    deepest: int = 0

    def is_less(self, detail: Detail, tried: Detail) -> bool:
        """Whether `detail` could have made a shape shorter that was too long as it was `tried`."""
        return (
            (self.right and detail.right != tried.right)
            or (self.optional and detail.optional != tried.optional)
            or self.deepest > detail.levels
            or detail.cut
        )

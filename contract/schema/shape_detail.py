"""How detailed a shape is, and what the writer could have omitted."""

from dataclasses import dataclass
from typing import Literal


class TooLong(Exception):
    """Raised as soon as a shape exceeds its length."""


@dataclass(frozen=True, slots=True)
class Detail:
    """How much of correct fields, optional fields and nested levels a shape shows.

    `cut` shortens lists; `spare` is the space that a cut list leaves for the text after it.
    """

    right: Literal["shown", "named", "none"] = "shown"
    optional: Literal["shown", "named", "none"] = "shown"
    levels: int = 1_000
    cut: bool = False
    spare: int = 0


@dataclass(slots=True)
class Met:
    """What a writer found that less detail would have omitted or cut."""

    right: bool = False
    optional: bool = False
    deepest: int = 0

    def is_less(self, detail: Detail, tried: Detail) -> bool:
        """Whether `detail` can be shorter than the shape that was `tried` and too long."""
        return (
            (self.right and detail.right != tried.right)
            or (self.optional and detail.optional != tried.optional)
            or self.deepest > detail.levels
            or detail.cut
        )

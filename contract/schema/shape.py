"""What a schema asks for, as one short line that a model and a parser can read.

`docs/shapes.md` has the grammar. Whatever a schema says that the grammar has no words for is owned
up to by `(more rules)`.
"""

import functools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from toolpool.contract.schema.focus import Focus
from toolpool.contract.schema.json_values import has_key
from toolpool.contract.schema.references import hides_siblings
from toolpool.contract.schema.shape_detail import Detail, TooLong
from toolpool.contract.schema.shape_writer import Writer

_KEPT_AT_MOST = 512
_ROUNDED_FROM = 200
_ROUNDED_TO = 50
_MOST_DETAIL = Detail()
_NO_FOCUS = Focus()
_LESS_AND_LESS = (
    Detail(right="named"),
    Detail(right="none"),
    Detail(right="none", optional="named"),
    Detail(right="none", optional="none"),
    *(Detail(right="none", optional="none", levels=levels) for levels in (4, 3, 2, 1)),
)
_SPARE = (0, 100)
_LEAST = tuple(
    Detail(right="none", optional="none", levels=1, cut=True, spare=spare) for spare in _SPARE
)
_LEAST_AROUND = (
    Detail(right="none", optional="none", levels=0),
    *(Detail(right="none", optional="none", levels=0, cut=True, spare=spare) for spare in _SPARE),
)
"""Where it is known what is wrong: of that all fields, of others none."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A line, and what it leaves open.

    `is_whole`: nothing was left out for room. `allows_more`: the schema has rules that the line
    only mentions. `allows_less`: the line names one type where the schema, read to the letter,
    takes any other type as well.
    """

    line: str
    is_whole: bool = True
    allows_more: bool = False
    allows_less: bool = False


class Shapes:
    """The shapes of the parts of one schema, each written once."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._root = schema
        self._hides_siblings = hides_siblings(schema)
        self._shortened: dict[tuple[int, int, frozenset[str], Focus], Shape] = {}
        self._kept: dict[tuple[int, int, frozenset[str], frozenset[str]], Shape | None] = {}

    @property
    def root(self) -> dict[str, Any]:
        """The schema itself."""
        return self._root

    @functools.cached_property
    def _counts_others(self) -> bool:
        return has_key(self._root, "unevaluatedProperties")

    def whole(
        self, node: Any, at_most: int, *, hidden: Collection[str] = (), known: Collection[str] = ()
    ) -> Shape | None:
        """The shape of `node`, a part of the schema; None where it is longer than `at_most`.

        Of the node's own fields `hidden` are passed over, and `known` stand as `…`.
        """
        key = (id(node), at_most, frozenset(hidden), frozenset(known))
        if key not in self._kept:
            if len(self._kept) >= _KEPT_AT_MOST:
                self._kept.clear()
            writer = self._writer(at_most, _MOST_DETAIL)
            self._kept[key] = _written(writer, node, at_most, key[2], key[3])
        return self._kept[key]

    def shortened(
        self, node: Any, at_most: int, *, hidden: Collection[str] = (), focus: Focus = _NO_FOCUS
    ) -> Shape:
        """As much of the shape of `node` as there is room for.

        What was sent right gives way first, then what is optional, then what is deep inside; of
        what is wrong all is said for as long as there is room for anything.
        """
        if at_most > _ROUNDED_FROM:
            at_most -= at_most % _ROUNDED_TO  # so that it is written for few lengths
        key = (id(node), at_most, frozenset(hidden), focus)
        if key not in self._shortened:
            if len(self._shortened) >= _KEPT_AT_MOST:
                self._shortened.clear()
            self._shortened[key] = self._fitted(node, at_most, key[2], focus)
        return self._shortened[key]

    def _fitted(self, node: Any, at_most: int, hidden: frozenset[str], focus: Focus) -> Shape:
        """The first that fits. What would come out as long as the one before is not tried."""
        writer: Writer | None = None
        for detail in (*_LESS_AND_LESS, *(_LEAST_AROUND if focus.wrong else _LEAST)):
            if writer is None or writer.met.is_less(detail, writer.detail):
                writer = self._writer(at_most, detail, focus)
                shape = _written(writer, node, at_most, hidden, frozenset())
                if shape is not None:
                    return shape
        return Shape("…", is_whole=False)

    def _writer(self, at_most: int, detail: Detail, focus: Focus = _NO_FOCUS) -> Writer:
        return Writer(
            self._root,
            at_most,
            detail,
            focus,
            hides_siblings=self._hides_siblings,
            counts_others=self._counts_others,
        )


def _written(
    writer: Writer, node: Any, at_most: int, hidden: frozenset[str], known: frozenset[str]
) -> Shape | None:
    try:
        line = writer.line(node, hidden=hidden, known=known)
    except (TooLong, RecursionError):
        return None
    if len(line) > at_most:
        return None
    return Shape(
        line,
        is_whole=not (writer.left_out or known),
        allows_more=writer.allows_more,
        allows_less=writer.allows_less,
    )

"""Describes a schema in one short line for models, which can also be parsed.

`docs/shapes.md` has the grammar. Rules that the grammar cannot express are indicated by `(more
rules)`.
"""

import functools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from toolpool.contract.schema.focus import Focus
from toolpool.contract.schema.json_values import has_key
from toolpool.contract.schema.references import hides_siblings
from toolpool.contract.schema.shape_writer import Detail, TooLong, Writer

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
"""The smallest details around known errors: all fields of wrong parts, none of the others."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape and its omissions.

    `is_whole`: nothing was omitted for space. `allows_more`: the schema has rules that the line
    only mentions. `allows_less`: the line names one type where the schema formally allows others
    too.
    """

    line: str
    is_whole: bool = True
    allows_more: bool = False
    allows_less: bool = False


class Shapes:
    """Writes and caches the shapes of the parts of one schema."""

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
        """The shape of `node`, a part of the schema; None if it is longer than `at_most`.

        The node's own fields in `hidden` are omitted, and those in `known` are written as `…`.
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
        """The shape of `node`, shortened to `at_most` characters.

        Fields that were sent correctly are omitted first, then optional ones, then deep ones; wrong
        parts are kept as long as possible.
        """
        if at_most > _ROUNDED_FROM:
            at_most -= at_most % _ROUNDED_TO  # to cache few lengths
        key = (id(node), at_most, frozenset(hidden), focus)
        if key not in self._shortened:
            if len(self._shortened) >= _KEPT_AT_MOST:
                self._shortened.clear()
            self._shortened[key] = self._fitted(node, at_most, key[2], focus)
        return self._shortened[key]

    def _fitted(self, node: Any, at_most: int, hidden: frozenset[str], focus: Focus) -> Shape:
        """The first detail that fits; details that cannot be shorter than the last are skipped."""
        writer: Writer | None = None
        for detail in (*_LESS_AND_LESS, *(_LEAST_AROUND if focus.wrong else _LEAST)):
            if writer is None or writer.shortenable.by(detail, writer.detail):
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

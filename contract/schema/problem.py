"""One thing that is wrong with a call's arguments: where, what was expected, what arrived.

A problem never holds the rejected value, which may be a secret, and no sentence: those are
written in the model's language by `toolpool.dispatcher.words.feedback`.
"""

import re

import msgspec

_BETWEEN = re.compile(r'\|(?=(?:[^"]*"[^"]*")*[^"]*\Z)')


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """`path` is the way to the value (object keys and list indexes; empty at the root).

    `kind` is the schema keyword that failed (`required`, `type`, `enum`, …), or `value` for what a
    typed parameter says in its own words. `expected` is what the keyword asks for: type names and
    alternatives joined by `|`, a limit, a pattern, a format. `received` is the JSON type that came.
    `allowed` lists enum members or field names, `more` counts those that are left out; `closest` is
    the one that was probably meant, or of a `required` field the one that was sent in its place;
    `shape` is a one-line sketch of a wanted object or array. `is_optional` says that null came for
    a field that may simply be left out.
    """

    path: tuple[str | int, ...]
    kind: str
    expected: str = ""
    received: str = ""
    allowed: tuple[str, ...] = ()
    closest: str | None = None
    shape: str | None = None
    more: int = 0
    is_optional: bool = False

    @property
    def alternatives(self) -> list[str]:
        """What `expected` lists; a bar inside a quoted text is no border."""
        return _BETWEEN.split(self.expected)

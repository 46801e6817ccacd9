"""One thing that is wrong with a call's arguments: where, what was expected, what arrived.

A problem never holds the rejected value, which may be a secret, and no sentence: those are
written in the model's language by `toolpool.dispatcher.messages.feedback`.
"""

import msgspec


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """`path` is the way to the value (object keys and list indexes; empty at the root).

    `kind` is the schema keyword that failed (`required`, `type`, `enum`, …), or `value` for what a
    typed parameter says in its own words. `expected` is what the keyword asks for: type names
    joined by `|`, a limit, a pattern, a format. `received` is the JSON type that came, and `holds`
    what a string held in its place: `array`, `object`, or `list` for items between commas.
    `allowed` lists enum members or field names, `more` counts those that are left out; `closest` is
    the one that was certainly meant, or of a `required` field the one that was sent in its place.
    `shape` is what was wanted there, in one line; `…` where that is too long for a line about one
    error. `is_optional` says that null came for a field that may simply be left out. `place` is the
    way through the schema to what looked at the value, or to the union of which no branch fits.
    `is_unsure` says that it is not known which branch of that union was meant, or which fields
    there are besides those that are named. `also` counts the unknown fields of the same object for
    which there is no problem of their own, because they are too many.
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
    holds: str = ""
    place: tuple[str | int, ...] = ()
    is_unsure: bool = False
    also: int = 0

    @property
    def alternatives(self) -> list[str]:
        """What `expected` lists."""
        return self.expected.split("|")

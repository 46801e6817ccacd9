"""One problem of a call's arguments: path, expected value, received value.

A problem holds neither the rejected value, which may be a secret, nor a sentence:
`toolpool.dispatcher.messages.texts` writes those in the model's language.
"""

import msgspec


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """`path` is the path to the value (object keys and list indexes; empty at the root).

    `kind` is the schema keyword that failed (`required`, `type`, `enum`, …), or `value` for an
    error message of a parameter's type. `expected` is what the keyword asks for: type names joined
    by `|`, a limit, a pattern, a format. `received` is the JSON type that came; `holds` is the JSON
    that a string contained: `array`, `object`, or `list` for comma-separated items. `allowed` lists
    enum members or field names, `more` counts the omitted ones; `closest` is the member that was
    certainly meant, or for a `required` field the name that was sent instead. `shape` is the wanted
    shape in one line; `…` if it is too long for a line. `is_optional` says that null was sent for
    an optional field. `place` is the path through the schema to the failed keyword, or to the union
    that failed. `is_unsure` says that the meant branch of that union, or the complete list of
    fields, is unknown. `also` counts further unknown fields of the same object that have no problem
    of their own.
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
        """The parts of `expected`."""
        return self.expected.split("|")

"""One thing that is wrong with a call's arguments: where, what was expected, what arrived.

A problem never holds the rejected value, which may be a secret (R25).
"""

import msgspec


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """`path` is the way to the value (object keys and list indexes; empty at the root).

    `kind` is the schema keyword that failed (`required`, `type`, `enum`, …). `expected` and
    `received` are descriptions in words (`integer`, `string`); `allowed` lists enum members;
    `closest` is the member, field or name that was probably meant; `shape` is a one-line sketch of
    the object or array that was wanted.
    """

    path: tuple[str | int, ...]
    kind: str
    expected: str = ""
    received: str = ""
    allowed: tuple[str, ...] = ()
    closest: str | None = None
    shape: str | None = None

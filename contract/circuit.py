"""What one dispatcher tells the others of a tool's circuit."""

import msgspec


class CircuitState(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that is left alone until `open_until`, or is well again where that is 0.

    Both are Unix time in seconds by the server's clock; of two states of one tool the one that was
    `set_at` later holds.
    """

    tool: str
    open_until: float
    set_at: float

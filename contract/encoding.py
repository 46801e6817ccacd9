"""JSON for the wire: one encoder, one decoder, one canonical form.

msgspec keeps integers of any size and the difference between 1 and 1.0, which an argument must not
lose between the model and its tool.
"""

import hashlib
import math
from typing import Any

import msgspec

_encoder = msgspec.json.Encoder()
_canonical = msgspec.json.Encoder(order="deterministic")
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()

encode = _encoder.encode
"""Compact UTF-8 JSON. Raises TypeError, ValueError or RecursionError for what JSON cannot hold.

Not-a-number and the infinities become null: check for them first where that matters.
"""

encode_lines = _encoder.encode_lines
"""The same of each of several values, each with a line feed."""

decode = _decoder.decode
"""The value in bytes or a text. Raises msgspec.DecodeError (a ValueError) or RecursionError."""

canonical = _canonical.encode
"""JSON with sorted keys: equal values have equal bytes."""


def rounded(seconds: float) -> float:
    """To a tenth of a millisecond, in a third of the time of `round`."""
    return int(seconds * 10_000 + 0.5) / 10_000


def printable(text: str) -> str:
    """`text` with what UTF-8 cannot hold, halves of surrogate pairs, as question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def word_of(value: Any, longest: int = 60) -> str:
    """What a provider says in one word, printable: mostly text, or an SDK's enum."""
    value = getattr(value, "value", value)
    try:
        return printable(value if isinstance(value, str) else str(value))[:longest]
    except (ValueError, RecursionError):  # more digits than Python writes, or no end
        return type(value).__name__


def digest(value: Any) -> str:
    """32 hex characters that stand for the canonical form of `value`."""
    return hashlib.blake2b(canonical(value), digest_size=16).hexdigest()


def size_of(value: Any) -> int | None:
    """How many bytes a value has as JSON; None for one that is none."""
    try:
        size = len(encode(value))  # which also tells that it has an end
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    return size if is_json(value) else None


def is_json(value: Any) -> bool:
    """Whether a value is what JSON has: texts as keys, and no number that is none."""
    left = [value]
    for item in left:
        if isinstance(item, dict):
            if not all(isinstance(key, str) for key in item):
                return False
            left.extend(item.values())
        elif isinstance(item, (list, tuple)):
            left.extend(item)
        elif isinstance(item, float):
            if not math.isfinite(item):
                return False
        elif not (item is None or isinstance(item, (str, int))):
            return False
    return True

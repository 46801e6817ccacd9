"""JSON for the wire: one encoder, one decoder, one canonical form.

msgspec preserves integers of any size and the difference between 1 and 1.0, so arguments reach the
tool exactly as the model sent them.
"""

import hashlib
import math
import re
from itertools import accumulate
from typing import Any

import msgspec

_LONGEST_WORD = 60


def _plain(value: Any) -> Any:
    """The text or number of a subclass, such as `markupsafe.Markup` or `numpy.float64`."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise TypeError(f"{type(value).__name__} objects cannot be written as JSON")


_encoder = msgspec.json.Encoder(enc_hook=_plain)
_canonical = msgspec.json.Encoder(enc_hook=_plain, order="deterministic")


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError("number out of range")
    return number


# msgspec reads a number such as 1e308 a hundred times slower than `float` does, holding the GIL.
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=_finite)

encode = _encoder.encode
"""Compact UTF-8 JSON. Raises TypeError, ValueError or RecursionError for unserializable values.

NaN and the infinities become null; check for them first if null would be wrong.
"""

decode = _decoder.decode
"""Decode bytes or text. Raises msgspec.DecodeError (a ValueError) or RecursionError."""

canonical = _canonical.encode
"""JSON with sorted keys: equal values have equal bytes."""


def decoder_of(kind: Any) -> "msgspec.json.Decoder[Any]":
    """A decoder for values of this type that `encode` has encoded."""
    return msgspec.json.Decoder(kind, float_hook=float)


def rounded(seconds: float) -> float:
    """Round to a tenth of a millisecond, in a third of the time of `round`."""
    return int(seconds * 10_000 + 0.5) / 10_000


def printable(text: str) -> str:
    """`text` with lone surrogates, which UTF-8 cannot encode, replaced by question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def word_of(value: Any) -> str:
    """A provider's one-word value as printable text; it is a string or an SDK's enum."""
    value = getattr(value, "value", value)
    try:
        return printable(value if isinstance(value, str) else str(value))[:_LONGEST_WORD]
    except (ValueError, RecursionError):  # an integer too long to print, or a cyclic value
        return type(value).__name__


def _number(text: str) -> int | float:
    number = _finite(text)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


_number_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=_number)


def digest(value: Any) -> str:
    """32 hex characters: a hash of the canonical form of `value`."""
    return hashlib.blake2b(canonical(value), digest_size=16).hexdigest()


def stored_digest(value: Any) -> str:
    """A digest that does not change if the value is stored and read again.

    25.0 and 25 have the same digest, because JavaScript stores 25.0 as 25, and a protobuf `Struct`
    stores 25 as 25.0.
    """
    data = canonical(value)
    if b".0" in data:
        data = canonical(_number_decoder.decode(data))
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def size_of(value: Any) -> int | None:
    """The size of a value as JSON in bytes; None if it is not JSON-serializable."""
    try:
        size = len(encode(value))  # raises for a cyclic value
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    return size if is_json(value) else None


def is_json(value: Any) -> bool:
    """Whether a value is JSON: keys are strings, and all numbers are finite."""
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


_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_OTHERS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_AS_LISTS = bytes.maketrans(b"{}", b"[]")
_ROUNDS = 8
_STEPS = {ord("["): 1, ord("]"): -1}


def nests_deeper_than(levels: int, encoded: bytes) -> bool:
    """Whether valid JSON nests more than `levels` deep.

    Most data have fewer than `levels` brackets in total, and counting brackets is fast.
    """
    if encoded.count(b"[") + encoded.count(b"{") <= levels:
        return False
    brackets = _STRING.sub(b"", encoded).translate(_AS_LISTS, _OTHERS)
    if len(brackets) <= 2 * levels:
        return False
    for _ in range(min(_ROUNDS, levels)):  # each round removes the innermost level
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return False
        levels -= 1
    return max(accumulate(map(_STEPS.__getitem__, brackets))) > levels

"""Measures the nesting of JSON without parsing it."""

import re
from itertools import accumulate

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_OTHERS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_AS_LISTS = bytes.maketrans(b"{}", b"[]")
_ROUNDS = 8
_STEPS = {ord("["): 1, ord("]"): -1}


def nests_deeper_than(levels: int, encoded: bytes) -> bool:
    """Whether valid JSON nests more than `levels` deep.

    Most data have fewer brackets than that in all, which is counted quickly.
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

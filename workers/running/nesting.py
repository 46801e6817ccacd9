"""How deep JSON is nested, without reading it."""

import re
from itertools import accumulate

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_OTHERS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_AS_LISTS = bytes.maketrans(b"{}", b"[]")
_ROUNDS = 8
_STEPS = {ord("["): 1, ord("]"): -1}


def nests_deeper_than(levels: int, encoded: bytes) -> bool:
    """Whether valid JSON has more than `levels` brackets open at once.

    Ordinary data have fewer brackets than that in all, which is quickly counted.
    """
    if encoded.count(b"[") + encoded.count(b"{") <= levels:
        return False
    brackets = _STRING.sub(b"", encoded).translate(_AS_LISTS, _OTHERS)
    if len(brackets) <= 2 * levels:
        return False
    for _ in range(min(_ROUNDS, levels)):  # each takes the innermost level away
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return False
        levels -= 1
    return max(accumulate(map(_STEPS.__getitem__, brackets))) > levels

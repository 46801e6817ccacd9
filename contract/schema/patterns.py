"""Patterns of JSON Schema (ECMA-262), and how long they may take to match.

Rust's `regex` takes at worst time in proportion to the compiled pattern and to the text
(https://docs.rs/regex/latest/regex/#untrusted-input): `(a{1,50}){1,50}c` takes seconds for a text
of 60,000 characters. Patterns with lookaround or back references need another engine, whose steps
are limited, and each of which may read the whole text.
"""

import functools
import re
from collections.abc import Iterable
from typing import NamedTuple

import jsonschema_rs

_SIZES = (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
"""Bytes. The largest limits a pattern of few characters that grows: `((a{100}){100}){100}`."""
_SMALL = 50
_GROWN = 5_000
_SLOW = 4_000
_BACKTRACKS = 10_000
"""Limits catastrophic patterns that need lookaround."""
_LONGEST_BACKTRACKED = 9_000
"""A longer text may reach that limit, and would be told not to match."""
_TOO_MANY = 1 << 40
LINEAR = jsonschema_rs.RegexOptions(size_limit=_SIZES[-1])
BACKTRACKING = jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACKS, size_limit=_SIZES[-1])
_CHARACTER = re.compile(
    r"\\[pP]\{[^}]*\}|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|(?P<kept>\\[1-9k])|(?P<empty>\\[bB])"
    r"|\\.|\[(?:\\.|[^\]\\])*\]|\."
)
_ESCAPES = {
    r"\d": "[0-9]",
    r"\D": "[^0-9]",
    r"\w": "[A-Za-z0-9_]",
    r"\W": "[^A-Za-z0-9_]",
    r"\s": "[\t-\r \xa0\u2000-\u200a]",
    r"\S": "[^\t-\r \xa0\u2000-\u200a]",
}
"""Classes of about the same compiled size. jsonschema-rs takes quadratic time for the escapes."""
_ONE_PATH = re.compile(r"\^(?:[^{}()|*+?^$\\]|\{\d+\})*(?:[*+]|\{\d+(?:,\d*)?\})?\$?")
"""A choice at most at the end: in any text, only one state is reached at a time."""
_COUNTED = re.compile(r"\{(?:\d*,)?(\d+),?\}")
_CHOICES = 12
"""With more classes and counted repetitions, the automaton may have more states than are cached."""
_FIRST_LOOKAHEAD = re.compile(r"\^\(\?[=!]")


class PatternCost(NamedTuple):
    """What it costs at worst to match a text against patterns."""

    states: int = 0
    """The bytes of the compiled patterns, as if each class were one character."""
    backtracking: int = 0
    """The states of the patterns that need lookaround elsewhere than first, or back references."""

    @property
    def is_high(self) -> bool:
        """Whether some text takes long."""
        return self.states > _SLOW or self.backtracking > 0

    def steps(self, length: int) -> int:
        """The steps for a text of this length, of 0.2 microseconds each.

        Measured at worst: 0.2 nanoseconds for each byte and character, in each of the steps of a
        pattern that backtracks.
        """
        if self.backtracking and length > _LONGEST_BACKTRACKED:
            return _TOO_MANY
        return length * self.states // 1000 + length * length * self.backtracking // 1000


NO_COST = PatternCost()


def total(costs: Iterable[PatternCost]) -> PatternCost:
    """The cost of matching a text against all these patterns."""
    listed = list(costs)
    return PatternCost(sum(c.states for c in listed), sum(c.backtracking for c in listed))


def pattern_cost(pattern: object) -> PatternCost:
    """The cost of a pattern; nothing for other types."""
    return _cost(pattern) if isinstance(pattern, str) else NO_COST


@functools.lru_cache(maxsize=4096)
def _cost(pattern: str) -> PatternCost:
    plain = _CHARACTER.sub(_one_character, pattern)
    if _ONE_PATH.fullmatch(plain):
        return PatternCost(_SMALL)
    if (states := _size(plain, jsonschema_rs.RegexOptions)) is not None:
        choices = sum(not found["empty"] for found in _CHARACTER.finditer(pattern))
        choices += sum(int(found[1]) for found in _COUNTED.finditer(plain))
        least = _GROWN if choices > _CHOICES else _SMALL
        return PatternCost(least if states == _SIZES[0] else max(states, least))
    if parts := _after_lookahead(plain):
        return total(map(_cost, parts))
    states = _size(plain, jsonschema_rs.FancyRegexOptions) or _SIZES[-1]
    return PatternCost(0, 10 if states <= _SIZES[1] else states)


def _one_character(found: re.Match[str]) -> str:
    return found["kept"] or ("" if found["empty"] else "a")


def _after_lookahead(plain: str) -> tuple[str, str] | None:
    """What a lookahead at the beginning of a text looks for, and the rest of the pattern.

    Each is tried once, at the beginning. None for any other pattern.
    """
    if not _FIRST_LOOKAHEAD.match(plain):
        return None
    depth = 0
    for at, sign in enumerate(plain):
        depth += (sign == "(") - (sign == ")")
        if sign == ")" and not depth:
            ahead, rest = plain[4:at], plain[at + 1 :]
            is_alternative = _has_alternatives(rest)
            return None if is_alternative else (f"^(?:{ahead})", f"^{rest}")
    return None


def _has_alternatives(plain: str) -> bool:
    """Whether a pattern has a `|` outside of groups, or begins with a quantifier."""
    depth = 0
    for sign in plain:
        depth += (sign == "(") - (sign == ")")
        if sign == "|" and not depth:
            return True
    return plain[:1] in tuple("*+?{")


def work_of(pattern: str) -> int:
    """What it takes to compile a pattern, in characters."""
    escapes = sum(found[0] in _ESCAPES for found in _CHARACTER.finditer(pattern))
    return 20 + len(pattern) + escapes * escapes // 10


@functools.lru_cache(maxsize=4096)
def size_of(pattern: str) -> int:
    """The bytes that a compiled pattern takes, rounded up."""
    plain = _CHARACTER.sub(lambda found: _ESCAPES.get(found[0], found[0]), pattern)
    linear = _size(plain, jsonschema_rs.RegexOptions)
    return linear or _size(plain, jsonschema_rs.FancyRegexOptions) or _SIZES[-1]


def _size(pattern: str, engine: type) -> int | None:
    """The smallest size limit with which a pattern compiles; None if it compiles with none."""
    for size in _SIZES:
        try:
            jsonschema_rs.validator_for(
                {"pattern": pattern}, pattern_options=engine(size_limit=size)
            )
        except ValueError:
            continue
        return size
    return None


def has_pattern(pattern: str, text: str) -> bool:
    """Whether a text matches a pattern of the schema; False if the pattern cannot be used."""
    validator = _validator(pattern)
    return validator is not None and validator.is_valid(text)


@functools.lru_cache(maxsize=128)
def _validator(pattern: str) -> "jsonschema_rs.Draft202012Validator | None":
    try:
        return jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=LINEAR)
    except ValueError:
        return None

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

_LARGEST = 1 << 24
"""Limits a pattern of few characters that grows, such as `((a{100}){100}){100}`. In bytes."""
_SMALLEST = 1 << 12
_BACKTRACKS = 10_000
"""Limits catastrophic patterns that need lookaround."""
_SHORT_TEXT = 64
_SMALL = 1 << 16
LINEAR = jsonschema_rs.RegexOptions(size_limit=_LARGEST)
BACKTRACKING = jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACKS, size_limit=_LARGEST)
_CHARACTER = re.compile(
    r"\\[pP]\{[^}]*\}|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|(\\[bB])|\\.|\[(?:\\.|[^\]\\])*\]|\."
)
_ONE_REPETITION = re.compile(r"\^[^{}()|*+?^$]*\{\d+(?:,\d*)?\}[^{}()|*+?^$]*\$?")


class PatternCost(NamedTuple):
    """What it costs at worst to match a text against patterns; false if it is always little."""

    states: int = 0
    """The bytes of the compiled patterns, as if each class were one character."""
    backtracking: int = 0
    """How many of the patterns need lookaround or back references."""

    def steps(self, length: int) -> int:
        """The steps for a text of this length, of 0.2 microseconds each.

        Measured at worst: 0.2 nanoseconds for each byte and character, and 2 nanoseconds for each
        character that a backtracking step reads. Short texts reach few states of a pattern.
        """
        is_short = length <= _SHORT_TEXT and self.states <= _SMALL
        linear = 0 if is_short else length * self.states // 1000
        return linear + self.backtracking * length * min(length, _BACKTRACKS) // 100


NO_COST = PatternCost()


def total(costs: Iterable[PatternCost]) -> PatternCost:
    """The cost of matching a text against all these patterns."""
    listed = list(costs)
    return PatternCost(sum(c.states for c in listed), sum(c.backtracking for c in listed))


def pattern_cost(pattern: object) -> PatternCost:
    """The cost of a pattern. Nothing for other types, and for the many whose cost is always low."""
    return _cost(pattern) if isinstance(pattern, str) else NO_COST


@functools.lru_cache(maxsize=4096)
def _cost(pattern: str) -> PatternCost:
    if _size(pattern, jsonschema_rs.RegexOptions) is None:
        return PatternCost(0, 1)
    plain = _CHARACTER.sub(lambda found: "" if found[1] else "a", pattern)
    if _ONE_REPETITION.fullmatch(plain):
        return NO_COST  # it is in one state at a time
    states = _size(plain, jsonschema_rs.RegexOptions) or _LARGEST
    return NO_COST if states == _SMALLEST else PatternCost(states)


@functools.lru_cache(maxsize=4096)
def size_of(pattern: str) -> int:
    """The bytes that a compiled pattern takes, rounded up."""
    linear = _size(pattern, jsonschema_rs.RegexOptions)
    return linear or _size(pattern, jsonschema_rs.FancyRegexOptions) or _LARGEST


def _size(pattern: str, engine: type) -> int | None:
    """The size limit that lets a pattern compile; None if there is none."""
    size = _SMALLEST
    while size <= _LARGEST:
        try:
            jsonschema_rs.validator_for(
                {"pattern": pattern}, pattern_options=engine(size_limit=size)
            )
        except ValueError:
            size *= 4
        else:
            return size
    return None


def has_pattern(pattern: str, text: str) -> bool:
    """Whether a text matches a pattern of the schema; False if the pattern cannot be used."""
    validator = _validator(pattern)
    return validator is not None and validator.is_valid(text)


@functools.lru_cache(maxsize=1024)
def _validator(pattern: str) -> "jsonschema_rs.Draft202012Validator | None":
    try:
        return jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=LINEAR)
    except ValueError:
        return None

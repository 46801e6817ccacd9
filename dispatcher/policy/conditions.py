"""One comparison of a policy rule: a path into the arguments or the context, and a test.

Patterns are those of JSON Schema (ECMA-262), without lookaround and back references, so that
matching takes linear time: the text comes from a model.
"""

import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jsonschema_rs
import msgspec

from toolpool.contract import encoding

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+|\*)\]")
_FLAGS = re.compile(r"\(\?([a-zA-Z-]+)[:)]")
_NUMBERS = ("above", "at_least", "below", "at_most")
_RUST = {
    ".": r"[^\n\r\u2028\u2029]",
    r"\b": r"(?-u:\b)",
    r"\B": r"(?-u:\B)",
    r"\<": "<",
    r"\>": ">",
}


class RuleFailed(Exception):
    """Raised if a comparison cannot be made. The text contains no value."""


class Condition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A test of the value at `argument` or `context`, a path such as `lines[*].sku`.

    All comparisons must hold. A missing value fulfils only `missing`.
    """

    argument: str | None = None
    context: str | None = None
    equals: Any = msgspec.UNSET
    differs_from: Any = msgspec.UNSET
    one_of: list[Any] | None = None
    none_of: list[Any] | None = None
    above: int | float | None = None
    at_least: int | float | None = None
    below: int | float | None = None
    at_most: int | float | None = None
    matches: str | None = None
    does_not_match: str | None = None
    longer_than: int | None = None
    missing: bool | None = None


Holds = Callable[[Any], bool]
Steps = tuple[str | int | None, ...]
"""A path: names, positions, and None for every element."""

_ABSENT = object()
"""A placeholder for a missing value."""


class Test:
    """A compiled condition. Raises ValueError for an invalid one."""

    def __init__(self, condition: Condition) -> None:
        if (condition.argument is None) == (condition.context is None):
            raise ValueError("a condition needs either `argument` or `context`")
        self.of_context = condition.argument is None
        path = condition.argument if condition.argument is not None else condition.context
        assert path is not None
        self.condition = condition
        self.steps = _steps(path)
        self._missing = condition.missing
        self._comparisons = list(_comparisons(condition, in_any_order=True))
        self._for_all = list(_comparisons(condition, in_any_order=False))
        if not self._comparisons and condition.missing is None:
            raise ValueError(
                f"the condition on {path!r} has no comparison: give it equals, differs_from, "
                "one_of, none_of, above, at_least, below, at_most, matches, does_not_match, "
                "longer_than or missing"
            )
        self.compares_lists = (
            condition.longer_than is not None
            or not self._comparisons
            or any(isinstance(value, list) for value in self.constants)
        )
        """Whether a list is compared as a whole, and not by its elements."""
        if condition.one_of == [] or condition.none_of == []:
            raise ValueError(f"{path!r}: a list to compare with must not be empty")
        if condition.missing and self._comparisons:
            raise ValueError(f"{path!r}: `missing` cannot be combined with a comparison")

    @property
    def needs_number(self) -> bool:
        """Whether it compares numbers only."""
        return any(getattr(self.condition, name) is not None for name in _NUMBERS)

    @property
    def needs_text(self) -> bool:
        """Whether it matches text against a pattern."""
        return self.condition.matches is not None or self.condition.does_not_match is not None

    @property
    def constants(self) -> list[Any]:
        """The values that it compares for equality."""
        asked = self.condition
        single = [v for v in (asked.equals, asked.differs_from) if v is not msgspec.UNSET]
        return single + (asked.one_of or []) + (asked.none_of or [])

    def holds(self, value: Any, *, for_all: bool) -> bool:
        """Whether it holds for all values at the path (`for_all`), or else for any.

        Rules that allow pass `for_all`; their lists must then be in the same order. Otherwise the
        order is ignored, since a list may stand for a set. Raises `RuleFailed`.
        """
        found = list(_at(value, self.steps, for_all=for_all))
        if not self.compares_lists:
            found = [element for one in found for element in _elements(one)]
        if not found:  # `[*]` of an empty list
            return self._missing is True
        comparisons = self._for_all if for_all else self._comparisons
        results = (self._compared(one, comparisons) for one in found)
        return all(results) if for_all else any(results)

    def _compared(self, value: Any, comparisons: list[Holds]) -> bool:
        if value is _ABSENT or (self._missing is not None and value is None):
            return self._missing is True
        if self._missing is True:
            return False
        return all(comparison(value) for comparison in comparisons)


def _steps(path: str) -> Steps:
    """The steps of a path. Raises ValueError."""
    steps: list[str | int | None] = []
    at = 0
    while at < len(path):
        if path[at] == "." and steps:
            at += 1
        found = _STEP.match(path, at)
        if found is None or (found[1] and steps and path[at - 1] != "."):
            raise ValueError(f"{path!r} is not a valid path: an example is `customer.lines[*].sku`")
        name, position = found.groups()
        steps.append(name or (None if position == "*" else int(position)))
        at = found.end()
    if not steps:
        raise ValueError("a path must not be empty")
    return tuple(steps)


def _at(value: Any, steps: Steps, *, for_all: bool) -> Iterator[Any]:
    """The values at a path; `_ABSENT` for each branch that ends early.

    A tool may accept a single value in place of a list: the value then counts as the list's only
    element. A tool may also accept a list where the path continues with a name: the name then means
    that field of each element.
    """
    below = partial(_at, for_all=for_all)
    if not steps:
        yield value
        return
    step, rest = steps[0], steps[1:]
    if isinstance(value, list) and not isinstance(step, int):
        for one in value:
            yield from below(one, rest if step is None else steps)
    elif step is None and isinstance(value, dict):
        yield from _of_each(value, rest, for_all=for_all)
    elif isinstance(step, int) and isinstance(value, list):
        yield from below(value[step], rest) if step < len(value) else [_ABSENT]
    elif isinstance(value, dict) and step in value:
        yield from below(value[step], rest)
    elif not step and value is not None:  # `[*]` or `[0]` of a single value in place of a list
        yield from below(value, rest)
    else:
        yield _ABSENT


def _of_each(value: dict[str, Any], rest: Steps, *, for_all: bool) -> list[Any]:
    """The values at `rest` of each element of a map, or of one object in place of a list.

    If it could be either, a rule that denies or asks compares both.
    """
    of_map = [each for one in value.values() for each in _at(one, rest, for_all=for_all)]
    if not rest or (for_all and any(each is not _ABSENT for each in of_map)):
        return of_map
    of_object = [each for each in _at(value, rest, for_all=for_all) if each is not _ABSENT]
    if of_object and all(each is _ABSENT for each in of_map):
        return of_object
    return of_map + of_object


def _elements(value: Any) -> Iterator[Any]:
    """The elements of a list, including those of nested lists; any other value itself."""
    if not isinstance(value, list) or not value:
        yield value
        return
    for one in value:
        yield from _elements(one)


def _comparisons(condition: Condition, *, in_any_order: bool) -> Iterator[Holds]:
    """The comparisons of the condition. `in_any_order`: a comparison that depends only on the order
    of a list holds.
    """
    if condition.equals is not msgspec.UNSET:
        yield _same_as(condition.equals, in_any_order)
    if condition.differs_from is not msgspec.UNSET:
        yield _not(_same_as(condition.differs_from, not in_any_order))
    if condition.one_of is not None:
        yield _any_of(condition.one_of, in_any_order)
    if condition.none_of is not None:
        yield _not(_any_of(condition.none_of, not in_any_order))
    for name in _NUMBERS:
        limit = getattr(condition, name)
        if limit is not None:
            yield _number(name, limit)
    if condition.matches is not None:
        yield _pattern(condition.matches)
    if condition.does_not_match is not None:
        fits = _pattern(condition.does_not_match)
        yield lambda value: value is not None and not fits(value)
    if condition.longer_than is not None:
        yield _longer_than(condition.longer_than)


def _not(holds: Holds) -> Holds:
    return lambda value: not holds(value)


def _same_as(wanted: Any, in_any_order: bool) -> Holds:
    """A test for equality as in JSON: true is not 1, and 1 is 1.0.

    Raises ValueError for a non-JSON value.
    """
    if not encoding.is_json(wanted):
        raise ValueError("a value to compare with must be valid JSON: no date, nan or inf")
    return lambda value: are_same(value, wanted, in_any_order=in_any_order)


def are_same(one: Any, other: Any, *, in_any_order: bool = False) -> bool:
    """Whether two values are equal as in JSON: true is not 1, and 1 is 1.0."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            are_same(one[key], other[key], in_any_order=in_any_order) for key in one
        )
    if isinstance(one, list) and isinstance(other, list):
        if in_any_order:
            return _contains(one, other) and _contains(other, one)
        return len(one) == len(other) and all(
            map(partial(are_same, in_any_order=False), one, other)
        )
    return bool(one == other)


def _contains(some: list[Any], others: list[Any]) -> bool:
    return all(any(are_same(one, other, in_any_order=True) for one in some) for other in others)


def _any_of(wanted: list[Any], in_any_order: bool) -> Holds:
    tests = [_same_as(one, in_any_order) for one in wanted]
    return lambda value: any(test(value) for test in tests)


def _number(name: str, limit: float) -> Holds:
    if not -math.inf < limit < math.inf:
        raise ValueError(f"`{name}` must be a JSON number, not nan or inf")
    compare: Callable[[Any], bool] = {
        "above": lambda value: value > limit,
        "at_least": lambda value: value >= limit,
        "below": lambda value: value < limit,
        "at_most": lambda value: value <= limit,
    }[name]

    def holds(value: Any) -> bool:
        if value is None:
            return False
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise RuleFailed(f"`{name}` needs a number, and the value is a {_kind(value)}")
        return compare(value)

    return holds


def _pattern(pattern: str) -> Holds:
    if _has_nested_class(pattern):
        raise ValueError(
            f"the pattern {pattern!r} has a `[` inside of `[…]`, which stands for itself: write "
            r"[0-9] or \d in place of [[:digit:]], and \[ where a bracket is meant"
        )
    if re.search(r"(?:^|[^\\])(?:\\\\)*\[\^?\]", pattern):
        raise ValueError(f"the pattern {pattern!r} has an empty class: write \\] for a bracket")
    if any(set(flags) - set("im-") for flags in _FLAGS.findall(pattern)):
        raise ValueError(
            f"the pattern {pattern!r} has a flag that ECMA-262 does not have; [\\d\\D] "
            "matches any character, line breaks too"
        )
    try:
        validator = jsonschema_rs.validator_for(
            {"pattern": _of_rust(pattern)}, pattern_options=jsonschema_rs.RegexOptions()
        )
    except ValueError:
        raise ValueError(
            f"the pattern {pattern!r} cannot be used: lookaround and back references are "
            "not supported (https://json-schema.org/understanding-json-schema/reference/"
            "regular_expressions)"
        ) from None

    def holds(value: Any) -> bool:
        if value is None:
            return False
        if not isinstance(value, str):
            raise RuleFailed(f"a pattern needs a text, and the value is a {_kind(value)}")
        return validator.is_valid(value)

    return holds


def _has_nested_class(pattern: str) -> bool:
    """Whether a bracket class contains an opening bracket, such as `[[:digit:]]`."""
    return any(sign == "[" and is_inside for sign, is_inside in _signs(pattern))


def _of_rust(pattern: str) -> str:
    r"""The pattern for Rust's engine, in which `.` and `\b` mean more than in ECMA-262."""
    return "".join(
        sign if is_inside else _RUST.get(sign, sign) for sign, is_inside in _signs(pattern)
    )


def _signs(pattern: str) -> Iterator[tuple[str, bool]]:
    """The signs of a pattern, each with whether it is inside of a bracket class."""
    is_inside = False
    for sign in re.findall(r"\\.|[^\\]|\\$", pattern, re.DOTALL):
        yield sign, is_inside
        is_inside = sign == "[" or (is_inside and sign != "]")


def _longer_than(length: int) -> Holds:
    def holds(value: Any) -> bool:
        if value is None:
            return False
        if not isinstance(value, (str, list, dict)):
            raise RuleFailed(f"`longer_than` needs a text or a list, not a {_kind(value)}")
        return len(value) > length

    return holds


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__

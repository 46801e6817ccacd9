"""One comparison of a policy rule: a path into the arguments or the context, and a test.

Patterns are those of JSON Schema (ECMA-262), without lookaround and back references, so that
matching takes linear time: the text comes from a model.
"""

import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jsonschema_rs
import msgspec

from toolpool.contract import encoding
from toolpool.contract.schema import patterns
from toolpool.dispatcher.policy.equality import (
    Budget,
    Constants,
    Likeness,
    NotComparable,
    RuleFailed,
    are_same,
    number_of,
)

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+|\*)\]")
_FLAGS = re.compile(r"\(\?([a-zA-Z-]+)[:)]")
_LONGEST_NUMBER = 1_000
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "above": operator.gt,
    "at_least": operator.ge,
    "below": operator.lt,
    "at_most": operator.le,
}
_EXACT_IN_FLOATS = 2**53
_RUST = {
    ".": r"[^\n\r\u2028\u2029]",
    r"\b": r"(?-u:\b)",
    r"\B": r"(?-u:\B)",
    r"\<": "<",
    r"\>": ">",
}


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


Holds = Callable[[Any, Budget], bool]
Steps = tuple[str | int | None, ...]
"""A path: names, positions, and None for every element."""

_ABSENT, _OTHER_FORM = object(), object()
"""Placeholders for a missing value, and for one that may be in a form that the path cannot enter.
"""


class StepForms(NamedTuple):
    """The forms in which a tool takes the value that a step of a path enters."""

    listed: frozenset[str] = frozenset()
    """Texts that its schema lists (`enum`), and that therefore contain nothing."""
    is_map: bool = True
    """Whether it may be a map. For a name: of objects that have this field, in place of one."""
    is_object: bool = True
    """Whether it may be one object in place of a list, if the step is no name."""
    is_open: bool = True
    """Whether the schema says nothing about the value."""


class Reading(NamedTuple):
    """How the schema of a tool reads a condition. By default, nothing is known of the schema."""

    forms: Sequence[StepForms] = ()
    """The forms by the number of the step."""
    canonical: Callable[[Any], Any] = lambda constant: constant
    """The form in which a constant is judged, for example with defaults filled in."""
    likeness: Likeness = Likeness()


AS_WRITTEN = Reading()


class Test:
    """A compiled condition. Raises ValueError for an invalid one."""

    def __init__(self, condition: Condition, reading: Reading = AS_WRITTEN) -> None:
        if (condition.argument is None) == (condition.context is None):
            raise ValueError("a condition needs either `argument` or `context`")
        self.of_context = condition.argument is None
        path = condition.argument if condition.argument is not None else condition.context
        assert path is not None
        self.path = path
        self.condition = condition
        self.steps = _steps(path)
        self._reading = reading
        self._missing = condition.missing
        self._comparisons = list(_comparisons(condition, reading, is_loose=True))
        self._for_all = list(_comparisons(condition, reading, is_loose=False))
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
        return any(getattr(self.condition, name) is not None for name in _ORDER)

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

    def read_by(self, reading: Reading) -> "Test":
        """The same test for the arguments of one tool."""
        return Test(self.condition, reading)

    def holds(self, value: Any, *, for_all: bool, budget: Budget | None = None) -> bool:
        """Whether it holds for all values at the path (`for_all`), or else for any.

        Rules that allow pass `for_all`: a value must then be exactly the one that the rule names.
        For rules that deny or ask it is enough that the tool may take it as such. Raises
        `RuleFailed` if that cannot be said, or would take more than the budget.
        """
        budget = budget or Budget()
        found = list(self._at(value, 0, budget))
        if not self.compares_lists:
            found = [element for one in found for element in _elements(one)]
            budget.spend(2 * len(found))
        if not found:  # `[*]` of an empty list
            return self._missing is True
        comparisons = self._for_all if for_all else self._comparisons
        failed: RuleFailed | None = None
        for one in found:
            try:
                if self._compared(one, comparisons, budget, for_all=for_all) is not for_all:
                    return not for_all
            except NotComparable as error:
                failed = RuleFailed(f"{self.path}: {error}")
            except RuleFailed as error:
                failed = error
        if failed is not None:
            raise failed
        return for_all

    def _compared(
        self, value: Any, comparisons: list[Holds], budget: Budget, *, for_all: bool
    ) -> bool:
        budget.spend(4)
        if value is _OTHER_FORM:
            if for_all:
                return False
            raise RuleFailed(f"the arguments have another form than the path {self.path}")
        if value is _ABSENT or (self._missing is not None and value is None):
            return self._missing is True
        if self._missing is True:
            return False
        return all(comparison(value, budget) for comparison in comparisons)

    def _forms(self, number: int) -> StepForms:
        forms = self._reading.forms
        return forms[number] if forms else StepForms()

    def _at(self, value: Any, number: int, budget: Budget) -> Iterator[Any]:
        """The values below `value` at the path's steps from `number` on.

        `_ABSENT` and `_OTHER_FORM` stand for branches that end early. A single value may stand for
        a list of it, and is then the only element; a name means that field of each element.
        """
        budget.spend(6)
        if number == len(self.steps):
            yield value
            return
        step = self.steps[number]
        below = partial(self._at, number=number + 1, budget=budget)
        if isinstance(value, list) and isinstance(step, int):
            yield from below(value[step]) if step < len(value) else [_ABSENT]
        elif isinstance(value, list):
            for one in value:
                yield from below(one) if step is None else self._at(one, number, budget)
        elif isinstance(value, dict) and not isinstance(step, str):
            yield from self._of_each(value, number, budget)
        elif isinstance(value, dict):
            yield from below(value[step]) if step in value else [_ABSENT]
            yield from self._in_map(value, number, budget)
        elif value is not None and not step:  # `[*]` or `[0]` of a single value
            yield from below(value)
        elif isinstance(value, (bool, type(None))) or isinstance(step, int):
            yield _ABSENT
        else:
            is_listed = isinstance(value, str) and value in self._forms(number).listed
            yield _ABSENT if is_listed else _OTHER_FORM

    def _in_map(self, value: dict[str, Any], number: int, budget: Budget) -> list[Any]:
        """`_OTHER_FORM` if an object may be a map of objects that have the named field."""
        forms, step = self._forms(number), self.steps[number]
        if not forms.is_map or (forms.is_open and step in value):
            return []
        budget.spend(len(value) // 2)
        found = (
            each
            for name, one in value.items()
            if name != step and isinstance(one, (dict, list))
            for each in self._at(one, number, budget)
        )
        return [_OTHER_FORM] if any(each is not _ABSENT for each in found) else []

    def _of_each(self, value: dict[str, Any], number: int, budget: Budget) -> list[Any]:
        """The values of each element of a map, or of one object in place of a list.

        If it could be either, both are compared.
        """
        step, forms = self.steps[number], self._forms(number)
        below = partial(self._at, number=number + 1, budget=budget)
        is_whole = number + 1 == len(self.steps) and forms.is_map
        is_compared = not is_whole or any(isinstance(each, dict) for each in self.constants)
        of_object = list(below(value)) if forms.is_object and not step and is_compared else []
        if not forms.is_map:
            return of_object or [_ABSENT]
        of_map = [each for one in value.values() for each in below(one)]
        if isinstance(step, int):  # a map has no positions
            of_map = [_OTHER_FORM for each in of_map if each is not _ABSENT]
        of_object = [each for each in of_object if each is not _ABSENT and each is not _OTHER_FORM]
        if of_object:
            of_map = [each for each in of_map if each is not _OTHER_FORM]
            if all(each is _ABSENT for each in of_map):
                return of_object
        found = of_map + of_object
        return found if found or step is None else [_ABSENT]


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
        if name and (name in ("*", "$") or name != name.strip() or name.startswith("/")):
            raise ValueError(
                f"{path!r} is not a valid path: write `labels[*]` for each value of a list or a "
                "map, and `customer.id` for a field"
            )
        steps.append(name or (None if position == "*" else int(position)))
        at = found.end()
    if not steps:
        raise ValueError("a path must not be empty")
    return tuple(steps)


def shown_path(steps: Steps) -> str:
    """A path as it is written in a policy file."""
    shown = "".join(
        f".{s}" if isinstance(s, str) else f"[{'*' if s is None else s}]" for s in steps
    )
    return shown.removeprefix(".")


def _elements(value: Any) -> Iterator[Any]:
    """The elements of a list, including those of nested lists; any other value itself."""
    if not isinstance(value, list) or not value:
        yield value
        return
    for one in value:
        yield from _elements(one)


def _comparisons(condition: Condition, reading: Reading, *, is_loose: bool) -> Iterator[Holds]:
    """The comparisons of the condition. `is_loose`: they hold if in doubt."""
    if condition.equals is not msgspec.UNSET:
        yield _one_of([condition.equals], reading, is_loose=is_loose)
    if condition.differs_from is not msgspec.UNSET:
        yield _not(_one_of([condition.differs_from], reading, is_loose=not is_loose))
    if condition.one_of is not None:
        yield _one_of(condition.one_of, reading, is_loose=is_loose)
    if condition.none_of is not None:
        yield _not(_one_of(condition.none_of, reading, is_loose=not is_loose))
    for name in _ORDER:
        limit = getattr(condition, name)
        if limit is not None:
            yield _number(name, limit, reads_texts=reading.likeness.is_number)
    if condition.matches is not None:
        yield _matches(condition.matches, reading, any_spelling=is_loose)
    if condition.does_not_match is not None:
        fits = _matches(condition.does_not_match, reading, any_spelling=not is_loose)
        yield lambda value, budget: value is not None and not fits(value, budget)
    if condition.longer_than is not None:
        yield _longer_than(condition.longer_than)


def _matches(pattern: str, reading: Reading, *, any_spelling: bool) -> Holds:
    """Whether a text matches. One that the tool reads as a number is tried in each spelling."""
    fits = _pattern(pattern)
    if not reading.likeness.is_number:
        return fits
    holds = any if any_spelling else all
    return lambda value, budget: holds(fits(one, budget) for one in _spellings(value))


def _spellings(value: Any) -> list[Any]:
    """A text as it is, and the number in it in full, without an exponent and zeros at its end."""
    number = number_of(value) if isinstance(value, str) else None
    if not isinstance(number, Decimal):
        return [value]
    if abs(number.adjusted()) > _LONGEST_NUMBER:
        raise RuleFailed("a pattern is compared with a number of more than a thousand digits")
    full = f"{number:f}"
    return [value, full, full.rstrip("0").rstrip(".") if "." in full else full]


def _not(holds: Holds) -> Holds:
    return lambda value, budget: not holds(value, budget)


def _one_of(wanted: list[Any], reading: Reading, *, is_loose: bool) -> Holds:
    """A test for equality with one of several constants.

    Raises ValueError for a non-JSON constant; the test raises `NotComparable` if it is loose.
    """
    if not encoding.is_json(wanted):
        raise ValueError("a value to compare with must be valid JSON: no date, nan or inf")
    forms = wanted + [reading.canonical(constant) for constant in wanted]
    if is_loose:
        return Constants(forms, reading.likeness).contain
    single = {form for form in forms if _is_indexed(form)}
    others = [form for form in forms if not _is_indexed(form)]

    def holds(value: Any, budget: Budget) -> bool:
        if _is_indexed(value):
            return value in single
        budget.spend(2 * len(others))
        return any(are_same(value, each) for each in others)

    return holds


def _number(name: str, given: float, *, reads_texts: bool) -> Holds:
    limit = number_of(given)  # 0.1 is the number that is written so, as it is for a Decimal
    if limit is None:
        raise ValueError(f"`{name}` must be a JSON number, not nan or inf")
    compare = _ORDER[name]
    # Large integers are compared with an integer: their conversion to a Decimal is slow.
    whole = math.floor(limit) if name in ("above", "at_most") else math.ceil(limit)
    is_float = isinstance(given, float) or abs(given) <= _EXACT_IN_FLOATS

    def holds(value: Any, budget: Budget) -> bool:
        budget.spend(5)
        if value is None:
            return False
        if isinstance(value, int) and not isinstance(value, bool):
            return compare(value, whole)
        if isinstance(value, float) and is_float:
            return compare(value, given)
        number = None
        if isinstance(value, float) or (reads_texts and isinstance(value, str)):
            budget.spend(10 + (len(value) // 20 if isinstance(value, str) else 0))
            number = number_of(value)
        if number is None:
            raise RuleFailed(f"`{name}` needs a number, and the value is a {_kind(value)}")
        return compare(number, limit)

    return holds


def _is_indexed(value: Any) -> bool:
    """Whether a value can be looked up in a set: Python takes true for 1, and JSON does not."""
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


@lru_cache(maxsize=1024)
def _pattern(pattern: str) -> Holds:
    if _has_nested_class(pattern):
        raise ValueError(
            f"the pattern {pattern!r} has a `[` inside of `[…]`, which stands for itself: write "
            r"[0-9] or \d in place of [[:digit:]], and \[ where a bracket is meant"
        )
    if re.search(r"(?:^|[^\\])(?:\\\\)*\[\^?\]", pattern):
        raise ValueError(f"the pattern {pattern!r} has an empty class: write \\] for a bracket")
    if any(set(flags) - set("i-") for flags in _FLAGS.findall(pattern)):
        raise ValueError(
            f"the pattern {pattern!r} has a flag other than i; [\\d\\D] matches any character, "
            "line breaks too, and (^|\\n) the beginning of a line"
        )
    if any(sign in (r"\A", r"\z") for sign, _ in _signs(pattern)):
        raise ValueError(f"the pattern {pattern!r} has \\A or \\z: write ^ or $")
    try:
        validator = jsonschema_rs.validator_for(
            {"pattern": _of_rust(pattern)}, pattern_options=patterns.LINEAR
        )
    except ValueError:
        raise ValueError(
            f"the pattern {pattern!r} cannot be used: lookaround and back references are "
            "not supported (https://json-schema.org/understanding-json-schema/reference/"
            "regular_expressions)"
        ) from None

    cost = patterns.pattern_cost(_of_rust(pattern))

    def holds(value: Any, budget: Budget) -> bool:
        if value is None:
            return False
        if not isinstance(value, str):
            raise RuleFailed(f"a pattern needs a text, and the value is a {_kind(value)}")
        budget.spend(5 + len(value) // 50 + cost.steps(len(value)))
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
    def holds(value: Any, _: Budget) -> bool:
        if value is None:
            return False
        if not isinstance(value, (str, list, dict)):
            raise RuleFailed(f"`longer_than` needs a text or a list, not a {_kind(value)}")
        return len(value) > length

    return holds


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__

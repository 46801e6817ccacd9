"""Equality of JSON values: the exact one, and the one for rules that must not miss a value."""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from toolpool.contract.schema.canonical import spelling
from toolpool.contract.schema.json_values import json_type

_ANY_DAY = date(2000, 1, 1)
_STEPS_OF_AN_INDEX = 200
_CLOCK = re.compile(r"(?:^|\d[Tt ])\d\d:\d\d")


class RuleFailed(Exception):
    """Raised if a comparison cannot be made. The text contains no value."""


class NotComparable(RuleFailed):
    """Raised if a value may contain what it is compared with, in a form that cannot be compared."""


class Budget:
    """The work that rules may do for one call, in steps of about 0.2 microseconds."""

    def __init__(self, steps: int = 2_000_000) -> None:
        self._left = steps

    def spend(self, steps: int) -> None:
        """Raises `RuleFailed` if too little is left."""
        self._left -= steps
        if self._left < 0:
            raise RuleFailed("the arguments are too large for all comparisons of the rules")


class Defaults:
    """The defaults of absent fields by the name of the field, indexed when first compared."""

    def __init__(self, values: Mapping[str, list[Any]]) -> None:
        self._values = values
        self._known: dict[str, Constants] = {}

    def of(self, name: str, likeness: "Likeness", budget: Budget) -> "Constants":
        """The values that a field may have if it is absent."""
        known = self._known.get(name)
        if known is None:
            known = Constants(self._values.get(name, ()), likeness.below(), budget)
            if name in self._values:
                self._known[name] = known
        return known


_NO_DEFAULTS = Defaults({})


class Likeness(NamedTuple):
    """Which different values a tool takes for the same, as its schema says."""

    formats: frozenset[str] = frozenset()
    """The formats of texts, by whose types spellings are compared."""
    defaults: Defaults = _NO_DEFAULTS
    is_number: bool = False
    """Whether texts may be numbers, as those of a Decimal."""
    listed: frozenset[str] = frozenset()
    """Texts that the schema lists (`enum`) for the value itself: they contain no object."""

    def below(self) -> "Likeness":
        """The same for the fields of the value."""
        return self._replace(listed=frozenset())


def are_same(one: Any, other: Any) -> bool:
    """Whether two values are equal as in JSON: true is not 1, and 1 is 1.0."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(are_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(are_same, one, other))
    return bool(one == other)


class Constants:
    """Constants of a rule, indexed so that a value is compared with all single values at once."""

    def __init__(
        self, values: Iterable[Any], likeness: Likeness, budget: Budget | None = None
    ) -> None:
        values = list(values)
        if budget is not None:
            budget.spend(_STEPS_OF_AN_INDEX + 10 * len(values) * (1 + len(likeness.formats)))
        self._likeness = likeness
        self._texts = {each for each in values if isinstance(each, str)}
        self._lowered = {each.lower() for each in self._texts}
        scalars = [e for e in values if isinstance(e, (int, float)) and not isinstance(e, bool)]
        self._numbers = set(map(number_of, scalars))
        self._text_numbers = set(map(number_of, self._texts)) - {None}
        self._as_text = self._numbers | self._text_numbers if likeness.is_number else self._numbers
        self._flags = {str(each).lower() for each in values if isinstance(each, bool)}
        self._moments = set(map(_moment, self._texts)) - {None}
        self._spellings = {
            format: found
            for format in likeness.formats
            if (found := {spelling(format, text) for text in self._texts} - {None})
        }
        self._has_null = any(each is None for each in values)
        self._has_scalars = bool(scalars or self._flags or self._texts - likeness.listed)
        self._lists = [
            (each, Constants(each, likeness, budget)) for each in values if isinstance(each, list)
        ]
        below = likeness.below()
        self._objects = [
            (each, {name: Constants([inner], below, budget) for name, inner in each.items()})
            for each in values
            if isinstance(each, dict)
        ]

    def contain(self, value: Any, budget: Budget) -> bool:
        """Whether a tool may take a value as one of the constants.

        Unlike `are_same`, it ignores the order of lists, which may stand for sets, and takes a
        number for its text, a time for the same moment with another offset, and a value for a list
        of it.

        Raises `NotComparable` for an object in place of a single value, or the reverse, and
        `RuleFailed` if the budget is spent.
        """
        budget.spend(3)
        if value is None:
            return self._has_null
        if isinstance(value, list):
            return self._has_part(value, budget)
        return self._has_single(value, budget) or self._has_list([value], budget)

    def _has_part(self, value: list[Any], budget: Budget) -> bool:
        """Whether a list, one inside of it, or an element of them is one of the constants."""
        budget.spend(3)
        return self._has_list(value, budget) or any(
            self._has_part(each, budget)
            if isinstance(each, list)
            else self._has_single(each, budget)
            for each in value
        )

    def _has_single(self, value: Any, budget: Budget) -> bool:
        """Whether a value that is no list is one of the constants that are no lists."""
        budget.spend(3)
        if isinstance(value, dict):
            if self._has_object(value, budget):
                return True
            if not self._has_scalars:
                return False
            raise NotComparable("its type is object, and it is compared with a single value")
        if self._has_scalar(value, budget):
            return True
        is_listed = isinstance(value, str) and value in self._likeness.listed
        if self._objects and not isinstance(value, (bool, type(None))) and not is_listed:
            raise NotComparable(
                f"its type is {json_type(value)}, and it is compared with an object"
            )
        return False

    def _has_scalar(self, value: Any, budget: Budget) -> bool:
        if isinstance(value, bool):
            name = str(value).lower()
            return name in self._flags or name in self._lowered
        if value is None:
            return self._has_null
        if isinstance(value, (int, float)):
            number = number_of(value)
            return number in self._numbers or number in self._text_numbers
        budget.spend(len(value) // 20 + 10 * len(self._spellings))
        if value in self._texts or (self._flags and value.lower() in self._flags):
            return True
        for format, known in self._spellings.items():
            if spelling(format, value) in known:
                return True
        if self._moments and _moment(value) in self._moments:
            return True
        return bool(self._as_text) and number_of(value) in self._as_text

    def _has_object(self, value: dict[str, Any], budget: Budget) -> bool:
        failed: NotComparable | None = None
        for given, fields in self._objects:
            try:
                if self._is_object(value, given, fields, budget):
                    return True
            except NotComparable as error:
                failed = error
        if failed is not None:
            raise failed
        return False

    def _is_object(
        self,
        value: dict[str, Any],
        given: dict[str, Any],
        fields: dict[str, "Constants"],
        budget: Budget,
    ) -> bool:
        """Whether an object is the `given` one; an absent field may have its default."""
        failed: NotComparable | None = None
        defaults = self._likeness.defaults
        for name in {**value, **given}:
            try:
                if name in value and name in fields:
                    is_same = fields[name].contain(value[name], budget)
                else:
                    one = value[name] if name in value else given[name]
                    is_same = defaults.of(name, self._likeness, budget).contain(one, budget)
            except NotComparable as error:
                failed, is_same = error, True
            if not is_same:
                return False
        if failed is not None:
            raise failed
        return True

    def _has_list(self, value: list[Any], budget: Budget) -> bool:
        own: Constants | None = None  # built only if the other half holds
        for given, index in self._lists:
            if all(index.contain(each, budget) for each in value):
                own = own or Constants(value, self._likeness, budget)
                if all(own.contain(each, budget) for each in given):
                    return True
        return False


def number_of(value: Any) -> Decimal | int | None:
    """A number, or a text that types such as Decimal read as one.

    Integers stay as they are: the conversion of large ones is slow, and they equal their Decimal.
    """
    if isinstance(value, int):
        return value
    try:
        number = Decimal(value if isinstance(value, str) else repr(value))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _moment(text: str) -> datetime | time | None:
    """The date and time, or time of day, that a text means."""
    if not _CLOCK.search(text):
        return None
    text = text.upper()  # RFC 3339 permits `t` and `z`
    with suppress(ValueError):
        return datetime.fromisoformat(text)
    with suppress(ValueError):
        found = time.fromisoformat(text)
        if found.tzinfo is None:
            return found
        # 23:00-01:00 is 00:00Z
        return datetime.combine(_ANY_DAY, found).astimezone(UTC).timetz()
    return None

"""Equality of JSON values: the exact one, and the one for rules that must not miss a value."""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from toolpool.contract.schema.canonical import spelling
from toolpool.contract.schema.json_values import json_type

_CLOCK = re.compile(r"(?:^|\d[Tt ])\d\d:\d\d")


class NotComparable(Exception):
    """Raised if a value may contain what it is compared with, in a form that cannot be compared."""


class Likeness(NamedTuple):
    """Which different values a tool takes for the same, as its schema says."""

    formats: frozenset[str] = frozenset()
    """The formats of texts, by whose types spellings are compared."""
    defaults: Mapping[str, list[Any]] = {}
    """The defaults of absent fields, by the name of the field."""
    is_number: bool = False
    """Whether texts may be numbers, as those of a Decimal."""
    listed: frozenset[str] = frozenset()
    """Texts that the schema lists (`enum`) for the value itself: they contain no object."""


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

    def __init__(self, values: Iterable[Any], likeness: Likeness) -> None:
        values = list(values)
        self._likeness = likeness
        self._texts = {each for each in values if isinstance(each, str)}
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
        self._defaults: dict[str, Constants] = {}
        """The defaults of fields that were absent, by the name of the field."""
        self._has_null = any(each is None for each in values)
        self._has_scalars = bool(scalars or self._flags or self._texts - likeness.listed)
        self._lists = [
            (each, Constants(each, likeness)) for each in values if isinstance(each, list)
        ]
        below = likeness._replace(listed=frozenset())
        self._objects = [
            (each, {name: Constants([inner], below) for name, inner in each.items()})
            for each in values
            if isinstance(each, dict)
        ]

    def contain(self, value: Any) -> bool:
        """Whether a tool may take a value as one of the constants.

        Unlike `are_same`, it ignores the order of lists, which may stand for sets, and takes a
        number for its text, a time for the same moment with another offset, and a value for a list
        of it.

        Raises `NotComparable` for an object in place of a single value, or the reverse.
        """
        if value is None:
            return self._has_null
        if isinstance(value, list):
            return self._has_list(value) or any(map(self._has_single, value))
        return self._has_single(value) or self._has_list([value])

    def _has_single(self, value: Any) -> bool:
        """Whether a value, or an element of a list, is one of the constants that are no lists."""
        if isinstance(value, list):
            return any(map(self._has_single, value))
        if isinstance(value, dict):
            if self._has_object(value):
                return True
            if not self._has_scalars:
                return False
            raise NotComparable("its type is object, and it is compared with a single value")
        if self._has_scalar(value):
            return True
        is_listed = isinstance(value, str) and value in self._likeness.listed
        if self._objects and not isinstance(value, (bool, type(None))) and not is_listed:
            raise NotComparable(
                f"its type is {json_type(value)}, and it is compared with an object"
            )
        return False

    def _has_scalar(self, value: Any) -> bool:
        if isinstance(value, bool):
            name = str(value).lower()
            return name in self._flags or any(text.lower() == name for text in self._texts)
        if value is None:
            return self._has_null
        if isinstance(value, (int, float)):
            number = number_of(value)
            return number in self._numbers or number in self._text_numbers
        if value in self._texts or (self._flags and value.lower() in self._flags):
            return True
        for format, known in self._spellings.items():
            if spelling(format, value) in known:
                return True
        if self._moments and _moment(value) in self._moments:
            return True
        return bool(self._as_text) and number_of(value) in self._as_text

    def _has_object(self, value: dict[str, Any]) -> bool:
        failed: NotComparable | None = None
        for given, fields in self._objects:
            try:
                if self._is_object(value, given, fields):
                    return True
            except NotComparable as error:
                failed = error
        if failed is not None:
            raise failed
        return False

    def _is_object(
        self, value: dict[str, Any], given: dict[str, Any], fields: dict[str, "Constants"]
    ) -> bool:
        """Whether an object is the `given` one; an absent field may have its default."""
        failed: NotComparable | None = None
        for name in {**value, **given}:
            try:
                if name in value and name in fields:
                    is_same = fields[name].contain(value[name])
                else:
                    one = value[name] if name in value else given[name]
                    is_same = self._defaults_of(name).contain(one)
            except NotComparable as error:
                failed, is_same = error, True
            if not is_same:
                return False
        if failed is not None:
            raise failed
        return True

    def _defaults_of(self, name: str) -> "Constants":
        known = self._defaults.get(name)
        if known is None:
            defaults = self._likeness.defaults.get(name, ())
            known = self._defaults[name] = Constants(defaults, self._likeness)
        return known

    def _has_list(self, value: list[Any]) -> bool:
        own: Constants | None = None  # built only if the other half holds
        for given, index in self._lists:
            if all(map(index.contain, value)):
                own = own or Constants(value, self._likeness)
                if all(map(own.contain, given)):
                    return True
        return False


def number_of(value: Any) -> Decimal | None:
    """A number, or a text that types such as Decimal read as one."""
    try:
        number = Decimal(value if isinstance(value, (int, str)) else repr(value))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _moment(text: str) -> datetime | time | None:
    """The date and time, or time of day, that a text means."""
    if not _CLOCK.search(text):
        return None
    for kind in (datetime, time):
        try:
            return kind.fromisoformat(text.upper())  # RFC 3339 permits `t` and `z`
        except ValueError:
            continue
    return None

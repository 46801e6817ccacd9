"""Equality of JSON values: the exact one, and the one for rules that must not miss a value."""

import re
from datetime import datetime, time
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

from toolpool.contract.schema.json_values import json_type

_CLOCK = re.compile(r"(?:^|\d[Tt ])\d\d:\d\d")
_LONGEST_NUMBER = 400


class NotComparable(Exception):
    """Raised if a value may contain what it is compared with, in a form that cannot be compared."""


def are_same(one: Any, other: Any) -> bool:
    """Whether two values are equal as in JSON: true is not 1, and 1 is 1.0."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(are_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(are_same, one, other))
    return bool(one == other)


def may_be_same(value: Any, constant: Any, *, is_number: bool = False) -> bool:
    """Whether a tool may take `value` as the `constant` of a rule.

    Unlike `are_same`, it ignores the order of lists, which may stand for sets, and takes a number
    for its text, a time for the same moment with another offset, and a value for a list of it.
    `is_number`: texts may be numbers, and are compared as such.

    Raises `NotComparable` for an object in place of a single value, or the reverse.
    """
    same = partial(may_be_same, is_number=is_number)
    if isinstance(value, list) and isinstance(constant, list):
        return _contains(value, constant, same) and _contains(constant, value, same)
    if isinstance(value, list):
        return any(same(each, constant) for each in value)
    if value is None or constant is None:
        return value is constant
    if isinstance(value, dict) and isinstance(constant, dict):
        return value.keys() == constant.keys() and all(
            same(value[name], constant[name]) for name in value
        )
    if isinstance(constant, list):
        return same([value], constant)
    if isinstance(value, dict) or isinstance(constant, dict):
        if isinstance(value, bool):
            return False
        raise NotComparable(
            f"the type is {json_type(value)}, and it is compared with {json_type(constant)}"
        )
    return _is_same_scalar(value, constant, is_number=is_number)


def _contains(some: list[Any], others: list[Any], same: Any) -> bool:
    """Whether each of `others` is among `some`."""
    found = [[same(one, other) for one in some] for other in others]
    return all(map(any, found))


def _is_same_scalar(value: Any, constant: Any, *, is_number: bool) -> bool:
    if are_same(value, constant):
        return True
    texts = isinstance(value, str) + isinstance(constant, str)
    if isinstance(value, bool) or isinstance(constant, bool):
        return texts == 1 and str(value).lower() == str(constant).lower()
    if texts == 1 or (texts and is_number):
        number = _number(value)
        return number is not None and number == _number(constant)
    moment = _moment(constant) if texts else None
    return moment is not None and moment == _moment(value)


def _number(value: Any) -> Decimal | None:
    """A number, or a text that types such as Decimal read as one."""
    text = str(value)
    if len(text) > _LONGEST_NUMBER:
        return None
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _moment(text: str) -> datetime | time | None:
    """The date and time, or time of day, that a text means."""
    if not _CLOCK.search(text):
        return None
    for kind in (datetime, time):
        try:
            return kind.fromisoformat(text)
        except ValueError:
            continue
    return None

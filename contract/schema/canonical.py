"""Canonical arguments: defaults filled in, and each value in one spelling.

A policy judges these, and a judged call runs with them: a field that a model omits or spells
differently is judged by the value that the tool gets.
"""

import copy
import functools
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from pydantic import (
    AnyUrl,
    IPvAnyAddress,
    IPvAnyInterface,
    IPvAnyNetwork,
    TypeAdapter,
    ValidationError,
)

from toolpool.contract import encoding
from toolpool.contract.schema.json_values import list_of, pointer_step
from toolpool.contract.schema.patterns import has_pattern
from toolpool.contract.schema.references import (
    UNIONS,
    at_pointer,
    hides_siblings,
    referred,
    resolve,
)

_STEPS_AT_MOST = 2_500_000
"""Limits the work, in steps of 0.2 microseconds: each branch of a union is tried for each value."""
_STEPS_OF_A_VALUE = 10
_STEPS_OF_A_BRANCH = 15
_STEPS_OF_A_PATTERN = 3
_SCALARS = (str, int, float, type(None))
_CARRIERS = frozenset({"$ref", "allOf", *UNIONS})
_ABSENT = object()
_CANONICAL_TYPES: Mapping[str, Any] = {
    "date": date,
    "date-time": datetime,
    "date-time-local": datetime,
    "ipv4": IPv4Address,
    "ipv6": IPv6Address,
    "iri": AnyUrl,
    "time": time,
    "time-local": time,
    "uri": AnyUrl,
    **dict.fromkeys(("uuid", *(f"uuid{version}" for version in range(1, 9))), UUID),
}
"""Formats with one canonical spelling, as pydantic writes the type that workers use."""
_PATHS = ("directory-path", "file-path", "path")
"""Formats of paths. Linux takes two slashes at the beginning for one, and pathlib does not."""
_WORKER_TYPES: Mapping[str, Any] = {
    "duration": timedelta,
    "ipv4interface": IPv4Interface,
    "ipv4network": IPv4Network,
    "ipv6interface": IPv6Interface,
    "ipv6network": IPv6Network,
    "ipvanyaddress": IPvAnyAddress,
    "ipvanyinterface": IPvAnyInterface,
    "ipvanynetwork": IPvAnyNetwork,
    **dict.fromkeys(_PATHS, Path),
}
"""More formats of Python types: a worker runs a judged call only in their canonical spelling."""


class _Field(NamedTuple):
    """The schema of a field, its place, and its default, if it has one."""

    schema: Any
    place: str
    default: Any


class Canonical:
    """Converts arguments to canonical form. `fits` tests a value against the schema at a place.

    A place is a JSON pointer into the schema. `steps` counts the steps of such a test, of at most
    0.2 microseconds.
    """

    def __init__(
        self,
        schema: dict[str, Any],
        fits: Callable[[str, Any], bool],
        steps: Callable[[str, Any], int],
    ) -> None:
        self._root = schema
        self._fits = fits
        self._steps = steps
        self._changing: dict[int, bool] = {}
        """Whether a schema may change a single value, by its identity."""
        self._hides_siblings = hides_siblings(schema)
        self._fields: dict[str, dict[str, _Field]] = {}
        """Cached by the place of the schema that has the fields."""

    def of(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The canonical form of valid arguments; unchanged parts are shared with them.

        Raises ValueError if the schema's references recurse too deeply.
        """
        found: dict[str, Any] = self._of(arguments, self._root, "")
        return found

    def at(self, place: str, value: Any) -> tuple[bool, Any]:
        """Whether a value fits the schema at a place, and its canonical form there.

        Raises ValueError if the schema's references recurse too deeply.
        """
        if self._steps(place, value) > _STEPS_AT_MOST:
            raise ValueError("its schema takes too many steps to validate a value")
        if not self._fits(place, value):
            return False, value
        found = self._of(value, at_pointer(self._root, place), place)
        return True, found if self._fits(place, found) else value

    def _of(self, value: Any, node: Any, place: str) -> Any:
        try:
            return self._value(value, node, place, [_STEPS_AT_MOST])
        except RecursionError:
            raise ValueError("the defaults of the schema recurse without end") from None

    def _value(self, value: Any, node: Any, place: str, steps: list[int]) -> Any:
        if not isinstance(node, dict):
            return value
        if isinstance(value, _SCALARS) and not self._may_change(node):
            return value
        _spend(steps, _STEPS_OF_A_VALUE)
        if not node.keys().isdisjoint(_CARRIERS):
            if isinstance(reference := node.get("$ref"), str):
                value = self._value(value, referred(reference, self._root), reference[1:], steps)
                if self._hides_siblings:
                    return value
            for number, part in enumerate(list_of(node.get("allOf"))):
                value = self._value(value, part, f"{place}/allOf/{number}", steps)
            for union in UNIONS & node.keys():
                value = self._of_union(value, list_of(node[union]), f"{place}/{union}", steps)
        if isinstance(value, dict):
            return self._object(value, node, place, steps)
        if isinstance(value, list):
            return self._array(value, node, place, steps)
        if isinstance(value, str):
            return spelled(node.get("format"), value)
        if isinstance(value, float) and node.get("type") == "integer" and value.is_integer():
            return int(value)
        return value

    def _of_union(self, value: Any, branches: list[Any], place: str, steps: list[int]) -> Any:
        """The result of the branches that the value fits, if they all agree."""
        found = []
        for number, branch in enumerate(branches):
            at = f"{place}/{number}"
            _spend(steps, _STEPS_OF_A_BRANCH + self._steps(at, value))
            if self._fits(at, value):
                found.append(self._value(value, branch, at, steps))
        are_same = found and all(
            one is found[0] or encoding.canonical(one) == encoding.canonical(found[0])
            for one in found
        )
        return found[0] if are_same else value

    def _may_change(self, node: dict[str, Any]) -> bool:
        """Whether a schema, or one that applies to the same value, may change a single value."""
        known = self._changing.get(id(node))
        if known is None:
            parts: list[Any] = [node]
            for part in parts:
                if not isinstance(part, dict):
                    continue
                more = list_of(part.get("allOf"))
                for union in UNIONS & part.keys():
                    more = [*more, *list_of(part[union])]
                if isinstance(reference := part.get("$ref"), str):
                    more = [*more, referred(reference, self._root)]
                parts += [each for each in more if not any(each is one for one in parts)]
            known = self._changing[id(node)] = any(map(_changes, parts))
        return known

    def _object(
        self, value: dict[str, Any], node: dict[str, Any], place: str, steps: list[int]
    ) -> dict[str, Any]:
        fields = self._fields.get(place)
        if fields is None:
            fields = self._fields[place] = self._fields_of(node, place)
        patterns = node.get("patternProperties")
        others = _Field(node.get("additionalProperties"), f"{place}/additionalProperties", _ABSENT)
        made: dict[str, Any] = {}
        is_same = True
        for name, inner in value.items():
            found = [fields[name]] if name in fields else []
            if isinstance(patterns, dict):
                _spend(steps, _STEPS_OF_A_PATTERN * len(patterns))
                found += _by_pattern(patterns, name, f"{place}/patternProperties")
            made[name] = inner
            for field in found or [others]:
                made[name] = self._value(made[name], field.schema, field.place, steps)
            is_same = is_same and made[name] is inner
        for name, field in fields.items():
            if name not in value and field.default is not _ABSENT:
                default = copy.deepcopy(field.default)
                made[name] = self._value(default, field.schema, field.place, steps)
                is_same = False
        return value if is_same else made

    def _fields_of(self, node: dict[str, Any], place: str) -> dict[str, "_Field"]:
        """The named fields of a schema, by name."""
        properties = node.get("properties")
        found = {}
        for name, inner in properties.items() if isinstance(properties, dict) else ():
            at = f"{place}/properties/{pointer_step(name)}"
            found[name] = _Field(inner, at, self._default(inner, at))
        return found

    def _array(
        self, value: list[Any], node: dict[str, Any], place: str, steps: list[int]
    ) -> list[Any]:
        key = "prefixItems" if "prefixItems" in node else "items"
        first = list_of(node.get(key))
        made = [
            self._value(inner, first[number], f"{place}/{key}/{number}", steps)
            if number < len(first)
            else self._value(inner, node.get("items"), f"{place}/items", steps)
            for number, inner in enumerate(value)
        ]
        is_same = all(one is other for one, other in zip(made, value, strict=True))
        return value if is_same else made

    def _default(self, node: Any, place: str) -> Any:
        """The default of a field; `_ABSENT` if it has none or an invalid one."""
        default = _ABSENT
        for holder in (node, resolve(node, self._root)):
            if default is _ABSENT and isinstance(holder, dict):
                default = holder.get("default", _ABSENT)
        return default if default is not _ABSENT and self._fits(place, default) else _ABSENT


def _changes(node: Any) -> bool:
    """Whether a schema itself may change a single value."""
    if not isinstance(node, dict):
        return False
    format = node.get("format")
    is_canonical = isinstance(format, str) and format in _CANONICAL_TYPES
    return is_canonical or node.get("type") == "integer"


def _spend(steps: list[int], count: int) -> None:
    steps[0] -= count
    if steps[0] < 0:
        raise ValueError("the canonical form, with its defaults, takes too many steps")


def _by_pattern(patterns: dict[str, Any], name: str, place: str) -> list[_Field]:
    """The schemas of a field by the patterns that match its name."""
    return [
        _Field(node, f"{place}/{pointer_step(pattern)}", _ABSENT)
        for pattern, node in patterns.items()
        if has_pattern(pattern, name)
    ]


def spelled(format: Any, text: str) -> str:
    """A text in the canonical spelling of its format."""
    is_canonical = isinstance(format, str) and format in _CANONICAL_TYPES
    return (spelling(format, text) or text) if is_canonical else text


def has_spelling(format: Any) -> bool:
    """Whether a format has a Python type, and so one spelling for equal values."""
    return isinstance(format, str) and format in TYPED_FORMATS


def spelling(format: str, text: str) -> str | None:
    """A text as the type of its format writes it; None if the type does not accept it."""
    adapter = _adapter(format)
    if adapter is None:
        return text
    try:
        found = str(adapter.dump_python(adapter.validate_python(text), mode="json"))
    except ValidationError:
        return None
    return found[1:] if format in _PATHS and found.startswith("//") else found


@functools.cache
def _adapter(format: str) -> "TypeAdapter[Any] | None":
    kind = _CANONICAL_TYPES.get(format) or _WORKER_TYPES.get(format)
    return TypeAdapter(kind) if kind is not None else None


TYPED_FORMATS: Mapping[str, Callable[[str], bool]] = {
    format: functools.partial(lambda format, text: spelling(format, text) is not None, format)
    for format in (*_CANONICAL_TYPES, *_WORKER_TYPES)
}
"""Whether the Python type of a format accepts a text, by format."""

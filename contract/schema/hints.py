"""Suggests corrections for the names and values of one call, within a fixed budget."""

from collections.abc import Sequence
from typing import Any

from toolpool.contract.schema import suggestions
from toolpool.contract.schema.json_values import json_type, literal, types_of

FIELDS_AT_MOST = 20
"""The most unknown fields of one object that are reported with a hint."""
MEMBERS_AT_MOST = 400
_COMPARED_AT_MOST = 8_000
"""Pairs of names in all; each costs a microsecond or two."""


class Listed:
    """The values that a schema lists, in display form."""

    __slots__ = ("literals", "more", "texts", "types")

    def __init__(self, values: Sequence[Any]) -> None:
        self.literals = tuple(literal(value) for value in values[:MEMBERS_AT_MOST])
        self.more = max(0, len(values) - MEMBERS_AT_MOST)
        self.texts = [value for value in values if isinstance(value, str)]
        self.types = types_of(values)


class Hints:
    """The suggestions for one call."""

    def __init__(self) -> None:
        self._left = _COMPARED_AT_MOST
        self._fields: dict[tuple[int, tuple[str, ...]], dict[str, str]] = {}
        self._values: dict[tuple[Listed, str, Any], str | None] = {}

    def fields(self, value: Any, holder: dict[str, Any]) -> dict[str, str]:
        """The missing field that each unknown field was certainly meant for.

        `holder` is the schema that has the object's fields.
        """
        if not isinstance(value, dict):
            return {}
        key = (id(holder), tuple(value))
        if key not in self._fields:
            properties = properties_of(holder)
            unknown = [name for name in value if name not in properties][:FIELDS_AT_MOST]
            absent = [name for name in properties if name not in value]
            may = self._may_compare(len(unknown) * len(absent))
            self._fields[key] = suggestions.pairs(unknown, absent) if may else {}
        return self._fields[key]

    def member(self, value: Any, listed: Listed) -> str | None:
        """The listed text that was certainly meant; a number or boolean may be meant as text."""
        if not isinstance(value, (str, bool, int, float)) or not listed.texts:
            return None
        key = (listed, json_type(value), value)
        if key not in self._values:
            found = None
            if self._may_compare(len(listed.texts)):
                found = _meant(value, listed.texts)
            self._values[key] = found
        return self._values[key]

    def _may_compare(self, count: int) -> bool:
        if self._left <= 0:
            return False
        self._left -= min(count, suggestions.COMPARED_AT_MOST)
        return True


def properties_of(schema: dict[str, Any]) -> dict[str, Any]:
    """The fields that a schema names."""
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _meant(value: str | bool | int | float, texts: Sequence[str]) -> str | None:
    if isinstance(value, str):
        return suggestions.closest(value, texts)
    spelt = literal(value)
    return next((text for text in texts if text.casefold() == spelt), None)

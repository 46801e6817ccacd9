"""How the schema of a tool reads a condition of a rule, and why a rule may be useless for a tool.

A call is denied if a condition cannot compare one of its values (see `conditions`). This module
finds the faults that no call would show: a path or a constant that no call can have, and values
that a rule would compare in another form than the tool gets.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.contract.schema.canonical import has_spelling
from toolpool.contract.schema.dialect import plain
from toolpool.contract.schema.json_values import (
    list_of,
    listed_values,
    members_of,
    pointer_step,
    types_of,
)
from toolpool.contract.schema.patterns import has_pattern
from toolpool.contract.schema.references import UNIONS, referred
from toolpool.contract.schema.validator import SchemaValidator
from toolpool.dispatcher.policy.conditions import Reading, StepForms, Test, shown_path
from toolpool.dispatcher.policy.equality import Defaults, Likeness, are_same

_PARTS_AT_MOST = 500
_STEPS_AT_MOST = 200_000
"""Limits the constants of a condition, each of which is tried with each branch of the schema."""
_CONSTANT_STEPS = 20
"""An object or a list takes some 100 microseconds for each branch, a single value 5."""
_CARRIERS = frozenset({"$ref", "allOf", "if", "dependentSchemas", *UNIONS})
_OF_OBJECTS = frozenset({"properties", "patternProperties", "additionalProperties", "required"})
_OF_LISTS = frozenset({"items", "prefixItems"})
_ENCODED_FORMATS = frozenset({"base64", "base64url"})  # of pydantic's Base64Str and Base64Bytes

Node = dict[str, Any]


class Useless(Exception):
    """Raised if a condition cannot be applied to a tool, with the reason."""


class ToolSchema:
    """The schema of a tool's arguments, compiled once for all rules; None accepts any object."""

    def __init__(self, schema: dict[str, Any] | None) -> None:
        self._root: Any = True if schema is None else plain(schema)

    def reading(self, test: Test, *, is_named: bool) -> Reading:
        """How the schema reads a condition. Raises `Useless` if it cannot be applied.

        `is_named`: the rule names this very tool, and not by a pattern that also matches others.
        Only then must the schema have the path, and accept the constants.
        """
        try:
            return self._reading(test, is_named=is_named)
        except (ValueError, RecursionError):
            raise Useless("its schema recurses too deeply to apply a rule to") from None

    def _reading(self, test: Test, *, is_named: bool) -> Reading:
        below: list[Any] = [self._root]
        parts = self._parts(below)
        forms = []
        for number, step in enumerate(test.steps):
            if isinstance(step, str):
                parts = self._with_elements(parts)
            below = list(itertools.chain.from_iterable(_below(parts, step)))
            if not below and is_named:
                raise Useless(f"its schema has no {shown_path(test.steps[: number + 1])}")
            if isinstance(step, int) and any(part.get("uniqueItems") is True for part in parts):
                where = shown_path(test.steps[:number])
                raise Useless(f"{where} is a set, which has no order: give {where}[*]")
            if not step and number + 1 == len(test.steps):  # [*] or [0]
                _require_elements(test, parts, shown_path(test.steps[:number]))
            forms.append(self._forms(parts, step))
            parts = self._parts(below)
        compared = self._with_elements(parts)
        _require_comparable(test, parts, compared)
        for constant in test.constants:
            self._require_fields(constant, compared, test.path, is_named=is_named)
        nodes = [*below, *parts, *self._elements(parts)]
        work = sum(_CONSTANT_STEPS if isinstance(c, (dict, list)) else 1 for c in test.constants)
        if work * len(nodes) > _STEPS_AT_MOST:
            raise Useless("it has too many values for a schema with so many branches")
        readings = [self._read(constant, nodes) for constant in test.constants]
        if is_named:
            _require_possible(test, readings, compared)
        if not (test.constants or test.needs_number or test.needs_text):
            return Reading(forms)

        read = {id(c): forms for c, forms in zip(test.constants, readings, strict=True)}

        def canonical(constant: Any) -> Any:
            found = read[id(constant)]
            return found[0] if len(found) == 1 else constant

        return Reading(forms, canonical, self._likeness(compared))

    def _require_fields(
        self, constant: Any, parts: Sequence[Node], where: str, *, is_named: bool
    ) -> None:
        """Raises `Useless` if a constant has a field that no call has, or that is encoded."""
        if isinstance(constant, list):
            for each in constant:
                self._require_fields(each, self._with_elements(parts), where, is_named=is_named)
        for name, inner in constant.items() if isinstance(constant, dict) else ():
            below = self._parts(itertools.chain.from_iterable(_below(parts, name)))
            if not below and is_named:
                raise Useless(f"{where} never equals this value: its schema has no {where}.{name}")
            _require_not_encoded(below, f"{where}.{name}")
            self._require_fields(inner, below, f"{where}.{name}", is_named=is_named)

    def _read(self, constant: Any, nodes: Iterable[Any]) -> list[Any]:
        """The different forms in which the tool gets a constant; empty if it accepts none."""
        found: list[Any] = []
        for node in nodes:
            is_valid, form = self._form(node, constant)
            if is_valid and not any(are_same(form, known) for known in found):
                found.append(form)
        return found

    def _form(self, node: Any, value: Any) -> tuple[bool, Any]:
        place = self._places.get(id(node))
        if place is not None and self._validator is not None:
            return self._validator.canonical_at(place, value)
        listed = listed_values(node) if isinstance(node, dict) else None
        is_open = listed is None and node is not False
        return is_open or any(are_same(value, each) for each in listed or ()), value

    @functools.cached_property
    def _validator(self) -> SchemaValidator | None:
        try:
            return SchemaValidator(self._root)
        except ToolDeclarationInvalid:
            return None  # such a tool is not offered

    @functools.cached_property
    def _places(self) -> dict[int, str]:
        """The JSON pointers of all parts, by their identity."""
        return {id(node): place for place, node in _places(self._root)}

    def _parts(self, nodes: Iterable[Any]) -> list[Node]:
        """All schemas that may apply to a value, with references and branches resolved."""
        found: list[Node] = []
        waiting = list(nodes)
        for part in waiting:
            part = {} if part is True else part
            if not isinstance(part, dict) or any(part is known for known in found):
                continue
            found.append(part)
            if len(found) > _PARTS_AT_MOST:
                raise Useless("its schema has too many branches to apply a rule to")
            if isinstance(part.get("$ref"), str):
                waiting.append(referred(part["$ref"], self._root))
            for key in ("allOf", *UNIONS):
                waiting += list_of(part.get(key))
            waiting += [part[key] for key in ("then", "else") if key in part]
            waiting += members_of(part.get("dependentSchemas"))
        return found

    def _elements(self, parts: Sequence[Node]) -> list[Any]:
        """The schemas of the elements of a list, and of the lists in it."""
        found: list[Any] = []
        waiting = list(parts)
        for part in waiting:
            if "array" in _types(part):
                items = _items(part)
                found += items
                waiting += [each for each in self._parts(items) if each not in waiting]
            if len(waiting) > _PARTS_AT_MOST:
                raise Useless("its schema has too many branches to apply a rule to")
        return found

    def _with_elements(self, parts: Sequence[Node]) -> list[Node]:
        """The schemas of a value, and of the elements of the lists that it may be."""
        return [*parts, *self._parts(self._elements(parts))]

    def _forms(self, parts: Sequence[Node], step: str | int | None) -> StepForms:
        is_open = all(map(_says_nothing, parts)) or {} in parts
        maps = [part for part in parts if _of_any_name(part)]
        has_objects = any(part.get("properties") for part in parts)
        if not isinstance(step, str):
            is_object = is_open or has_objects or not maps
            # A part that says nothing about fields leaves their names open, as in an `allOf`.
            is_map = bool(maps) or not has_objects or any(map(_says_nothing, parts))
            return StepForms(frozenset(), is_open or is_map, is_object, is_open)
        below = [e for part in maps if "properties" not in part for e in _of_any_name(part)]
        inner = self._with_elements(self._parts(below)) if has_objects else []
        is_map = any(_says_nothing(part) or _field(part, step) for part in inner)
        return StepForms(_listed_texts(parts), is_open or is_map, is_open=is_open)

    def _likeness(self, parts: Sequence[Node]) -> Likeness:
        """Which different values are the same here, and in the fields and elements below."""
        formats: set[str] = set()
        defaults: dict[str, list[Any]] = {}
        is_number = False
        waiting, known = [list(parts)], set(map(id, parts))
        for value in waiting:
            types = _types_of(value)
            is_number |= "string" in types and bool(types & {"integer", "number"})
            formats.update(part["format"] for part in value if has_spelling(part.get("format")))
            for part in value:
                fields = part.get("properties")
                for name, node in fields.items() if isinstance(fields, dict) else ():
                    found = [each["default"] for each in self._parts([node]) if "default" in each]
                    defaults.setdefault(name, []).extend(found)
                for each in members_of(fields) + _of_any_name(part) + _items(part):
                    if id(each) in self._places and id(each) not in known:
                        known.add(id(each))
                        waiting.append(self._parts([each]))
        return Likeness(frozenset(formats), Defaults(defaults), is_number, _listed_texts(parts))


def _require_comparable(test: Test, parts: Sequence[Node], compared: Sequence[Node]) -> None:
    """Raises `Useless` if a condition can compare no value of these schemas, or not as it is."""
    condition, where = test.condition, test.path
    types = _types_of(parts if test.compares_lists else compared)
    _require_not_encoded(compared, where)
    if test.constants and any(part.get("format") == "multi-host-uri" for part in compared):
        raise Useless(f"{where} has a spelling that only the tool's type knows: judge it by a hook")
    if test.needs_number and types and not types & {"integer", "number"}:
        raise Useless(f"{where} is no number")
    if test.needs_text and types and "string" not in types:
        raise Useless(f"{where} is no text")
    if condition.longer_than is not None:
        if types and not types & {"string", "array", "object"}:
            raise Useless(f"{where} has no length")
        if "array" in types and ("string" in types or _may_be_nested(parts)):
            raise Useless(
                f"{where} may be one value or a list of them: give {where}[*] to compare each"
            )
    if condition.missing and any(part.get("default") is not None for part in parts):
        raise Useless(f"{where} is never missing: its schema gives it a default")


def _require_elements(test: Test, parts: Sequence[Node], where: str) -> None:
    """Raises `Useless` if `[*]` or `[0]` of the value at `where` cannot be applied.

    An object with named fields has no elements. Where elements may be lists or not, a list that
    a condition names could be either the value or an element of it.
    """
    has_list = any(isinstance(constant, list) for constant in test.constants)
    if has_list and test.steps[-1] is None and _may_be_nested(parts):
        raise Useless(f"{where} may be one list or a list of lists: give {where} to compare both")
    has_object = any(isinstance(constant, dict) for constant in test.constants)
    is_record = any(part.get("properties") for part in parts) and not any(
        "array" in _types(part) or _of_any_name(part) or _says_nothing(part) for part in parts
    )
    if is_record and not has_object:
        raise Useless(f"{where} is an object without elements: name one of its fields")


def _may_be_nested(parts: Sequence[Node]) -> bool:
    """Whether a value may be a list of single values, or instead a list of lists."""
    found = ([each for each in _items(part) if isinstance(each, dict)] for part in parts)
    return len({all("array" in _types(each) for each in items) for items in found if items}) == 2


def _require_not_encoded(parts: Iterable[Node], where: str) -> None:
    if any(map(_is_encoded, parts)):
        raise Useless(
            f"{where} is encoded, and a rule compares it as it is sent: judge it by a hook"
        )


def _require_possible(test: Test, readings: Sequence[list[Any]], parts: Sequence[Node]) -> None:
    """Raises `Useless` if no call can have a constant.

    Where the schema lists all values, one of the constants is enough.
    """
    impossible = [c for c, forms in zip(test.constants, readings, strict=True) if not forms]
    is_listed = all(
        listed_values(part) is not None or _types(part) <= {"null", "array"} for part in parts
    )
    if impossible and (len(impossible) == len(readings) or not is_listed):
        raise Useless(f"{test.path} never equals what it is compared with")


def _types(part: Node) -> frozenset[str]:
    """The types that a schema itself names, or that its keywords are about; empty if none."""
    kind = part.get("type")
    if kind is not None:
        return frozenset([kind] if isinstance(kind, str) else kind)
    if (listed := listed_values(part)) is not None:
        return frozenset(types_of(listed).split("|"))
    found = {"object"} if part.keys() & _OF_OBJECTS else set()
    return frozenset(found | ({"array"} if part.keys() & _OF_LISTS else set()))


def _types_of(parts: Iterable[Node]) -> frozenset[str]:
    return frozenset[str]().union(*map(_types, parts))


def _says_nothing(part: Node) -> bool:
    return not _types(part) and part.keys().isdisjoint(_CARRIERS)


def _listed_texts(parts: Iterable[Node]) -> frozenset[str]:
    values = (value for part in parts for value in listed_values(part) or ())
    return frozenset(value for value in values if isinstance(value, str))


def _of_any_name(part: Node) -> list[Any]:
    """The schemas of the fields whose names the model may choose."""
    return members_of(part.get("patternProperties")) + _of_other_names(part)


def _of_other_names(part: Node) -> list[Any]:
    """The schema of the fields that a schema does not name; empty if it has none."""
    below = part.get("additionalProperties", part.get("unevaluatedProperties"))
    if below is None and _may_be_object(part):
        below = part.keys().isdisjoint({"properties", "patternProperties", *_CARRIERS})
    return [] if below is None or below is False else [below]


def _may_be_object(part: Node) -> bool:
    """Whether a schema accepts objects.

    Its type says so, or it has no type, and keywords that apply to objects or lists alone.
    """
    if "type" in part:
        return "object" in _types(part)
    is_listed = listed_values(part) is not None
    return not is_listed and not part.keys().isdisjoint(_OF_LISTS | _OF_OBJECTS)


def _below(parts: Sequence[Node], step: str | int | None) -> Iterator[list[Any]]:
    """The schemas one step below each of these."""
    if isinstance(step, str):
        fields = [each for part in parts for each in _field(part, step)]
        is_open = any(map(_says_nothing, parts)) and not any("properties" in p for p in parts)
        # A schema that does not name the field may stand beside one that does.
        yield [each for each in fields if each is not True] or fields or [True] * is_open
        return
    for part in parts:
        types = _types(part)
        if _says_nothing(part):
            yield [True]
        if "array" in types:
            yield _items(part, step)
        if step is None and ("object" in types or _of_any_name(part)):
            yield members_of(part.get("properties")) + _of_any_name(part)
        # one value in place of a list is its only element; a map has elements
        is_map = step is None and types <= {"object", "null"} and not part.get("properties")
        if not step and types - {"array", "null"} and not (is_map and _of_any_name(part)):
            yield [part]


def _items(part: Node, position: int | None = None) -> list[Any]:
    """The schemas of a list's elements, or of the one at a position."""
    if (listed := listed_values(part)) is not None:
        lists = [each for each in listed if isinstance(each, list)]
        return [{"enum": [one for each in lists for one in each]}] if lists else []
    first = list_of(part.get("prefixItems")) or list_of(part.get("items"))
    most = part.get("maxItems")
    length = most if isinstance(most, (int, float)) and not isinstance(most, bool) else math.inf
    if position is not None and position < len(first):
        return [first[position]] if position < length else []
    rest = part.get("items", part.get("unevaluatedItems", part.keys().isdisjoint(_CARRIERS)))
    if isinstance(rest, list):
        rest = part.get("additionalItems", True)
    rest = [rest] if rest is not False and max(len(first), position or 0) < length else []
    return rest if position is not None else [*first, *rest]


def _field(part: Node, name: str) -> list[Any]:
    """The schemas of a field; empty if the schema does not name it."""
    if not _may_be_named(part, name):
        return []
    if (listed := listed_values(part)) is not None:
        values = [each[name] for each in listed if isinstance(each, dict) and name in each]
        return [{"enum": values}] if values else []
    properties, patterns = part.get("properties"), part.get("patternProperties")
    found = [properties[name]] if isinstance(properties, dict) and name in properties else []
    if isinstance(patterns, dict):
        found += [node for pattern, node in patterns.items() if has_pattern(pattern, name)]
    return found or _of_other_names(part)


def _may_be_named(part: Node, name: str) -> bool:
    """Whether a field may have this name, by the listed names and the pattern for names."""
    names = part.get("propertyNames")
    if not isinstance(names, dict):
        return names is not False
    listed, pattern = listed_values(names), names.get("pattern")
    is_listed = listed is None or name in listed
    return is_listed and (not isinstance(pattern, str) or has_pattern(pattern, name))


def _places(node: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every part of a schema, with its JSON pointer."""
    inside: Iterable[tuple[Any, Any]] = ()
    if isinstance(node, dict):
        yield place, node
        inside = node.items()
    elif isinstance(node, list):
        inside = enumerate(node)
    for key, inner in inside:
        if isinstance(inner, (dict, list)):
            yield from _places(inner, f"{place}/{pointer_step(str(key))}")


def _is_encoded(part: Node) -> bool:
    """Whether a value is text that tools decode, such as base64 or JSON."""
    is_encoded = not part.keys().isdisjoint({"contentEncoding", "contentMediaType"})
    return is_encoded or part.get("format") in _ENCODED_FORMATS

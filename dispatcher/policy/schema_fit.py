"""Whether a rule can be applied to the arguments that a tool's schema accepts.

A rule that can never match a tool's arguments protects nothing, and would do so unnoticed.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jsonschema_rs

from toolpool.contract.schema.canonical import spelled
from toolpool.contract.schema.json_values import json_type, list_of, types_of
from toolpool.contract.schema.references import UNIONS, referred
from toolpool.dispatcher.policy.conditions import Test

_PARTS_AT_MOST = 500
_ANY = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_VALUES = frozenset({"boolean", "integer", "number", "string"})
_CARRIES = frozenset({"$ref", "allOf", *UNIONS})
_ENCODED_FORMATS = frozenset({"base64", "base64url"})  # of pydantic's Base64Str and Base64Bytes

Node = dict[str, Any]


def misfit(test: Test, schema: Any, *, is_named: bool) -> str:
    """Why a condition on an argument cannot be applied to the schema; empty if it can.

    `is_named`: the rule names this very tool, and not by a pattern that also matches others. Only
    then must the schema have the path, and accept the values that the rule compares with.
    """
    nodes = _parts([True if schema is None else schema], schema)
    for number, step in enumerate(test.steps):
        if isinstance(step, str):
            nodes = _with_elements(nodes, schema)
        inner = _parts(_inner(nodes, step), schema)
        if not inner:
            missing = _path(test.steps[: number + 1])
            return f"its schema has no {missing}" if is_named else ""
        if why := _other_form(nodes, step, schema):
            shown = _path(test.steps[:number]) or "the arguments"
            return f"{_path(test.steps[: number + 1])} cannot be judged: {shown} {why}"
        nodes = inner
    if any(map(_is_encoded, _with_elements(nodes, schema))):
        shown = _path(test.steps)
        return f"{shown} is encoded, and a rule compares it as it is sent: judge it by a hook"
    return _no_comparison(test, nodes, schema, is_named=is_named)


def _parts(nodes: Iterable[Any], root: Any) -> list[Node]:
    """The schemas that may apply to a value, with references and unions resolved."""
    waiting = [{} if node is True else node for node in nodes]
    found: list[Node] = []
    for part in waiting:
        if not isinstance(part, dict) or any(part is known for known in found):
            continue
        found.append(part)
        if len(found) > _PARTS_AT_MOST:
            return [{}]
        if isinstance(part.get("$ref"), str):
            waiting.append(referred(part["$ref"], root))
        every = list_of(part.get("allOf"))  # a schema without a type leaves the type to the others
        waiting += [{"type": [], **inner} if _is_untyped(inner) else inner for inner in every]
        for union in UNIONS:
            waiting += [{} if inner is True else inner for inner in list_of(part.get(union))]
    return found


def _types(parts: Sequence[Node]) -> frozenset[str]:
    found: set[str] = set()
    for part in parts:
        kind = part.get("type")
        if kind is not None:
            found.update([kind] if isinstance(kind, str) else kind)
        elif "enum" in part or "const" in part:
            found.update(types_of(_listed(part)).split("|"))
        elif _is_untyped(part):
            found |= _ANY
    return frozenset(found)


def _is_untyped(part: Any) -> bool:
    return isinstance(part, dict) and not part.keys() & {"type", "enum", "const", *_CARRIES}


def _listed(part: Node) -> list[Any]:
    return [part["const"]] if "const" in part else list_of(part.get("enum"))


def _is_map(part: Node) -> bool:
    """Whether the model may choose the names of an object's fields."""
    return not part.get("properties") and part.get("additionalProperties") is not False


def _with_elements(parts: Sequence[Node], root: Any) -> list[Node]:
    """The schemas of a value, and of the elements of the lists that it may be."""
    found = list(parts)
    for part in found:
        if len(found) > _PARTS_AT_MOST:
            return [{}]
        if "array" in _types([part]) or "items" in part:
            found += [each for each in _parts(_items(part), root) if each not in found]
    return found


def _other_form(parts: Sequence[Node], step: str | int | None, root: Any) -> str:
    """Another type that the schema accepts here but the path cannot enter; empty if there is none.

    For example a string instead of an object. A list instead of a single value, or the reverse,
    does not count, since both are compared. Null and listed constants hide nothing.
    """
    types = _types(parts) or _ANY
    if types >= _ANY:
        return "" if isinstance(step, str) else "may be anything"
    objects = [part for part in parts if "object" in _types([part])]
    if not isinstance(step, str):
        are_maps = {_is_map(part) for part in objects}
        if step is None and (len(are_maps) > 1 or ("array" in types and False in are_maps)):
            return "may be one object in place of a list or a map"
        return "may be a map in place of a list" if step is not None and True in are_maps else ""
    open_types = _types([part for part in parts if "enum" not in part and "const" not in part])
    if texts := open_types & {"string", "number", "integer"}:
        return f"may be a {min(texts)} in place of an object"
    for part in objects:
        below = part.get("additionalProperties")
        is_beside = len(objects) > 1 and _is_map(part) and isinstance(below, dict)
        if is_beside and any(_inner(_with_elements(_parts([below], root), root), step)):
            return "may be a map of objects in place of one"
    return ""


def _inner(parts: Sequence[Node], step: str | int | None) -> Iterator[Any]:
    """The schemas one step below."""
    for part in parts:
        types = _types([part])
        if isinstance(step, str):
            if "object" in types or part.keys() & {"properties", "additionalProperties"}:
                yield from _field(part, step)
            continue
        if "array" in types or "items" in part:
            yield from _items(part, step)
        if step is None and "object" in types:
            properties = part.get("properties")
            yield from properties.values() if isinstance(properties, dict) else ()
            if _is_map(part):
                yield part.get("additionalProperties", True)
        # one value in place of a list is its only element
        alone = types - ({"array", "null"} if step == 0 else {"array", "object", "null"})
        if not step and alone and types < _ANY:
            yield part


def _items(part: Node, position: int | None = None) -> list[Any]:
    """The schemas of a list's elements, or of the one at a position."""
    first = list_of(part.get("prefixItems")) or list_of(part.get("items"))
    most = part.get("maxItems")
    length = most if isinstance(most, (int, float)) and not isinstance(most, bool) else math.inf
    if position is not None and position < len(first):
        return [first[position]] if position < length else []
    rest = part.get("items", part.get("unevaluatedItems", True))
    if isinstance(rest, list):
        rest = part.get("additionalItems", True)
    has_more = length > (len(first) if position is None else position)
    return [*(first if position is None else ()), *([rest] if has_more else ())]


def _field(part: Node, name: str) -> Iterator[Any]:
    properties = part.get("properties")
    patterns = part.get("patternProperties")
    fit = (
        [node for p, node in patterns.items() if _is_valid({"pattern": p}, name)]
        if patterns
        else []
    )
    if not _is_valid(part.get("propertyNames", True), name):
        return
    if isinstance(properties, dict) and name in properties:
        yield properties[name]
    elif fit:
        yield from fit
    elif listed := _listed(part):
        values = [each[name] for each in listed if isinstance(each, dict) and name in each]
        if values:
            yield {"enum": values}
    elif "additionalProperties" in part:
        if part["additionalProperties"] is not False:
            yield part["additionalProperties"]
    elif not properties and not patterns:
        yield True


def _is_valid(schema: Any, name: str) -> bool:
    """Whether a field may have this name; True if the schema cannot be applied alone."""
    try:
        return jsonschema_rs.is_valid(schema, name)
    except ValueError:
        return True


def _no_comparison(test: Test, parts: Sequence[Node], root: Any, *, is_named: bool) -> str:
    """Why the condition cannot compare a value, or some of its forms; empty if it can."""
    condition, where, types = test.condition, _path(test.steps), _types(parts) or _ANY
    if why := _wrong_type(test, where, types):
        return why
    if condition.missing and any(part.get("default") is not None for part in parts):
        return f"{where} is never missing: its schema gives it a default"
    others = types - {"array", "null"}
    is_whole = "string" in others if condition.longer_than is not None else bool(test.constants)
    if test.compares_lists and is_whole and "array" in types and others and not types >= _ANY:
        return f"{where} may be one value or a list of them: give {where}[*] to compare each"
    if not test.compares_lists:
        parts = _with_elements(parts, root)
        types = _types(parts) or _ANY
    takes_both = types & {"integer", "number"} and "string" in types and not types >= _ANY
    if takes_both and any(map(_is_number, test.constants)):
        return f"{where} may be a number or its text: compare it by at_least and at_most"
    for part in parts:
        for value in test.constants:
            right = spelled(part.get("format"), value) if isinstance(value, str) else value
            if right != value:
                return f"{where} is compared as a {part['format']}: write it as {right}"
    if is_named and test.constants and not any(_may_be(v, parts, types) for v in test.constants):
        return f"{where} never equals what it is compared with"
    return ""


def _wrong_type(test: Test, where: str, types: frozenset[str]) -> str:
    """Why some or all values of these types are not compared; empty if all are."""
    if test.needs_number and not types & {"integer", "number"}:
        return f"{where} is no number"
    if test.needs_text and "string" not in types:
        return f"{where} is no text"
    if test.condition.longer_than is not None and not types & {"string", "array", "object"}:
        return f"{where} has no length"
    compares_values = test.needs_number or test.needs_text or any(map(_is_value, test.constants))
    if compares_values and "object" in types and types & _VALUES and not types >= _ANY:
        return f"{where} cannot be judged: it may be an object in place of a value"
    return ""


def _is_value(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str))


def _is_encoded(part: Node) -> bool:
    """Whether a value is text that tools decode, such as base64 or JSON."""
    is_encoded = bool(part.keys() & {"contentEncoding", "contentMediaType"})
    return is_encoded or part.get("format") in _ENCODED_FORMATS


def _is_number(value: Any) -> bool:
    """Whether a value is a number, or text that a type such as Decimal reads as one."""
    try:
        return not isinstance(value, (bool, dict, list)) and math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


def _may_be(value: Any, parts: Sequence[Node], types: frozenset[str]) -> bool:
    kind = json_type(value)
    is_number = kind in ("integer", "number") and bool(types & {"integer", "number"})
    if kind not in types and not is_number:
        return False
    listed = [part for part in parts if "enum" in part or "const" in part]
    is_open = any(
        kind in _types([part]) or is_number
        for part in parts
        if part not in listed and not part.keys() & _CARRIES
    )
    return is_open or not listed or any(value in _listed(part) for part in listed)


def _path(steps: Sequence[str | int | None]) -> str:
    shown = "".join(
        f".{s}" if isinstance(s, str) else f"[{'*' if s is None else s}]" for s in steps
    )
    return shown.removeprefix(".")

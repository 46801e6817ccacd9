"""Whether a rule can be applied to the arguments that a tool's schema accepts.

A rule that can never match a tool's arguments protects nothing, and would do so unnoticed.
"""

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.contract.schema.canonical import has_pattern, is_canonical, worker_spelling
from toolpool.contract.schema.dialect import plain
from toolpool.contract.schema.json_values import list_of, literal, pointer_step, types_of
from toolpool.contract.schema.references import UNIONS, referred
from toolpool.contract.schema.validator import SchemaValidator
from toolpool.dispatcher.policy.conditions import Test, are_same

_PARTS_AT_MOST = 500
_ANY = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_VALUES = frozenset({"boolean", "integer", "number", "string"})
_CARRIES = frozenset({"$ref", "allOf", *UNIONS})
_OF_PARTS = frozenset(
    {"properties", "patternProperties", "additionalProperties", "required", "items", "prefixItems"}
)
"""Keywords about fields and elements. Without a type, any other value is accepted as well."""
_MANY_SPELLINGS = {
    "date-time": "may have another offset",
    "time": "may have another offset",
    "multi-host-uri": "has a spelling that only the tool's type knows",
}
"""Formats whose equal values differ in spelling, and why."""
_ENCODED_FORMATS = frozenset({"base64", "base64url"})  # of pydantic's Base64Str and Base64Bytes

Node = dict[str, Any]


class _TooLarge(Exception):
    """A schema has more than `_PARTS_AT_MOST` parts for one value."""


class ToolSchema:
    """The schema of a tool's arguments, compiled once for all rules; None accepts any object."""

    def __init__(self, schema: dict[str, Any] | None) -> None:
        self.root: Any = True if schema is None else plain(schema)

    @functools.cached_property
    def _validator(self) -> SchemaValidator | None:
        try:
            return SchemaValidator(self.root)
        except ToolDeclarationInvalid:
            return None  # such a tool is not offered

    @functools.cached_property
    def _places(self) -> dict[int, str]:
        """The JSON pointers of all parts, by their identity."""
        return {id(node): place for place, node in _places(self.root)}

    def form(self, node: Any, value: Any) -> tuple[bool, Any]:
        """Whether a value is valid by a part of the schema, and its canonical form there.

        Raises ValueError if the schema recurses without end.
        """
        place = self._places.get(id(node))
        if place is not None and self._validator is not None:
            return self._validator.canonical_at(place, value)
        listed = _listed(node) if isinstance(node, dict) else []
        is_open = not listed and node is not False
        return is_open or any(are_same(value, each) for each in listed), value


def misfit(test: Test, schema: ToolSchema, *, is_named: bool) -> str:
    """Why a condition on an argument cannot be applied to the schema; empty if it can.

    `is_named`: the rule names this very tool, and not by a pattern that also matches others. Only
    then must the schema have the path, and accept the values that the rule compares with.
    """
    try:
        return _misfit(test, schema, is_named=is_named)
    except _TooLarge:
        return "its schema has too many branches to apply a rule to"
    except (ValueError, RecursionError):
        return "its schema recurses too deeply to apply a rule to"


def _misfit(test: Test, tool: ToolSchema, *, is_named: bool) -> str:
    schema = tool.root
    nodes = _parts([schema], schema)
    nodes = [{"type": "object", **part} if _is_untyped(part) else part for part in nodes]
    of_value: list[Any] = []
    """The schemas of the value, with references and unions as they stand."""
    for number, step in enumerate(test.steps):
        if isinstance(step, str):
            nodes = _with_elements(nodes, schema)
        of_value = list(_inner(nodes, step))
        inner = _parts(of_value, schema)
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
    if why := _no_comparison(test, nodes, schema, is_named=is_named):
        return why
    if not test.compares_lists:
        of_value += _elements(nodes, schema)
    return _never_equal(test, of_value, tool, is_named=is_named)


def _parts(nodes: Iterable[Any], root: Any) -> list[Node]:
    """The schemas that may apply to a value, with references and unions resolved."""
    waiting = [{} if node is True else node for node in nodes]
    found: list[Node] = []
    for part in waiting:
        if not isinstance(part, dict) or any(part is known for known in found):
            continue
        found.append(part)
        if len(found) > _PARTS_AT_MOST:
            raise _TooLarge
        if isinstance(part.get("$ref"), str):
            waiting.append(referred(part["$ref"], root))
        every = list_of(part.get("allOf"))  # a schema without a type leaves the type to the others
        every += [part[key] for key in ("then", "else") if key in part]
        every += _values(part, "dependentSchemas")
        waiting += [{"type": [], **inner} if _is_untyped(inner) else inner for inner in every]
        for union in UNIONS:
            branches = [{} if inner is True else inner for inner in list_of(part.get(union))]
            waiting += [_of_type(inner, part) for inner in branches]
    return found


def _of_type(branch: Any, part: Node) -> Any:
    """A branch of a union; without a type of its own, it has that of the schema around it."""
    return {"type": part["type"], **branch} if _is_untyped(branch) and "type" in part else branch


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


def _is_anything(parts: Sequence[Node]) -> bool:
    """Whether the schema says nothing about the value: a rule on it cannot be wrong."""
    stated = [part for part in parts if not part.keys() & _CARRIES]
    return all(map(_says_nothing, stated)) if stated else not parts


def _says_nothing(part: Node) -> bool:
    return _is_untyped(part) and not part.keys() & _OF_PARTS


def _values(part: Node, key: str) -> list[Any]:
    """The schemas in a keyword that maps names to schemas."""
    found = part.get(key)
    return list(found.values()) if isinstance(found, dict) else []


def _listed(part: Node) -> list[Any]:
    return [part["const"]] if "const" in part else list_of(part.get("enum"))


def _is_map(part: Node) -> bool:
    """Whether the model may choose the names of an object's fields."""
    return bool(_of_any_name(part)) and not part.get("properties")


def _of_any_name(part: Node) -> list[Any]:
    """The schemas of the fields whose names the model may choose."""
    found = _values(part, "patternProperties")
    below = part.get("additionalProperties", part.get("unevaluatedProperties"))
    if below is None and not part.keys() & {"properties", "patternProperties", *_CARRIES}:
        below = True  # no keyword says which fields there are
    return found if below is None or below is False else [*found, below]


def _with_elements(parts: Sequence[Node], root: Any) -> list[Node]:
    """The schemas of a value, and of the elements of the lists that it may be."""
    elements = _parts(_elements(parts, root), root)
    return [*parts, *(each for each in elements if each not in parts)]


def _elements(parts: Sequence[Node], root: Any) -> list[Any]:
    """The schemas of the elements of a list, and of the lists in it."""
    found: list[Any] = []
    waiting = list(parts)
    for part in waiting:
        if len(waiting) > _PARTS_AT_MOST:
            raise _TooLarge
        is_list = "array" in _types([part]) and not _is_untyped(part)
        if is_list or part.keys() & {"items", "prefixItems"}:
            items = _items(part)
            found += items
            waiting += [each for each in _parts(items, root) if each not in waiting]
    return found


def _other_form(parts: Sequence[Node], step: str | int | None, root: Any) -> str:
    """Another type that the schema accepts here but the path cannot enter; empty if there is none.

    For example a string instead of an object. A list instead of a single value, or the reverse,
    does not count, since both are compared. Null and listed constants hide nothing.
    """
    types = _types(parts) or _ANY
    if not isinstance(step, str) and any(map(_says_nothing, parts)):
        return "may be anything"
    if _is_anything(parts):
        return ""
    objects = [part for part in parts if "object" in _types([part])]
    if not isinstance(step, str):
        are_maps = {_is_map(part) for part in objects}
        if step is None and (len(are_maps) > 1 or ("array" in types and False in are_maps)):
            return "may be one object in place of a list or a map"
        if step is not None and any(part.get("uniqueItems") is True for part in parts):
            return "is a set, which has no order"
        return "may be a map in place of a list" if step is not None and True in are_maps else ""
    open_types = _types([part for part in parts if "enum" not in part and "const" not in part])
    if texts := open_types & {"string", "number", "integer"}:
        shown = "a text" if texts == {"string"} else "a number"
        return f"may be {shown} in place of an object"
    for part in objects if len(objects) > 1 else ():
        below = [each for each in _of_any_name(part) if each is not True] if _is_map(part) else []
        if any(_inner(_with_elements(_parts(below, root), root), step)):
            return "may be a map of objects in place of one"
    return ""


def _inner(parts: Sequence[Node], step: str | int | None) -> Iterator[Any]:
    """The schemas one step below."""
    if isinstance(step, str):
        fields = [each for part in parts if _may_be_object(part) for each in _field(part, step)]
        # A schema that does not name the field may stand beside one that does.
        declared = [each for each in fields if each is not True]
        yield from declared or fields
        return
    for part in parts:
        types = _types([part])
        if "array" in types or part.keys() & {"items", "prefixItems"}:
            yield from _items(part, step)
        if step is None and "object" in types:
            yield from (*_values(part, "properties"), *_of_any_name(part))
        # one value in place of a list is its only element
        alone = types - ({"array", "null"} if step == 0 else {"array", "object", "null"})
        if not step and alone and not _is_anything([part]):
            yield part


def _may_be_object(part: Node) -> bool:
    return "object" in _types([part]) or bool(part.keys() & {"properties", "additionalProperties"})


def _items(part: Node, position: int | None = None) -> list[Any]:
    """The schemas of a list's elements, or of the one at a position."""
    first = list_of(part.get("prefixItems")) or list_of(part.get("items"))
    most = part.get("maxItems")
    length = most if isinstance(most, (int, float)) and not isinstance(most, bool) else math.inf
    if position is not None and position < len(first):
        return [first[position]] if position < length else []
    rest = part.get("items", part.get("unevaluatedItems", not part.keys() & _CARRIES))
    if isinstance(rest, list):
        rest = part.get("additionalItems", True)
    if not first and (listed := _listed(part)):
        lists = [each for each in listed if isinstance(each, list)]
        first, rest = [{"enum": [one for each in lists for one in each]}], False
    if position is not None:
        return [rest] if position < length else []
    return [*first, rest] if len(first) < length else first


def _field(part: Node, name: str) -> Iterator[Any]:
    properties = part.get("properties")
    patterns = part.get("patternProperties")
    patterns = patterns if isinstance(patterns, dict) else {}
    fit = [node for pattern, node in patterns.items() if has_pattern(pattern, name)]
    if not _may_be_named(part, name):
        return
    if isinstance(properties, dict) and name in properties:
        yield properties[name]
    yield from fit
    if fit or (isinstance(properties, dict) and name in properties):
        return
    if listed := _listed(part):
        values = [each[name] for each in listed if isinstance(each, dict) and name in each]
        if values:
            yield {"enum": values}
    elif (below := part.get("additionalProperties", part.get("unevaluatedProperties"))) is not None:
        if below is not False:
            yield below
    elif not properties and not patterns and not part.keys() & _CARRIES:
        yield True


def _may_be_named(part: Node, name: str) -> bool:
    """Whether a field may have this name, by the listed names and the pattern for names."""
    names = part.get("propertyNames")
    if not isinstance(names, dict):
        return names is not False
    listed, pattern = _listed(names), names.get("pattern")
    is_listed = not listed or name in listed
    return is_listed and (not isinstance(pattern, str) or has_pattern(pattern, name))


def _no_comparison(test: Test, parts: Sequence[Node], root: Any, *, is_named: bool) -> str:
    """Why the condition cannot compare a value, or some of its forms; empty if it can."""
    condition, where, types = test.condition, _path(test.steps), _types(parts) or _ANY
    is_anything = _is_anything(parts)
    compared = parts if test.compares_lists else _with_elements(parts, root)
    stated = [part for part in compared if not _says_nothing(part)]
    if why := _wrong_type(test, where, _types(stated) or _ANY, is_anything=is_anything):
        return why
    if condition.missing and any(part.get("default") is not None for part in parts):
        return f"{where} is never missing: its schema gives it a default"
    others = types - {"array", "null"}
    is_whole = "string" in others if condition.longer_than is not None else bool(test.constants)
    if test.compares_lists and is_whole and "array" in types and others and not is_anything:
        return f"{where} may be one value or a list of them: give {where}[*] to compare each"
    return _no_equality(where, test.constants, compared, root, is_named=is_named)


def _no_equality(
    where: str, constants: Sequence[Any], parts: Sequence[Node], root: Any, *, is_named: bool
) -> str:
    """Why some constants cannot be compared with a value; empty if all can."""
    types = _types(parts) or _ANY
    takes_both = types & {"integer", "number"} and "string" in types and not _is_anything(parts)
    if takes_both and any(map(_is_number, constants)):
        return f"{where} may be a number or its text: compare it by at_least and at_most"
    texts = [value for value in constants if isinstance(value, str)]
    found = (_other_spelling(where, text, parts, is_named=is_named) for text in texts)
    if why := next(filter(None, found), ""):
        return why
    for value in constants:
        for step, inner in _inside(value):
            below = _parts(_inner(parts, step), root)
            shown = f"{where}.{step}" if isinstance(step, str) else f"{where}[*]"
            if not below and is_named:
                return f"{where} never equals this value: its schema has no {shown}"
            if any(map(_is_encoded, below)):
                return f"{shown} is encoded: judge it by a hook"
            if below and (why := _no_equality(shown, [inner], below, root, is_named=is_named)):
                return why
    return ""


def _never_equal(test: Test, nodes: Sequence[Any], tool: ToolSchema, *, is_named: bool) -> str:
    """Why a value may not equal a constant: it is judged in another form, or never accepted."""
    where, missed = _path(test.steps), 0
    for constant in test.constants:
        found = [tool.form(node, constant) for node in nodes]
        forms = [form for is_valid, form in found if is_valid]
        for form in forms:  # each may be the one that holds for a call
            if not are_same(form, constant, in_any_order=True):
                return f"{where} does not equal this value: {_difference(constant, form)}"
        missed += not forms
    if not missed or not is_named:
        return ""
    open_parts = [p for p in _parts(nodes, tool.root) if not p.keys() & {"enum", "const"}]
    is_listed = all(p.keys() & _CARRIES or p.get("type") == "null" for p in open_parts)
    is_never = missed == len(test.constants) or not is_listed
    return f"{where} never equals what it is compared with" if is_never else ""


def _difference(constant: Any, form: Any) -> str:
    names = form.keys() - constant.keys() if isinstance(constant, dict) else ()
    if names:
        return f"without {', '.join(sorted(names))}, it gets the default; compare single fields"
    shown = literal(form)
    return f"write it as {shown}" if "null" not in shown else "compare its single fields"


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


def _other_spelling(where: str, text: str, parts: Sequence[Node], *, is_named: bool) -> str:
    """Why a text is not spelled as the value that is judged; empty if it may be."""
    unreadable, is_accepted = "", False
    for part in parts:
        format = part.get("format")
        if not isinstance(format, str):
            listed = _listed(part)
            is_accepted |= "string" in _types([part]) and (not listed or text in listed)
            continue
        if why := _MANY_SPELLINGS.get(format):
            return f"{where} has the format {format}, which {why}: judge it by a hook"
        right = worker_spelling(format, text)
        if right is not None and right != text:
            told = f"{where} has the format {format}: write it as {right}"
            return told if is_canonical(format) else f"{told}, or judge it by a hook"
        is_accepted |= right is not None
        unreadable = format if right is None else unreadable
    if unreadable and is_named and not is_accepted:
        return f"{where} has the format {unreadable}, and this value does not"
    return ""


def _inside(value: Any) -> list[tuple[str | None, Any]]:
    """The fields or elements of a constant, each with its step."""
    if isinstance(value, dict):
        return list(value.items())
    return [(None, each) for each in value] if isinstance(value, list) else []


def _wrong_type(test: Test, where: str, types: frozenset[str], *, is_anything: bool) -> str:
    """Why some or all values of these types are not compared; empty if all are."""
    if test.needs_number and not types & {"integer", "number"}:
        return f"{where} is no number"
    if test.needs_text and "string" not in types:
        return f"{where} is no text"
    if test.condition.longer_than is not None and not types & {"string", "array", "object"}:
        return f"{where} has no length"
    compares_values = test.needs_number or test.needs_text or any(map(_is_value, test.constants))
    if compares_values and "object" in types and types & _VALUES and not is_anything:
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


def _path(steps: Sequence[str | int | None]) -> str:
    shown = "".join(
        f".{s}" if isinstance(s, str) else f"[{'*' if s is None else s}]" for s in steps
    )
    return shown.removeprefix(".")

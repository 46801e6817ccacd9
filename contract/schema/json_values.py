"""JSON types, paths and display forms of values, and the types and values that a schema names."""

from collections.abc import Iterable, Sequence
from typing import Any

from toolpool.contract import encoding

_SMALLEST, _LARGEST = -(1 << 63), (1 << 63) - 1


def json_type(value: Any) -> str:
    """The JSON name of a Python value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((int, "integer"), (float, "number"), (str, "string"), (dict, "object")):
        if isinstance(value, kind):
            return name
    return "array" if isinstance(value, (list, tuple)) else type(value).__name__


def types_of(values: Iterable[Any]) -> str:
    """The types of these values, joined by `|`."""
    return "|".join(dict.fromkeys(json_type(value) for value in values))


def literal(value: Any) -> str:
    """A value of the schema as printable JSON."""
    return escaped(encoding.encode(value).decode())


def escaped(text: str) -> str:
    """`text` with line breaks and other unprintable characters escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def pointer_step(name: str) -> str:
    """A field's name as a step of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def at_path(value: Any, path: Sequence[str | int]) -> Any:
    """The value at a path; None if the path does not exist."""
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def has_key(value: Any, key: str) -> bool:
    """Whether any object inside `value` has this field."""
    level, seen = [value], set[int]()
    for holder in level:
        if not isinstance(holder, (dict, list, tuple)) or id(holder) in seen:
            continue
        seen.add(id(holder))
        if isinstance(holder, dict):
            if key in holder:
                return True
            level.extend(holder.values())
        else:
            level.extend(holder)
    return False


def count_values(value: Any, most: int) -> int:
    """How many values a value has, with itself; `most` or more if there are as many."""
    count, level = 1, [value]
    for holder in level:
        inner = (
            holder.values() if isinstance(holder, dict)
            else holder if isinstance(holder, (list, tuple)) else ()
        )  # fmt: skip
        count += len(inner)
        if count > most:
            return count
        level.extend(inner)
    return count


def has_more_values_than(most: int, value: Any) -> bool:
    """Whether a value and all values in it are more than `most`."""
    return count_values(value, most) > most


def has_more_large_integers_than(most: int, value: Any) -> bool:
    """Whether the integers that need more than 64 bits take more than `most` words of 64 bits."""
    level = [value]
    for each in level:
        if isinstance(each, (dict, list, tuple)):
            level.extend(each.values() if isinstance(each, dict) else each)
        elif isinstance(each, int) and not _SMALLEST <= each <= _LARGEST:
            most -= 1 + each.bit_length() // 64
            if most < 0:
                return True
    return False


def list_of(value: Any) -> list[Any]:
    """`value` if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def members_of(value: Any) -> list[Any]:
    """The values of the fields of `value` if it is an object, else an empty list."""
    return list(value.values()) if isinstance(value, dict) else []


KINDS = ("string", "integer", "number", "boolean", "array", "object", "null")
COMBINED = frozenset({"$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "if",
                      "dependentSchemas"})  # fmt: skip
"""Keywords that apply other schemas to the same value."""

Kinds = tuple[str, ...]


def kinds_of(node: Any) -> Kinds | None:
    """The types that a schema itself names; None if it names none."""
    kind = node.get("type") if isinstance(node, dict) else None
    if isinstance(kind, str):
        return (kind,)
    return tuple(k for k in KINDS if k in kind) if isinstance(kind, list) else None


def plain_kind(kind: str) -> str:
    """The base type whose keywords apply to a type."""
    return "number" if kind == "integer" else kind


def listed_values(node: dict[str, Any]) -> list[Any] | None:
    """The values that a schema's own `const` or `enum` lists; None if it has neither."""
    if "const" in node:
        return [node["const"]]
    return node["enum"] if isinstance(node.get("enum"), list) else None


def is_of(value: Any, kinds: Kinds) -> bool:
    """Whether a value is of one of these types."""
    kind = json_type(value)
    if kind == "integer":
        return "integer" in kinds or "number" in kinds
    if kind == "number":
        return "number" in kinds or ("integer" in kinds and float(value).is_integer())
    return kind in kinds

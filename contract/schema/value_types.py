"""The JSON types of values, and the types that a schema names."""

from typing import Any

from toolpool.contract.schema.json_values import json_type

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

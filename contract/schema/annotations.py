"""Transforms schemas recursively, and removes annotations."""

from collections.abc import Callable, Collection
from typing import Any

_ANNOTATIONS = frozenset({"$comment", "deprecated", "description", "example", "examples", "title"})
_NAMED = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
_VALUES = frozenset({"const", "default", "enum", "examples"})


def changed(node: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Apply `change` to the schema `node` and its subschemas, innermost first."""
    if isinstance(node, list):
        return [changed(inner, change) for inner in node]
    if not isinstance(node, dict):
        return node
    made = {}
    for key, inner in node.items():
        if key in _NAMED and isinstance(inner, dict):  # field names, not keywords
            made[key] = {name: changed(schema, change) for name, schema in inner.items()}
        else:
            made[key] = inner if key in _VALUES else changed(inner, change)
    return change(made)


def without(node: Any, keywords: Collection[str]) -> Any:
    """The schema `node` and its subschemas without these keywords."""
    return changed(node, lambda made: {key: made[key] for key in made if key not in keywords})


def without_annotations(node: Any) -> Any:
    """The schema `node` without titles, descriptions, examples and comments."""
    return without(node, _ANNOTATIONS)

"""A schema without what only describes it, for comparing what two schemas accept."""

from typing import Any

_ANNOTATIONS = frozenset({"$comment", "deprecated", "description", "example", "examples", "title"})
_NAMED = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
_VALUES = frozenset({"const", "default", "enum"})


def without_annotations(node: Any) -> Any:
    """The schema `node` without titles, descriptions, examples and comments."""
    if isinstance(node, list):
        return [without_annotations(inner) for inner in node]
    if not isinstance(node, dict):
        return node
    return {key: _member(key, inner) for key, inner in node.items() if key not in _ANNOTATIONS}


def _member(key: str, inner: Any) -> Any:
    if key in _VALUES:
        return inner
    if key in _NAMED and isinstance(inner, dict):  # names of fields, and not keywords
        return {name: without_annotations(schema) for name, schema in inner.items()}
    return without_annotations(inner)

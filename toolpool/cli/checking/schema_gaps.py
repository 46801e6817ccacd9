"""Finds gaps in a tool's schema that mislead a model: undescribed, unbounded, ambiguous."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from toolpool.contract.schema.json_values import list_of
from toolpool.contract.schema.references import resolve

_NAMED_AT_MOST = 8
_LIMITS = ("maxLength", "enum", "const", "format", "pattern")
_UNIONS = ("anyOf", "oneOf")

Nodes = dict[str, list[dict[str, Any]]]
"""The schemas of each value, by its dotted path; `*` stands for any item or unnamed field."""


class Gaps:
    """The gaps of one schema."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._root = schema
        self._seen: set[int] = set()
        self._nodes: Nodes = defaultdict(list)
        self._visit(schema, ())

    def undescribed(self) -> list[str]:
        """Fields without a description, at any depth."""
        return [
            path
            for path, nodes in self._nodes.items()
            if path and not path.endswith("*") and not any(map(_is_said, nodes))
        ]

    def unbounded(self) -> list[str]:
        """Strings without a maximum length."""
        return [path for path, nodes in self._nodes.items() if any(map(_is_unbounded, nodes))]

    def ambiguous(self) -> list[str]:
        """Unions of several objects without a field of constants that distinguishes them."""
        return [
            path or "the arguments"
            for path, nodes in self._nodes.items()
            if any(self._is_ambiguous(node.get(key)) for node in nodes for key in _UNIONS)
        ]

    def _visit(self, schema: Any, path: tuple[str, ...]) -> None:
        target = resolve(schema, self._root)
        if not isinstance(target, dict):
            return
        node = target | {key: value for key, value in schema.items() if key != "$ref"}
        self._nodes[".".join(path)].append(node)
        if id(target) in self._seen:  # a reference to itself, or a schema seen elsewhere
            return
        self._seen.add(id(target))
        properties = node.get("properties")
        if isinstance(properties, dict):
            for name, inner in properties.items():
                self._visit(inner, (*path, name))
        for key in (*_UNIONS, "allOf"):
            for branch in list_of(node.get(key)):
                self._visit(branch, path)
        for key in ("items", "additionalProperties"):
            self._visit(node.get(key), (*path, "*"))

    def _is_ambiguous(self, options: Any) -> bool:
        branches = [resolve(option, self._root) for option in list_of(options)]
        fields = [
            branch["properties"]
            for branch in branches
            if isinstance(branch, dict) and isinstance(branch.get("properties"), dict)
        ]
        if len(fields) < 2:
            return False
        shared = set.intersection(*map(set, fields))
        return not any(all(self._is_fixed(each[name]) for each in fields) for name in shared)

    def _is_fixed(self, field: Any) -> bool:
        field = resolve(field, self._root)
        return isinstance(field, dict) and ("const" in field or "enum" in field)


def named(paths: Sequence[str]) -> str:
    """The first of the paths, and how many more there are."""
    more = len(paths) - _NAMED_AT_MOST
    return ", ".join(paths[:_NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")


def _is_said(node: dict[str, Any]) -> bool:
    return bool(node.get("description")) or "const" in node


def _is_unbounded(node: dict[str, Any]) -> bool:
    kind = node.get("type")
    is_text = kind == "string" or (isinstance(kind, list) and "string" in kind)
    return is_text and not any(limit in node for limit in _LIMITS)

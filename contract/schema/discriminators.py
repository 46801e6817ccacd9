"""Distinguishes the branches of a union by value type or by a tag field."""

from collections.abc import Sequence
from typing import Any

from toolpool.contract.schema.json_values import (
    Kinds,
    is_of,
    kinds_of,
    list_of,
    listed_values,
    literal,
    plain_kind,
)
from toolpool.contract.schema.references import resolve

_OBJECT = ("object",)


def tag_of(nodes: Sequence[Any], root: dict[str, Any]) -> tuple[str, list[list[Any]]] | None:
    """The tag field of these schemas, and the values that each of them allows there.

    Every schema requires the field and lists its values, and no value is listed twice: `kind:
    "circle"` in one and `kind: "square"` in the other. None if there is no such field.
    """
    if len(nodes) < 2 or not all(isinstance(node, dict) for node in nodes):
        return None
    tags = _tags(nodes[0], root)
    for name in tags:
        found = [tags[name]]
        for node in nodes[1:]:
            values = _listed_for(node, name, root)
            if values is None:
                break
            found.append(values)
        else:
            if _are_all_different(found):
                return name, found
    return None


def are_disjoint(branches: Sequence[Any], kinds: Kinds | None, root: dict[str, Any]) -> bool:
    """Whether no value can match two branches, by their types or by a tag.

    `kinds` are the types that the surrounding schema leaves.
    """
    if len(branches) < 2:
        return True
    listed: list[list[Any]] = []
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for branch in branches:
        node = resolve(branch, root)
        if not isinstance(node, dict):
            return False
        values = listed_values(node)
        if values is not None:
            listed.append(values)
            continue
        own = kinds_of(node) or kinds
        if own is None:
            return False
        for kind in {plain_kind(each) for each in own}:
            by_kind.setdefault(kind, []).append(node)
    taken = tuple(by_kind)
    if any(is_of(value, taken) for values in listed for value in values):
        return False
    return _are_all_different(listed) and all(
        len(nodes) == 1 or _are_tagged_objects(nodes, kinds, root) for nodes in by_kind.values()
    )


def _are_tagged_objects(
    nodes: list[dict[str, Any]], kinds: Kinds | None, root: dict[str, Any]
) -> bool:
    if any((kinds_of(node) or kinds) != _OBJECT for node in nodes):
        return False
    return tag_of(nodes, root) is not None


def _are_all_different(lists: Sequence[Sequence[Any]]) -> bool:
    """Whether the lists are disjoint."""
    texts = [text for values in lists for text in {literal(value) for value in values}]
    return len(texts) == len(set(texts))


def _tags(node: dict[str, Any], root: dict[str, Any]) -> dict[str, list[Any]]:
    """The required fields that list their values."""
    found = {}
    for name in list_of(node.get("required")):
        values = _listed_for(node, name, root) if isinstance(name, str) else None
        if values is not None:
            found[name] = values
    return found


def _listed_for(node: dict[str, Any], name: str, root: dict[str, Any]) -> list[Any] | None:
    """The values listed for a field, if it is required."""
    properties = node.get("properties")
    if name not in list_of(node.get("required")) or not isinstance(properties, dict):
        return None
    field = resolve(properties.get(name), root)
    return listed_values(field) if isinstance(field, dict) else None

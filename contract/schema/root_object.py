"""The root of a tool's input schema, which always describes an object."""

from typing import Any

from toolpool.contract.schema.dialect import plain
from toolpool.contract.schema.references import UNIONS, resolve

NO_OBJECT = "its input_schema takes no object, and a tool's arguments are always one"
_DEEPEST = 16


def takes_objects(schema: Any) -> bool:
    """Whether a schema may accept an object."""
    meant = plain(schema) if isinstance(schema, dict) else schema
    return _takes_objects(meant, meant, _DEEPEST)


def _takes_objects(node: Any, root: Any, depth: int) -> bool:
    node = resolve(node, root)
    if not isinstance(node, dict):
        return node is not False
    kind = node.get("type", "object")
    listed = node.get("enum", [node["const"]] if "const" in node else [{}])
    if "object" not in kind or not any(isinstance(value, dict) for value in listed):
        return False
    if not depth:
        return True
    every = all(_takes_objects(inner, root, depth - 1) for inner in node.get("allOf", ()))
    return every and all(
        any(_takes_objects(inner, root, depth - 1) for inner in node[union])
        for union in UNIONS & node.keys()
    )


def fields_of(schema: Any) -> tuple[set[str], set[str]]:
    """The fields that a schema names, and the fields that it always requires."""
    meant = plain(schema) if isinstance(schema, dict) else schema
    return _fields_of(meant, meant, _DEEPEST)


def _fields_of(node: Any, root: Any, depth: int) -> tuple[set[str], set[str]]:
    node = resolve(node, root)
    if not isinstance(node, dict) or not depth:
        return set(), set()
    properties = node.get("properties", {})
    named = {name for name, inner in properties.items() if inner is not False}
    required = set(node.get("required", ()))
    for inner in node.get("allOf", ()):
        more, also = _fields_of(inner, root, depth - 1)
        named |= more
        required |= also
    for union in UNIONS & node.keys():
        branches = [_fields_of(inner, root, depth - 1) for inner in node[union]]
        named = named.union(*(more for more, _ in branches))
        required |= set.intersection(*(also for _, also in branches)) if branches else set()
    return named, required

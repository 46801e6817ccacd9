"""The fields of objects: of a tool's arguments, which always are one, and of those inside.

Several schemas may apply to one object.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from toolpool.contract.schema.dialect import plain
from toolpool.contract.schema.hints import properties_of
from toolpool.contract.schema.references import UNIONS, looked_at, referred, resolve

_PARTS_AT_MOST = 200


def named_around(name: str, place: Sequence[str | int], depth: int, root: dict[str, Any]) -> Any:
    """The schema of a field, found on the way to a rule for its object at this depth.

    A rule such as `then` often only requires the field. The innermost schema with a definition
    wins.
    """
    around = [properties_of(node) for at, node in looked_at(place, root) if at == depth]
    return next((fields[name] for fields in reversed(around) if name in fields), None)


def always_named(node: dict[str, Any], root: dict[str, Any]) -> set[str]:
    """The fields that a schema and the schemas it combines name."""
    return {name for part in _parts(node, root) for name in properties_of(part)}


def _parts(node: dict[str, Any], root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields each once, although a schema may refer to itself."""
    waiting: list[Any] = [node]
    seen: set[int] = set()
    while waiting and len(seen) < _PARTS_AT_MOST:
        part = waiting.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        if isinstance(part.get("$ref"), str):
            waiting.append(referred(part["$ref"], root))
        if isinstance(part.get("allOf"), list):
            waiting += part["allOf"]


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

"""Resolves references and paths inside one schema document. Nothing is fetched."""

from collections.abc import Iterator, Sequence
from typing import Any

_LONGEST_CHAIN = 64
_OLD_DRAFTS = ("draft-03", "draft-04", "draft-06", "draft-07")
_ONE_LEVEL_DOWN = frozenset({
    "items", "additionalItems", "unevaluatedItems", "contains",
    "additionalProperties", "unevaluatedProperties",
})  # fmt: skip
_NAMED_BELOW = frozenset({"properties", "patternProperties"})
_LISTED_HERE = frozenset({"allOf", "anyOf", "oneOf"})
UNIONS = frozenset({"anyOf", "oneOf"})


def resolve(schema: Any, root: dict[str, Any]) -> Any:
    """`schema` with its local reference resolved; unchanged if it has none."""
    for _ in range(_LONGEST_CHAIN):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        target = referred(reference, root) if isinstance(reference, str) else None
        if target is None:
            return schema
        schema = target
    return schema


def referred(reference: str, root: dict[str, Any]) -> Any:
    """The target of a local reference such as `#/$defs/a`; None if it does not exist."""
    if reference == "#":
        return root
    return at_pointer(root, reference[1:]) if reference.startswith("#/") else None


def at_pointer(root: Any, pointer: str) -> Any:
    """The value at a JSON pointer (RFC 6901, without `#`); None if it does not exist."""
    node = root
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and step in node:
            node = node[step]
        elif isinstance(node, list) and step.isdecimal() and int(step) < len(node):
            node = node[int(step)]
        else:
            return None
    return node


def hides_siblings(root: dict[str, Any]) -> bool:
    """Whether the schema's draft ignores the keywords beside a `$ref`."""
    return any(draft in str(root.get("$schema", "")) for draft in _OLD_DRAFTS)


def looked_at(place: Sequence[str | int], root: Any) -> Iterator[tuple[int, Any]]:
    """The schemas on a validator's way, outermost first, each with its depth.

    `place` is an evaluation path: keywords, field names and positions, a reference as `$ref`. The
    depth counts the fields and indexes above the value in the arguments. Stops where the path
    cannot be followed.
    """
    depth, node, steps = 0, root, iter(place)
    yield depth, node
    for keyword in steps:
        if not isinstance(node, dict):
            return
        inner = node.get(str(keyword))
        if keyword == "$ref":
            inner = referred(str(inner), root)
        elif keyword in _NAMED_BELOW or keyword in _LISTED_HERE or keyword == "prefixItems":
            inner = _member(inner, next(steps, None))
            depth += keyword not in _LISTED_HERE
        elif keyword in _ONE_LEVEL_DOWN:
            if isinstance(inner, list):
                inner = _member(inner, next(steps, None))
            depth += 1
        if not isinstance(inner, dict):
            return
        node = inner
        yield depth, node


def _member(holder: Any, step: str | int | None) -> Any:
    try:
        return None if step is None else holder[step]
    except (KeyError, IndexError, TypeError):
        return None

"""The fields that an object's schemas name; several schemas may apply to one object."""

from collections.abc import Iterator, Sequence
from typing import Any

from toolpool.contract.schema.hints import properties_of
from toolpool.contract.schema.references import looked_at, referred

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

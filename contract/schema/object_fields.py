"""Which fields the schemas of one object name: several may look at it, each with its own."""

from collections.abc import Iterator, Sequence
from typing import Any

from toolpool.contract.schema.hints import properties_of
from toolpool.contract.schema.references import looked_at, referred

_PARTS_AT_MOST = 200


def named_around(name: str, place: Sequence[str | int], depth: int, root: dict[str, Any]) -> Any:
    """What is said of a field on the way to a rule for its object, which lies at this depth.

    A rule such as `then` often says no more than that the field is required. The last word wins.
    """
    around = [properties_of(node) for at, node in looked_at(place, root) if at == depth]
    return next((fields[name] for fields in reversed(around) if name in fields), None)


def always_named(node: dict[str, Any], root: dict[str, Any]) -> set[str]:
    """The fields that a schema names, and those of all that must fit the same object as well."""
    return {name for part in _parts(node, root) for name in properties_of(part)}


def _parts(node: dict[str, Any], root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each once, though a schema may refer to itself."""
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

"""Which fields the schemas of one object name: several may look at it, each with its own."""

from collections.abc import Sequence
from typing import Any

from toolpool.contract.schema.hints import properties_of
from toolpool.contract.schema.references import looked_at


def named_around(name: str, place: Sequence[str | int], depth: int, root: dict[str, Any]) -> Any:
    """What is said of a field on the way to a rule for its object, which lies at this depth.

    A rule such as `then` often says no more than that the field is required. The last word wins.
    """
    around = [properties_of(node) for at, node in looked_at(place, root) if at == depth]
    return next((fields[name] for fields in reversed(around) if name in fields), None)

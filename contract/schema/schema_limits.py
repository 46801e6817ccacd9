"""Limits on schemas, which may come from untrusted sources.

The size is limited before a schema is compiled; the cost of validation by counting steps, and the
cost of explanations by the number of errors that one value can cause.
"""

from dataclasses import dataclass
from typing import Any

from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.contract.schema.json_values import list_of, members_of
from toolpool.contract.schema.patterns import (
    NO_COST,
    PatternCost,
    pattern_cost,
    size_of,
    total,
    work_of,
)
from toolpool.contract.schema.references import UNIONS, resolve
from toolpool.contract.schema.validation_cost import (
    UNBOUND,
    ValidationCost,
    listed_cost,
    names_cost,
)

NODES_AT_MOST = 10_000
"""Limits the number of properties and listed values: compiling takes memory for each value."""
DEEPEST = 100
"""Limits nesting that overflows the stack of a compiler or of a shape."""
_PATTERN_CHARACTERS = 30_000
"""Limits long patterns, and many of them: compiling megabytes takes seconds."""
_PATTERN_BYTES = 64 << 20
"""Limits many patterns that grow: compiling takes seconds and the memory stays."""
_STEPS_AT_ONE_VALUE = 10_000
"""Limits the steps at one value: thirty references that each double them make a billion."""
_OBJECTS = 3
_NUMBERS = frozenset({"maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum", "multipleOf"})
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})


@dataclass(slots=True)
class Extent:
    """The size of a schema.

    `longest` is how many values one error may carry: those of the longest list. A required field
    counts for more, because its error carries the whole object.
    """

    references: bool = False
    unions: bool = False
    limits_names: bool = False
    patterns: PatternCost = NO_COST
    is_slow: bool = False
    """Whether a list of objects, or many patterns for names, may take long."""
    unique: bool = False
    compares_numbers: bool = False
    pattern_characters: int = 0
    """What it takes to compile the patterns."""
    pattern_bytes: int = 0
    longest: int = 1


def extent(schema: dict[str, Any]) -> Extent:
    """Measure a schema. Raises `ToolDeclarationInvalid` if it is too large."""
    found = Extent()
    nodes, depth, level = 0, 0, [schema]
    while level:
        nodes += len(level)
        depth += 1
        if nodes > NODES_AT_MOST or depth > DEEPEST:
            raise ToolDeclarationInvalid(
                f"its input_schema is too large: at most {NODES_AT_MOST:,} values in at most "
                f"{DEEPEST} levels are compiled"
            )
        below: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                _add(found, node)
                below.extend(node.values())
            elif isinstance(node, list):
                below.extend(node)
        level = below
    return found


def _add(found: Extent, node: dict[str, Any]) -> None:
    keys = node.keys()
    found.references = found.references or not _REFERENCES.isdisjoint(keys)
    found.unions = found.unions or not UNIONS.isdisjoint(keys)
    found.limits_names = found.limits_names or "propertyNames" in keys
    if "enum" in keys or "required" in keys:
        listed = len(list_of(node.get("enum"))), _OBJECTS * len(list_of(node.get("required")))
        found.longest = max(found.longest, *listed)
    names = node.get("patternProperties")
    for pattern in (node.get("pattern"), *(names if isinstance(names, dict) else ())):
        if not isinstance(pattern, str):
            continue
        found.pattern_characters += work_of(pattern)
        if found.pattern_characters > _PATTERN_CHARACTERS:
            raise ToolDeclarationInvalid(
                f"its input_schema has patterns of more than {_PATTERN_CHARACTERS:,} characters "
                "in all; each counts for 20 more, and one with hundreds of \\d, \\s or \\w for "
                "many more"
            )
        found.patterns = total([found.patterns, pattern_cost(pattern)])
        found.pattern_bytes += size_of(pattern)
        if found.pattern_bytes > _PATTERN_BYTES:
            raise ToolDeclarationInvalid(
                "its input_schema has patterns that compile to more than "
                f"{_PATTERN_BYTES >> 20} MiB: repetitions such as {{1,500}} grow with their number"
            )
    found.is_slow = found.is_slow or bool(names_cost(node) or listed_cost(node))
    found.unique = found.unique or node.get("uniqueItems") is True
    found.compares_numbers = found.compares_numbers or _compares_numbers(node)


def _compares_numbers(node: dict[str, Any]) -> bool:
    """Whether values are compared with numbers."""
    listed = [*list_of(node.get("enum")), node.get("const")]
    return not _NUMBERS.isdisjoint(node) or any(isinstance(e, (int, float)) for e in listed)


def cost_of(schema: dict[str, Any], found: Extent) -> ValidationCost | None:
    """The cost model for validating calls; None for a schema that is always cheap.

    Raises `ToolDeclarationInvalid` if the schema is too expensive for a single value.
    """
    if not found.references and not (found.is_slow or found.patterns.is_high):
        return None  # every subschema is applied at most once to a value, and there are few
    cost = ValidationCost(schema)
    if cost.at_one_value > _STEPS_AT_ONE_VALUE:
        raise ToolDeclarationInvalid(
            "its input_schema is so recursive that one value would be validated "
            f"{cost.at_one_value:,} times; the limit is {_STEPS_AT_ONE_VALUE:,}"
        )
    return cost if cost.can_grow else None


def fan(schema: dict[str, Any], found: Extent) -> int:
    """How many errors the branches of unions may cause for one value; 0 without unions.

    With `propertyNames`, each error carries the whole object, so that they have to be counted.
    """
    if found.limits_names:
        return UNBOUND
    if not found.unions:
        return 0
    try:
        return _Fan(schema).widest
    except RecursionError:
        return UNBOUND


class _Fan:
    """Counts the possible errors of a value in every branch that applies to it."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.widest = 0
        self._root = schema
        self._sizes: dict[int, int] = {}
        for key in ("$defs", "definitions"):
            for inner in members_of(schema.get(key)):
                self._size(inner)
        self._size(schema)

    def _size(self, node: Any) -> int:
        node = resolve(node, self._root)
        if not isinstance(node, dict):
            return 1
        if id(node) in self._sizes:
            return self._sizes[id(node)]
        self._sizes[id(node)] = 1  # a recursive reference counts as one
        size = 1 + len(list_of(node.get("required")))
        for key in ("anyOf", "oneOf"):
            branches = sum(map(self._size, list_of(node.get(key))))
            self.widest = max(self.widest, branches)
            size += branches
        below = [*list_of(node.get("allOf")), *members_of(node.get("properties"))]
        below += [node.get("items"), node.get("additionalProperties")]
        size += sum(map(self._size, below))
        self._sizes[id(node)] = min(size, UNBOUND)
        return self._sizes[id(node)]

"""Counts the steps of a validation: how often a schema is applied to a value, or a pattern to text.

References can double that number at every level of the arguments. If a schema's cost cannot grow,
it is not counted; otherwise the steps for a call's arguments are computed before the validation,
each pair of schema and value once, which is cheap even if the validation is not.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from toolpool.contract.schema.json_values import count_values, list_of, members_of
from toolpool.contract.schema.patterns import NO_COST, PatternCost, pattern_cost, total
from toolpool.contract.schema.references import at_pointer, resolve

_LEVELS = 16
_ORDINARY = 100
"""Steps for one value that no ordinary schema exceeds: below it, calls are not counted."""
_PAIRS = 40_000
"""Limits the pairs of schema and value: for very large arguments, even counting takes seconds."""
_FEW = 20
_MANY_CONSTANTS = 100
_VALUES_COUNTED = 10_000
UNBOUND = 1 << 62

_HERE = {
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "not", "if", "then", "else"), "schemas"),
    **dict.fromkeys(("dependentSchemas", "dependencies"), "map"),
    **dict.fromkeys(("$ref", "$dynamicRef", "$recursiveRef"), "reference"),
}
_BELOW = {
    **dict.fromkeys(
        ("items", "additionalProperties", "additionalItems", "unevaluatedItems", "prefixItems",
         "unevaluatedProperties", "contains"), "schemas"),
    "patternProperties": "map",
    "properties": "named",
    "propertyNames": "names",
}  # fmt: skip
_APPLYING = _HERE.keys() | _BELOW.keys()


@dataclass(slots=True, eq=False)
class _Node:
    """A schema, and those it applies: to the same value, by field name, to any field or item."""

    schema: dict[str, Any]
    here: list["_Node"] = field(default_factory=list)
    named: dict[str, list["_Node"]] = field(default_factory=dict)
    every: list["_Node"] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    own: int = 1
    """The steps of one application to a value, without those of other schemas."""
    each_name: int = 0
    """The steps for the name of each field."""
    names: list["_Node"] = field(default_factory=list)
    """The schemas of the names of fields."""
    by_name: PatternCost = NO_COST
    """The patterns of `patternProperties`."""
    patterns: PatternCost = NO_COST
    """The patterns for a text, also of the schemas that apply to the same value."""
    cost: int = 0

    @property
    def asked(self) -> int:
        """The errors that one application to an object may cause: one per missing field."""
        return 1 + len(list_of(self.schema.get("required")))


_NAMES_OF_AN_ERROR = 128
"""An error of a name carries all fields of the object: this many take as long as an error."""


class ValidationTooCostly(Exception):
    """Raised when the validation of a call would take too many steps."""


class ValidationCost:
    """The validation steps that one schema causes."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._root = schema
        self._nodes: dict[int, _Node] = {}
        self._by_name = _names(schema)
        self._leaf = _Node({})
        self._found: list[_Node] = [self._leaf]
        self._start = self._node(schema)
        for node in self._found:  # the list grows while it is read
            self._connect(node)
        self._in_order = _ordered(self._found, total(node.patterns for node in self._found))
        self._by_depth = self._bounds()
        self._is_slow = any(map(_is_slow, self._found))
        """Whether one application of a schema may take many steps."""

    @property
    def at_one_value(self) -> int:
        """The steps for a value without children."""
        return self._start.cost

    @property
    def can_grow(self) -> bool:
        """Whether the cost can grow with the arguments."""
        return self._is_slow or max(self._by_depth) > _ORDINARY

    def require_few(self, arguments: Any, most: int, *, is_explained: bool = False) -> None:
        """Raise `ValidationTooCostly` if a validation would take more than `most` steps.

        A validation without explanations skips the union branches with another tag.
        """
        is_slow = self._is_slow and not is_explained
        if is_slow or self._may_take_more(arguments, most):
            count = _Count(use_tags=not is_explained, patterns=is_slow)
            count.require_few(self._start, arguments, most)

    def steps_below(self, schema: Any, value: Any) -> int:
        """The steps that one part of the schema takes for a value.

        Raises `ValidationTooCostly` if even counting them takes too long.
        """
        node = self._nodes.get(id(resolve(schema, self._root)), self._leaf)
        try:
            return _Count(use_tags=True, patterns=self._is_slow).steps(node, value)
        except RecursionError:
            raise ValidationTooCostly from None

    def require_few_errors(self, arguments: Any, most: int) -> None:
        """Raises `ValidationTooCostly` if unions may yield more than `most` errors."""
        count = _Count(use_tags=False, errors=True, pairs=most)
        count.require_few(self._start, arguments, most)

    def _may_take_more(self, arguments: Any, most: int) -> bool:
        """Whether the number of values at each depth allows for more steps."""
        total, level = 0, [arguments]
        for cost in self._by_depth:
            total += cost * len(level)
            if total > most:
                return True
            level = [inner for value in level for inner in _inside(value)]
            if not level:
                return False
        return total + self._by_depth[-1] * sum(map(_size, level)) > most

    def _bounds(self) -> list[int]:
        """For each depth the most steps for one value there; the last applies to all below it."""
        counts: dict[_Node, int] = {self._start: 1}
        bounds: list[int] = []
        for _ in range(_LEVELS):
            here = self._spread(counts)
            bounds.append(min(sum(here.values()), UNBOUND))
            below = _one_level_down(here)
            if below == counts or not below:
                return bounds
            if bounds[-1] == UNBOUND:
                break
            counts = below
        return [*bounds, UNBOUND]

    def _spread(self, counts: dict[_Node, int]) -> dict[_Node, int]:
        """Also counts the schemas that these apply to the same value."""
        here = defaultdict(int, counts)
        for node in self._in_order:
            times = here.get(node)
            if times:
                for inner in node.here:
                    here[inner] = min(here[inner] + times, UNBOUND)
        return dict(here)

    def _node(self, schema: dict[str, Any]) -> _Node:
        if _APPLYING & schema.keys() == {"$ref"}:
            target = resolve(schema, self._root)
            schema = target if isinstance(target, dict) else {}
        is_applying = not _APPLYING.isdisjoint(schema) or "required" in schema
        is_slow = any(pattern_cost(schema.get("pattern"))) or listed_cost(schema)
        if not is_applying and not is_slow:
            return self._leaf
        node = self._nodes.get(id(schema))
        if node is None:
            node = self._nodes[id(schema)] = _Node(schema)
            self._found.append(node)
        return node

    def _connect(self, node: _Node) -> None:
        """Find the schemas applied to the same value and to its children."""
        node.patterns = pattern_cost(node.schema.get("pattern"))
        node.own = 1 + listed_cost(node.schema)
        node.each_name = names_cost(node.schema)
        for key, inner in node.schema.items():
            if key in _HERE:
                node.here += self._each(_HERE[key], inner)
            elif key == "properties" and isinstance(inner, dict):
                node.named = {name: self._each("schemas", each) for name, each in inner.items()}
                node.tags = {
                    name: each["const"]
                    for name, each in inner.items()
                    if isinstance(each, dict) and isinstance(each.get("const"), str)
                }
            elif key == "patternProperties" and isinstance(inner, dict):
                node.by_name = total(map(pattern_cost, inner))
                node.every += self._each("map", inner)
            elif key == "propertyNames":
                node.names = self._each("schemas", inner)
            elif key in _BELOW:
                node.every += self._each(_BELOW[key], inner)

    def _each(self, how: str, value: Any) -> list[_Node]:
        if how == "map":
            value = members_of(value)
        elif how == "reference":
            value = self._targets(value) if isinstance(value, str) else []
        listed = value if isinstance(value, list) else [value]
        return [self._node(schema) for schema in listed if isinstance(schema, dict)]

    def _targets(self, reference: str) -> list[Any]:
        base, _, fragment = reference.partition("#")
        if not base and (not fragment or fragment.startswith("/")):
            return [at_pointer(self._root, fragment)]
        name = fragment if fragment and not fragment.startswith("/") else base.rpartition("/")[2]
        return self._by_name.get(name, [])


class _Count:
    """Counts the steps for one call's arguments, or their possible errors."""

    def __init__(
        self, *, use_tags: bool, errors: bool = False, patterns: bool = False, pairs: int = _PAIRS
    ) -> None:
        self._use_tags = use_tags
        self._patterns = patterns
        self._errors = errors
        self._pairs = pairs
        self._most = UNBOUND
        self._known: dict[tuple[int, int], int] = {}

    def require_few(self, node: _Node, value: Any, most: int) -> None:
        """Raise `ValidationTooCostly` if there are more than `most` steps."""
        self._most = most
        try:
            if self.steps(node, value) > most:
                raise ValidationTooCostly
        except RecursionError:
            raise ValidationTooCostly from None

    def steps(self, node: _Node, value: Any) -> int:
        """Count the steps. Raises `ValidationTooCostly` if even counting takes too long."""
        if not isinstance(value, (dict, list)):
            has_text = self._patterns and isinstance(value, str)
            return node.cost + (node.patterns.steps(len(value)) if has_text else 0)
        key = (id(node), id(value))
        known = self._known.get(key)
        if known is not None:
            return known
        if len(self._known) > self._pairs:
            raise ValidationTooCostly
        self._known[key] = 0  # a validator stops at a cycle
        found = node.asked if self._errors else node.own
        for inner in node.here:
            found += 1 if self._is_other(inner, value) else self.steps(inner, value)
        if isinstance(value, dict):
            found += self._steps_of_fields(node, value)
        else:
            for item in value:
                for inner in node.every:
                    found += self.steps(inner, item)
        self._known[key] = found
        return found

    def _steps_of_fields(self, node: _Node, value: dict[str, Any]) -> int:
        found = len(value) * node.each_name
        if self._errors and node.names:
            found += len(value) ** 2 // _NAMES_OF_AN_ERROR
        if found > self._most:  # counting would take as long
            raise ValidationTooCostly
        for name, field_value in value.items():
            found += node.by_name.steps(len(name)) if self._patterns else 0
            for inner in node.names:
                found += self.steps(inner, name)
            for inner in node.named.get(name, ()):
                found += self.steps(inner, field_value)
            for inner in node.every:
                found += self.steps(inner, field_value)
        return found

    def _is_other(self, node: _Node, value: Any) -> bool:
        """Whether the value has another tag than the schema."""
        if not self._use_tags or not isinstance(value, dict):
            return False
        return any(name in value and value[name] != tag for name, tag in node.tags.items())


def _is_slow(node: _Node) -> bool:
    is_large = node.own > 1 or node.each_name > 0
    return is_large or node.patterns.is_high or node.by_name.is_high


def names_cost(schema: dict[str, Any]) -> int:
    """The steps for the name of a field: each pattern for names is tried, if there are many."""
    by_pattern = schema.get("patternProperties")
    count = len(by_pattern) if isinstance(by_pattern, dict) else 0
    return count if count > _FEW else 0


def listed_cost(schema: dict[str, Any]) -> int:
    """The steps for a value that is compared one by one, or needs certain fields.

    jsonschema-rs indexes lists of texts alone and of integers alone.
    """
    listed = [*list_of(schema.get("enum")), schema.get("const")]
    kinds = {type(each) for each in listed if each is not None}
    one_by_one = len(listed) if len(listed) > _FEW else 0
    composed = [each for each in listed if isinstance(each, (dict, list))]
    needed = schema.get("dependentRequired")
    count = len(needed) if isinstance(needed, dict) else 0
    values = sum(1 + count_values(each, _VALUES_COUNTED) // 4 for each in composed)
    values += 4 * one_by_one if float in kinds else one_by_one // 3 if len(kinds) > 1 else 0
    unions = (list_of(schema.get(key)) for key in ("anyOf", "oneOf"))
    constants = sum(isinstance(e, dict) and "const" in e for branches in unions for e in branches)
    is_many = constants > _MANY_CONSTANTS  # their own steps are counted with them
    return values + (count if count > _FEW else 0) + is_many


def _one_level_down(here: dict[_Node, int]) -> dict[_Node, int]:
    """The schemas that apply to a child: those of the most expensive field."""
    by_name: dict[str, dict[_Node, int]] = defaultdict(lambda: defaultdict(int))
    every: dict[_Node, int] = defaultdict(int)
    for node, times in here.items():
        for name, inner in node.named.items():
            for target in inner:
                by_name[name][target] += times
        for target in node.every + node.names:
            every[target] += times
    most: dict[_Node, int] = {}
    for counts in by_name.values():
        for target, times in counts.items():
            most[target] = max(most.get(target, 0), times)
    for target, times in every.items():
        most[target] = most.get(target, 0) + times
    return {target: min(times, UNBOUND) for target, times in most.items()}


def _ordered(nodes: list[_Node], patterns: PatternCost) -> list[_Node]:
    """Topological order with costs; cycles are cut.

    Where one is cut, all `patterns` of the schema may apply.
    """
    done: list[_Node] = []
    seen: set[_Node] = set()
    for start in nodes:
        stack = [(start, iter(start.here))] if start not in seen else []
        seen.add(start)
        open_nodes = {start}
        while stack:
            node, rest = stack[-1]
            inner = next(rest, None)
            if inner is None:
                stack.pop()
                open_nodes.discard(node)
                uncut = [each for each in node.here if each.cost and each not in open_nodes]
                is_cut, node.here = len(uncut) < len(node.here), uncut
                node.cost = min(node.own + sum(each.cost for each in node.here), UNBOUND)
                known = total([node.patterns, *(each.patterns for each in node.here)])
                node.patterns = patterns if is_cut else known
                done.append(node)
            elif inner not in seen:
                seen.add(inner)
                open_nodes.add(inner)
                stack.append((inner, iter(inner.here)))
    return done[::-1]


def _names(schema: Any) -> dict[str, list[Any]]:
    """Anchors and ids by their last part: may find too many, never too few."""
    found: dict[str, list[Any]] = defaultdict(list)
    level = [schema]
    for node in level:
        if isinstance(node, dict):
            for key in ("$anchor", "$dynamicAnchor", "$id", "id"):
                if isinstance(node.get(key), str):
                    name = node[key].rstrip("#").rpartition("/")[2].lstrip("#")
                    found[name].append(node)
            level.extend(node.values())
        elif isinstance(node, list):
            level.extend(node)
    return dict(found)


def _inside(value: Any) -> list[Any]:
    return value if isinstance(value, list) else members_of(value)


def _size(value: Any) -> int:
    count, level = 0, [value]
    for holder in level:
        count += 1
        level.extend(_inside(holder))
    return count

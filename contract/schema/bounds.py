"""How much work a schema may ask for, found out before it is compiled.

A schema comes from wherever a tool comes from. Its size is bounded by counting. Its time is bounded
by following references as a validator would: a value at some depth of the arguments is looked at
once by every subschema that applies there, and references can make that number double with each
level. `measure` finds the number for every depth; where it is large, `Work` bounds single calls.
"""

from collections import Counter
from typing import Any

from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.contract.schema.shapes import at_pointer, resolve

NODES_AT_MOST = 5_000
DEEPEST = 100
_PATTERN_CHARACTERS = 4_000
_LOOKS_AT_ONE_VALUE = 10_000
_LOOKS_AT_A_CALL = 200_000
_ORDINARY = 100
_LEVELS = 65
_UNBOUND = 1 << 62

_HERE_LISTS = ("allOf", "anyOf", "oneOf")
_HERE = ("not", "if", "then", "else")
_HERE_MAPS = ("dependentSchemas", "dependencies")
_BELOW_MAPS = ("properties", "patternProperties")
_BELOW = ("items", "additionalProperties", "additionalItems", "unevaluatedItems",
          "unevaluatedProperties", "contains", "propertyNames")  # fmt: skip
_BELOW_LISTS = ("prefixItems", "items")
_ANY = "*"
_STEPS = 12_000
_STATES = 200
State = frozenset[tuple[int, int]]
_TANGLED = "its input_schema has more references to follow than are followed"


class Work:
    """The looks that a value costs at each depth of the arguments."""

    def __init__(self, by_depth: tuple[int, ...]) -> None:
        self._by_depth = by_depth

    def too_much(self, arguments: Any) -> bool:
        """Whether checking these arguments would take longer than a call may."""
        total, level = 0, [arguments]
        for looks in self._by_depth:
            total += looks * len(level)
            if total > _LOOKS_AT_A_CALL:
                return True
            level = [
                inner
                for value in level
                if isinstance(value, (dict, list))
                for inner in (value.values() if isinstance(value, dict) else value)
            ]
            if not level:
                break
        return False


def measure(schema: dict[str, Any]) -> Work | None:
    """The work that calls have to be held to; None for an ordinary schema.

    Raises `ToolDeclarationInvalid` where a schema is too large, or asks for too much at once.
    """
    references = _count(schema)
    if not references:
        return None  # every subschema looks at a value once, and there are few of them
    try:
        return _Measuring(schema).work()
    except RecursionError:
        raise ToolDeclarationInvalid(_TANGLED) from None


def fan(schema: dict[str, Any]) -> int:
    """How many errors one value may cause in the branches of a union; 0 where there is none."""
    try:
        return _Fan(schema).widest
    except RecursionError:
        return _UNBOUND


class _Fan:
    """Adds up what can be wrong with a value, once for every branch that looks at it."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.widest = 0
        self._root = schema
        self._sizes: dict[int, int] = {}
        for key in ("$defs", "definitions"):
            for inner in _values(schema.get(key)):
                self._size(inner)
        self._size(schema)

    def _size(self, node: Any) -> int:
        node = resolve(node, self._root)
        if not isinstance(node, dict):
            return 1
        if id(node) in self._sizes:
            return self._sizes[id(node)]
        self._sizes[id(node)] = 1  # where it refers to itself
        size = 1 + len(_list_of(node.get("required")))
        for key in ("anyOf", "oneOf"):
            branches = sum(map(self._size, _list_of(node.get(key))))
            self.widest = max(self.widest, branches)
            size += branches
        below = [*_list_of(node.get("allOf")), *_values(node.get("properties"))]
        below += [node.get("items"), node.get("additionalProperties")]
        size += sum(map(self._size, below))
        self._sizes[id(node)] = min(size, _UNBOUND)
        return self._sizes[id(node)]


def _list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _values(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else []


def _count(schema: dict[str, Any]) -> bool:
    """Whether there are references; raises where there is too much of anything."""
    references = False
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
                references = references or "$ref" in node or "$dynamicRef" in node
                references = references or "$recursiveRef" in node
                pattern = node.get("pattern")
                if isinstance(pattern, str) and len(pattern) > _PATTERN_CHARACTERS:
                    raise ToolDeclarationInvalid(
                        f"its input_schema has a pattern of {len(pattern):,} characters; at most "
                        f"{_PATTERN_CHARACTERS:,} are compiled"
                    )
                below.extend(node.values())
            elif isinstance(node, list):
                below.extend(node)
        level = below
    return references


class _Measuring:
    """Follows a schema's references. Nodes are known by `id`; the schema keeps them alive."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._named: dict[str, list[Any]] = {}
        self._costs: dict[int, int] = {}
        self._below: dict[int, dict[str, Counter[int]]] = {}
        self._nodes: dict[int, Any] = {}
        self._open: set[int] = set()
        self._steps = 0
        self._find_names(schema)

    def _step(self, count: int) -> None:
        self._steps += count
        if self._steps > _STEPS:
            raise ToolDeclarationInvalid(_TANGLED)

    def work(self) -> Work | None:
        """Level by level: what may look at one value together is a state."""
        states: set[State] = {frozenset({(self._look(self._schema), 1)})}
        by_depth: list[int] = []
        while len(by_depth) < _LEVELS:
            looks = max(sum(n * self._costs[node] for node, n in state) for state in states)
            by_depth.append(min(looks, _UNBOUND))
            below = self._next(states)
            if not below or looks >= _UNBOUND:
                break
            if below == states:  # the same again on every further level
                by_depth += [looks] * (_LEVELS - len(by_depth))
            states = below
        if by_depth[0] > _LOOKS_AT_ONE_VALUE:
            raise ToolDeclarationInvalid(
                "its input_schema refers to itself so often that one value would be looked at "
                f"{by_depth[0]:,} times; at most {_LOOKS_AT_ONE_VALUE:,} are done"
            )
        return Work(tuple(by_depth)) if max(by_depth) > _ORDINARY else None

    def _next(self, states: set[State]) -> set[State]:
        """What looks at a value one level down, for each key that something looks at."""
        found: set[State] = set()
        for state in states:
            by_key: dict[str, Counter[int]] = {}
            for node, count in state:
                for key, targets in self._below[node].items():
                    self._step(len(targets))
                    sums = by_key.setdefault(key, Counter())
                    for target, times in targets.items():
                        sums[self._look(self._nodes[target])] += count * times
            every = by_key.pop(_ANY, Counter())
            self._step(len(every) * len(by_key))
            for sums in (*by_key.values(), Counter()):
                if sums or every:
                    found.add(frozenset((sums + every).items()))
        return found if len(found) <= _STATES else {_merged(found)}

    def _look(self, node: Any) -> int:
        """Note what `node` costs where it is applied, and what it applies one level down."""
        key = id(node)
        if key in self._costs:
            return key
        self._nodes[key] = node
        self._open.add(key)
        cost, below = 1, {}
        if isinstance(node, dict):
            below = self._own_below(node)
            for inner in self._applied_here(node):
                if id(inner) in self._open:
                    continue  # a validator stops there too: nothing new would be found out
                target = self._look(inner)
                cost = min(cost + self._costs[target], _UNBOUND)
                for name, targets in self._below[target].items():
                    self._step(len(targets))
                    below.setdefault(name, Counter()).update(targets)
        self._open.discard(key)
        self._costs[key], self._below[key] = cost, below
        return key

    def _own_below(self, node: dict[str, Any]) -> dict[str, Counter[int]]:
        below: dict[str, Counter[int]] = {}

        def apply(name: str, inner: Any) -> None:
            if isinstance(inner, dict):
                self._nodes[id(inner)] = inner
                below.setdefault(name, Counter())[id(inner)] += 1

        for keyword in _BELOW_MAPS:
            if isinstance(node.get(keyword), dict):
                for name, inner in node[keyword].items():
                    apply(name if keyword == "properties" else _ANY, inner)
        for keyword in _BELOW:
            apply(_ANY, node.get(keyword))
        for keyword in _BELOW_LISTS:
            if isinstance(node.get(keyword), list):
                for position, inner in enumerate(node[keyword]):
                    apply(f"[{position}]", inner)
        return below

    def _applied_here(self, node: dict[str, Any]) -> list[Any]:
        found = [inner for key in _HERE_LISTS for inner in _list(node.get(key))]
        found += [node[key] for key in _HERE if isinstance(node.get(key), dict)]
        for key in _HERE_MAPS:
            if isinstance(node.get(key), dict):
                found += [inner for inner in node[key].values() if isinstance(inner, dict)]
        for key in ("$ref", "$dynamicRef", "$recursiveRef"):
            if isinstance(node.get(key), str):
                found += self._targets(node[key])
        return found

    def _targets(self, reference: str) -> list[Any]:
        base, _, fragment = reference.partition("#")
        if not base and (not fragment or fragment.startswith("/")):
            target = at_pointer(self._schema, fragment)
            return [target] if isinstance(target, dict) else []
        name = fragment if fragment and not fragment.startswith("/") else base.rpartition("/")[2]
        return self._named.get(name, [])

    def _find_names(self, schema: Any) -> None:
        """Anchors and ids, by their last part: more may be found than is meant, never less."""
        level = [schema]
        for node in level:
            if isinstance(node, dict):
                for key in ("$anchor", "$dynamicAnchor", "$id", "id"):
                    if isinstance(node.get(key), str):
                        name = node[key].rstrip("#").rpartition("/")[2].lstrip("#")
                        self._named.setdefault(name, []).append(node)
                level.extend(node.values())
            elif isinstance(node, list):
                level.extend(node)


def _merged(states: set[State]) -> State:
    """One state that is at least as much as each of these."""
    most: Counter[int] = Counter()
    for state in states:
        for node, count in state:
            most[node] = max(most[node], count)
    return frozenset(most.items())


def _list(value: Any) -> list[Any]:
    return [inner for inner in _list_of(value) if isinstance(inner, dict)]

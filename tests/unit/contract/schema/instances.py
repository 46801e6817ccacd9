"""Values for a schema: some that it takes, and the same made wrong in one place each."""

import copy
import random
from collections.abc import Iterator
from typing import Any

from toolpool.contract.schema.references import referred

ODD: list[Any] = [
    None, True, False, 0, 1, -1, 7, 2.5, 10**6, "", "a", "abc", "A1", "2026-01-01", "x" * 40,
    [], [1], ["a"], ["a", "a"], {}, {"a": 1}, {"zz": None},
]  # fmt: skip
_TEXTS = [
    "", "a", "abc", "a b", "2026-01-01", "2026-01-01T00:00:00Z", "a@example.org", "ab1", "AB12",
    "https://example.org/a", "12345678-1234-4234-8234-123456789abc", "ch12", "GB", "x" * 12,
]  # fmt: skip


def values(schema: dict[str, Any], seed: int, count: int) -> Iterator[Any]:
    """Values made from the schema, each followed by some that differ from it in one place."""
    chance = random.Random(seed)
    for _ in range(count):
        made = _made(schema, schema, chance, 7)
        yield made
        for _ in range(4):
            yield _changed(copy.deepcopy(made), chance)


def like(example: Any, seed: int = 0, count: int = 40) -> list[Any]:
    """The example, and copies of it that differ in one place each."""
    chance = random.Random(seed)
    return [example, *(_changed(copy.deepcopy(example), chance) for _ in range(count))]


def _made(node: Any, root: dict[str, Any], chance: random.Random, depth: int) -> Any:
    """A value that the schema is likely to take."""
    if not isinstance(node, dict) or depth < 0:
        return chance.choice(ODD)
    if isinstance(node.get("$ref"), str) and isinstance(referred(node["$ref"], root), dict):
        beside = {key: value for key, value in node.items() if key != "$ref"}
        node = referred(node["$ref"], root) | beside
    if "const" in node:
        return node["const"]
    if node.get("enum"):
        return chance.choice(node["enum"])
    for key in ("anyOf", "oneOf"):
        if node.get(key):
            made = _made(chance.choice(node[key]), root, chance, depth - 1)
            rest = {k: v for k, v in node.items() if k != key}
            return _with(made, rest, root, chance, depth)
    if node.get("allOf"):
        made: Any = {}
        rest = {k: v for k, v in node.items() if k != "allOf"}
        for part in node["allOf"]:
            made = _with(made, part, root, chance, depth)
        return _with(made, rest, root, chance, depth)
    return _typed(node, root, chance, depth)


def _with(made: Any, node: Any, root: dict[str, Any], chance: random.Random, depth: int) -> Any:
    more = _made(node, root, chance, depth - 1) if isinstance(node, dict) and node else made
    return {**made, **more} if isinstance(made, dict) and isinstance(more, dict) else more


def _typed(node: dict[str, Any], root: dict[str, Any], chance: random.Random, depth: int) -> Any:
    kind = node.get("type", "object" if "properties" in node or "required" in node else None)
    kind = chance.choice(kind) if isinstance(kind, list) else kind
    if kind == "object":
        return _object(node, root, chance, depth)
    if kind == "array":
        return _array(node, root, chance, depth)
    if kind == "string":
        long = [text for text in _TEXTS if len(text) >= node.get("minLength", 0)]
        return chance.choice(long or ["y" * node["minLength"]])
    if kind in ("integer", "number"):
        low = node.get("minimum", node.get("exclusiveMinimum", 0))
        low = 0 if isinstance(low, bool) else low
        return chance.choice([low, int(low) + 1, low - 1, 5, 12, 1.5, 0])
    return {"boolean": True, "null": None}.get(str(kind), chance.choice(ODD))


def _object(
    node: dict[str, Any], root: dict[str, Any], chance: random.Random, depth: int
) -> dict[str, Any]:
    properties = node.get("properties", {})
    required = node.get("required", [])
    made = {}
    for name in dict.fromkeys([*properties, *required]):  # in the same order every time
        if name in required or (depth > 2 and chance.random() < 0.5):
            made[name] = _made(properties.get(name, {}), root, chance, depth - 1)
    others = node.get("additionalProperties", False)
    if isinstance(others, dict) and depth > 0:
        for _ in range(chance.randint(0, 2) + node.get("minProperties", 0)):
            made[chance.choice(_TEXTS)] = _made(others, root, chance, depth - 1)
    return made


def _array(
    node: dict[str, Any], root: dict[str, Any], chance: random.Random, depth: int
) -> list[Any]:
    prefix = node.get("prefixItems", [])
    items = node.get("items", {})
    if isinstance(items, list):
        prefix, items = items, node.get("additionalItems", {})
    made = [_made(inner, root, chance, depth - 1) for inner in prefix]
    count = max(node.get("minItems", 0), chance.randint(0, 2) if depth > 1 else 0) - len(made)
    return made + [_made(items, root, chance, depth - 1) for _ in range(count)]


def _changed(value: Any, chance: random.Random) -> Any:
    """The value with one change: a field gone, doubled, new or of another kind."""
    places = list(_places(value))
    if not places:
        return chance.choice(ODD)
    holder, key = chance.choice(places)
    change = chance.randrange(4)
    if change == 0:
        del holder[key]
    elif change == 1 and isinstance(holder, dict):
        holder[chance.choice(["zz", "a", "ch7", "GB"])] = chance.choice(ODD)
    elif change == 1:
        holder.append(copy.deepcopy(holder[key]))
    else:
        holder[key] = chance.choice(ODD)
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        for key in value:
            yield value, key
            yield from _places(value[key])
    elif isinstance(value, list):
        for key, inner in enumerate(value):
            yield value, key
            yield from _places(inner)

"""Finds the smallest parts of a schema that contain a call's errors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolpool.contract.schema.problem import Problem
from toolpool.contract.schema.references import UNIONS, looked_at

Path = tuple[str | int, ...]
Way = list[tuple[Path, dict[str, Any]]]
"""The schemas that validated a value and its containers, outermost first, with their paths."""

_BESIDE_A_REFERENCE = frozenset({"$ref", "title", "description", "default", "examples", "$comment"})
_BESIDE_A_UNION = (_BESIDE_A_REFERENCE | UNIONS | {"discriminator"}) - {"$ref"}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a schema, and the path in the arguments where it applies."""

    node: dict[str, Any]
    paths: tuple[Path, ...]


def way_to(problem: Problem, root: dict[str, Any]) -> Way:
    """The schemas on the validator's way to a problem.

    References and chosen union branches narrow down what a value should be; parts of an `allOf` do
    not, because a value has to satisfy all of them.
    """
    way: Way = []
    depth, is_narrowed = -1, True
    for level, node in looked_at(problem.place, root):
        if level > depth:
            depth, is_narrowed = level, True
        elif not is_narrowed:
            continue
        way.append((problem.path[:level], node))
        is_narrowed = _is_only_a_choice(node)
    return way


def smallest(ways: Sequence[Way]) -> list[Part]:
    """The parts that these ways lead to, without parts that lie inside another one."""
    ends = {id(way[-1][1]) for way in ways}
    found: dict[int, tuple[dict[str, Any], dict[Path, None]]] = {}
    for way in ways:
        path, node = next(step for step in way if id(step[1]) in ends)
        found.setdefault(id(node), (node, {}))[1][path] = None
    return [Part(node, tuple(paths)) for node, paths in found.values()]


def around(ways: Sequence[Way]) -> Part:
    """The smallest part that all of these ways pass through."""
    node = ways[0][0][1]
    for _, candidate in ways[0]:
        if all(any(inner is candidate for _, inner in way) for way in ways):
            node = candidate
    paths = (next(path for path, inner in way if inner is node) for way in ways)
    return Part(node, tuple(dict.fromkeys(paths)))


def _is_only_a_choice(node: dict[str, Any]) -> bool:
    """Whether a schema consists only of a reference or of alternatives."""
    if "$ref" in node:
        return node.keys() <= _BESIDE_A_REFERENCE
    return node.keys() <= _BESIDE_A_UNION

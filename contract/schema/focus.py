"""Which parts of a schema a shortened shape details, and which it omits.

The model already knows the fields that it sent correctly; it needs those that it omitted or sent
wrong.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from toolpool.contract.schema.error_scope import Path, Way
from toolpool.contract.schema.hints import properties_of
from toolpool.contract.schema.json_values import at_path, list_of
from toolpool.contract.schema.problem import Problem
from toolpool.contract.schema.references import referred, resolve

_MANY = 500
"""With more problems than this, the list of problems may be incomplete."""


@dataclass(frozen=True, slots=True)
class Focus:
    """Parts of a schema, by identity.

    `wrong` are those that contain an error or a missing field. `right` are the fields of these
    parts that were correct wherever they were sent.
    """

    wrong: frozenset[int] = frozenset()
    right: frozenset[tuple[int, frozenset[str]]] = frozenset()


def focus_of(
    problems: Sequence[Problem], ways: Sequence[Way], root: dict[str, Any], arguments: Any
) -> Focus:
    """`arguments` are None if other errors may be unreported."""
    wrong = {id(node) for way in ways for _, node in way}
    missing = [_wanted(problem, way) for problem, way in zip(problems, ways, strict=True)]
    for node in missing:
        if node is not None:
            wrong.add(id(node))
            wrong.update(map(id, _required(node, root)))
    if arguments is None or len(problems) > _MANY:
        return Focus(frozenset(wrong))
    right = _right(problems, ways, arguments)
    others = [node for problem, way in zip(problems, ways, strict=True)
              for node in _may_be_meant(problem, way)]  # fmt: skip
    for node in _reached([*missing, *others], root):  # they may also apply where nothing was sent
        right.pop(id(node), None)
    return Focus(frozenset(wrong), frozenset((key, names) for key, names in right.items() if names))


def _right(problems: Sequence[Problem], ways: Sequence[Way], arguments: Any) -> dict[int, Any]:
    """The fields without an error in or around them."""
    wrong = {problem.path for problem in problems}
    around = {path[:length] for path in wrong for length in range(len(path) + 1)}
    seen: set[tuple[int, Path]] = set()
    right: dict[int, frozenset[str]] = {}
    for path, node in (step for way in ways for step in way):
        if (id(node), path) in seen:
            continue
        seen.add((id(node), path))
        value = at_path(arguments, path)
        names: frozenset[str] = frozenset()
        is_certain = not any(path[:length] in wrong for length in range(len(path) + 1))
        if isinstance(value, dict) and is_certain:
            known = properties_of(node)
            names = frozenset(n for n in value if n in known and (*path, n) not in around)
        right[id(node)] = right.get(id(node), names) & names
    return right


def _wanted(problem: Problem, way: Way) -> Any:
    """The schema to describe for a problem; None if a field only has to be removed."""
    node = way[-1][1]
    if problem.kind == "additionalProperties" and not problem.is_unsure:
        return None
    if problem.kind == "required":
        return properties_of(node).get(str(problem.path[-1]), node)
    return node


def _may_be_meant(problem: Problem, way: Way) -> Iterator[Any]:
    """The schemas of the fields that an unknown field may stand for."""
    properties = properties_of(way[-1][1])
    if problem.kind == "additionalProperties":
        yield from (properties[name] for name in problem.allowed if name in properties)


def _required(node: Any, root: dict[str, Any]) -> Iterator[Any]:
    """The schemas of the required fields of an object and of its alternatives."""
    node = resolve(node, root)
    if isinstance(node, dict):
        branches = [each for key in ("anyOf", "oneOf", "allOf") for each in list_of(node.get(key))]
        yield from branches
        for inner in (node, *(resolve(branch, root) for branch in branches)):
            if isinstance(inner, dict):
                properties = properties_of(inner)
                names = list_of(inner.get("required"))
                yield from (properties[name] for name in names if name in properties)


def _reached(nodes: list[Any], root: dict[str, Any]) -> list[Any]:
    """These schemas, with all subschemas and the targets of their references."""
    seen: set[int] = set()
    reached: list[Any] = []
    left = list(nodes)
    while left:
        node = left.pop()
        if not isinstance(node, (dict, list)) or id(node) in seen:
            continue
        seen.add(id(node))
        reached.append(node)
        left.extend(node.values() if isinstance(node, dict) else node)
        if isinstance(node, dict) and isinstance(node.get("$ref"), str):
            left.append(referred(node["$ref"], root))
    return reached

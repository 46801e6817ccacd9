"""What a shape has to dwell on where there is no room for all of it, and what it may pass over.

Who sent a field right knows it already. Who left one out, or sent it wrong, does not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolpool.contract.schema.hints import properties_of
from toolpool.contract.schema.json_values import at_path, list_of
from toolpool.contract.schema.problem import Problem
from toolpool.contract.schema.references import referred, resolve

if TYPE_CHECKING:
    from toolpool.contract.schema.error_scope import Path, Way


_MANY = 500
"""Problems, beyond which it is not certain that no other was left out."""


@dataclass(frozen=True, slots=True)
class Focus:
    """Parts of a schema, by their identity.

    `wrong` are those on the way to something that is wrong or missing. `right` are the fields of
    objects on such a way that were sent right wherever they were sent.
    """

    wrong: frozenset[int] = frozenset()
    right: frozenset[tuple[int, frozenset[str]]] = frozenset()


def focus_of(
    problems: Sequence[Problem], ways: "Sequence[Way]", root: dict[str, Any], arguments: Any
) -> Focus:
    """`arguments` are None where it is not known that nothing else is wrong with them."""
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
    for node in _reached([*missing, *others], root):  # may be wanted where it was not sent
        right.pop(id(node), None)
    return Focus(frozenset(wrong), frozenset((key, names) for key, names in right.items() if names))


def _right(problems: Sequence[Problem], ways: "Sequence[Way]", arguments: Any) -> dict[int, Any]:
    """The fields at which, in which and around which nothing is wrong."""
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


def _wanted(problem: Problem, way: "Way") -> Any:
    """The schema of what is to be found out; None where it is only what to leave out."""
    node = way[-1][1]
    if problem.kind == "additionalProperties" and not problem.is_unsure:
        return None
    if problem.kind == "required":
        return properties_of(node).get(str(problem.path[-1]), node)
    return node


def _may_be_meant(problem: Problem, way: "Way") -> Iterator[Any]:
    """The schemas of the fields that an unknown one may stand for."""
    properties = properties_of(way[-1][1])
    if problem.kind == "additionalProperties":
        yield from (properties[name] for name in problem.allowed if name in properties)


def _required(node: Any, root: dict[str, Any]) -> Iterator[Any]:
    """The schemas of the required fields of an object, and of those that it may be one of."""
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
    """All that is inside these, and what they refer to."""
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

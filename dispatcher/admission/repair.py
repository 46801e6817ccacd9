"""Repairs arguments that can have only one meaning.

It converts a string that is JSON of the wanted type, a number or boolean in quotes, a member of an
enum where a list of its members is wanted, and leaves out an optional field that is null. It
changes only what the validator objected to. The arguments are then validated again, and nothing is
changed unless that succeeds, so a valid call is never touched.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from toolpool.contract.call import Flaw
from toolpool.contract.schema.json_values import json_type, literal
from toolpool.contract.schema.problem import Problem
from toolpool.contract.schema.references import looked_at, resolve
from toolpool.contract.schema.validator import SchemaValidator
from toolpool.dispatcher.formats import arguments as reading

_KINDS = frozenset({"type", "enum", "const", "anyOf", "oneOf"})
_ROUNDS = 8
_REPAIRS_AT_MOST = 64
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,15})?(?:[eE][+-]?[0-9]{1,2})?")
_BIG = 1 << 62
_GONE = object()

Path = tuple[str | int, ...]


def repair(
    arguments: dict[str, Any], problems: Sequence[Problem], validator: SchemaValidator
) -> tuple[dict[str, Any], list[Problem]] | None:
    """The repaired arguments and the changes; None if the repair is uncertain.

    Each change is a problem whose `kind` is `json`, `number`, `boolean`, `wrapped` or `dropped`.
    """
    done: list[Problem] = []
    for _ in range(_ROUNDS):
        if len(problems) + len(done) > _REPAIRS_AT_MOST:
            return None
        if any(problem.kind not in _KINDS or not problem.expected for problem in problems):
            return None
        changed: list[Path] = []
        for problem in problems:
            if any(problem.path[: len(path)] == path for path in changed):
                continue  # its container was replaced, and is validated again
            found = _at(arguments, problem.path)
            meant = None if found is _GONE else _meant(problem, found, validator)
            if meant is None:
                return None
            kind, value = meant
            arguments = _with(arguments, problem.path, value)
            changed.append(problem.path)
            done.append(Problem(problem.path, kind, expected=json_type(value)))
        problems = validator.problems(arguments)
        if not problems:
            if isinstance(reading.accept(arguments, _BIG), Flaw):
                return None  # the decoded JSON was no better than the string
            return arguments, done
    return None


def _meant(problem: Problem, value: Any, validator: SchemaValidator) -> tuple[str, Any] | None:
    """The only possible meaning of `value`; None if it has no meaning or several."""
    wanted = problem.alternatives
    if not problem.path:
        return None
    if value is None:
        return ("dropped", _GONE) if problem.is_optional else None
    if isinstance(value, str) and "string" not in wanted:
        read = _read(value, wanted)
        if read is not None:
            return read
    if wanted == ["array"] and _is_member(value, problem, validator.shapes.root):
        return "wrapped", [value]
    return None


def _is_member(value: Any, problem: Problem, root: dict[str, Any]) -> bool:
    """Whether the wanted list has an enum's members, and `value` is such a member."""
    *_, (_, node) = looked_at(problem.place, root)
    items = resolve(resolve(node, root).get("items"), root)
    members = items.get("enum") if isinstance(items, dict) else None
    return isinstance(members, list) and literal(value) in map(literal, members)


def _read(text: str, wanted: list[str]) -> tuple[str, Any] | None:
    """The one value of the wanted types that the text represents."""
    found: list[tuple[str, Any]] = []
    if ("integer" in wanted or "number" in wanted) and _INTEGER.fullmatch(text):
        found.append(("number", int(text)))
    elif "number" in wanted and _NUMBER.fullmatch(text):
        found.append(("number", float(text)))
    if "boolean" in wanted and text in ("true", "false"):
        found.append(("boolean", text == "true"))
    is_array, is_object = text[:1] == "[", text[:1] == "{"
    if (is_array and "array" in wanted) or (is_object and "object" in wanted):
        try:
            found.append(("json", reading.loads(text)))
        except (json.JSONDecodeError, ValueError, RecursionError):
            return None
    return found[0] if len(found) == 1 else None


def _at(node: Any, path: Path) -> Any:
    """The value at `path`, or `_GONE` if the path does not exist."""
    for step in path:
        try:
            node = node[step]
        except (KeyError, IndexError, TypeError):
            return _GONE
    return node


def _with(node: Any, path: Path, value: Any) -> Any:
    """A copy of `node` with another value at `path`; the rest is shared."""
    if not path:
        return value
    step, *rest = path
    copy: Any = dict(node) if isinstance(node, dict) else list(node)
    if not rest and value is _GONE:
        del copy[step]
    else:
        copy[step] = _with(node[step], tuple(rest), value)
    return copy

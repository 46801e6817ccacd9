"""Arguments put right where only one thing can have been meant.

A string that is JSON of the wanted type, a number or boolean in quotes, a single item where an
array of it is wanted, null for a field that need not be there. What is changed is exactly what the
validator objected to; the whole is validated again, and nothing is changed unless that succeeds.
So a repair never touches a call that was already valid.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from toolpool.contract.call import Flaw
from toolpool.contract.schema.problem import Problem
from toolpool.contract.schema.shapes import json_type
from toolpool.contract.schema.validator import SchemaValidator
from toolpool.dispatcher.formats import arguments as reading

_KINDS = frozenset({"type", "enum", "const", "anyOf", "oneOf"})
_ROUNDS = 4
_REPAIRS_AT_MOST = 64
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,15})?(?:[eE][+-]?[0-9]{1,2})?")
_SEVERAL = re.compile(r"[,;\n\[\]{}]")
_BIG = 1 << 62
_GONE = object()


def repair(
    arguments: dict[str, Any], problems: Sequence[Problem], validator: SchemaValidator
) -> tuple[dict[str, Any], list[Problem]] | None:
    """The arguments as they were meant, and what was changed; None where that is not certain.

    Each change is a problem whose `kind` is `json`, `number`, `boolean`, `wrapped` or `dropped`.
    """
    done: list[Problem] = []
    for _ in range(_ROUNDS):
        if len(problems) + len(done) > _REPAIRS_AT_MOST:
            return None
        if any(problem.kind not in _KINDS or not problem.expected for problem in problems):
            return None
        for problem in problems:
            changed = _repaired(problem, _at(arguments, problem.path))
            if changed is None:
                return None
            kind, value = changed
            arguments = _with(arguments, problem.path, value)
            done.append(Problem(problem.path, kind, expected=json_type(value)))
        problems = validator.problems(arguments)
        if not problems:
            if isinstance(reading.accept(arguments, _BIG), Flaw):
                return None  # the JSON in a string was no better than that around it
            return arguments, done
    return None


def _repaired(problem: Problem, value: Any) -> tuple[str, Any] | None:
    """What was meant by `value`; None where nothing is, or more than one thing may be."""
    wanted = problem.expected.split("|")
    if value is None:
        # Whether the field is needed is found out when the whole is validated again.
        return ("dropped", _GONE) if problem.path and isinstance(problem.path[-1], str) else None
    arrays = [name for name in wanted if name.startswith("array")]
    if isinstance(value, str):
        if "string" in wanted:
            return None
        read = _read(value, wanted, arrays)
        if read is not None or _SEVERAL.search(value):
            return read
    if arrays and len(wanted) == 1 and not isinstance(value, (list, tuple)):
        return "wrapped", [value]
    return None


def _read(text: str, wanted: list[str], arrays: list[str]) -> tuple[str, Any] | None:
    """The one value that the text stands for among the wanted types."""
    found: list[tuple[str, Any]] = []
    if ("integer" in wanted or "number" in wanted) and _INTEGER.fullmatch(text):
        found.append(("number", int(text)))
    elif "number" in wanted and _NUMBER.fullmatch(text):
        found.append(("number", float(text)))
    if "boolean" in wanted and text in ("true", "false"):
        found.append(("boolean", text == "true"))
    objects = any(name == "object" or name.startswith("{") for name in wanted)
    if (arrays and text[:1] == "[") or (objects and text[:1] == "{"):
        try:
            found.append(("json", reading.loads(text)))
        except (json.JSONDecodeError, ValueError, RecursionError):
            return None
    return found[0] if len(found) == 1 else None


def _at(node: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        if isinstance(node, dict) and step not in node:
            return _GONE  # an earlier repair took it out
        node = node[step]
    return node


def _with(node: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """A copy of `node` with another value at `path`; what is not on the way there is shared."""
    if not path:
        return value
    step, *rest = path
    copy: Any = dict(node) if isinstance(node, dict) else list(node)
    if not rest and value is _GONE:
        del copy[step]
    else:
        copy[step] = _with(node[step], tuple(rest), value)
    return copy

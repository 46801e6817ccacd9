"""Converts a validator's errors to problems that a model can act on."""

import functools
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import jsonschema_rs
import msgspec

from toolpool.contract.schema import union_branches
from toolpool.contract.schema.discriminators import tag_of
from toolpool.contract.schema.hints import (
    MEMBERS_AT_MOST,
    Hints,
    Listed,
    properties_of,
)
from toolpool.contract.schema.json_values import (
    COMBINED,
    at_path,
    has_key,
    json_type,
    literal,
    types_of,
)
from toolpool.contract.schema.object_fields import always_named, named_around
from toolpool.contract.schema.problem import Problem
from toolpool.contract.schema.references import UNIONS, looked_at, resolve
from toolpool.contract.schema.shape import Shapes

_ERRORS_AT_MOST = 1_000
"""Limits the errors that are explained, for example for a long list of wrong items; a rejection
names only five.
"""
_UNKNOWN_AT_MOST = 200
"""Per object; more than fit into a line."""
_INLINE_CHARACTERS = 300
TOO_LONG = "…"
"""The shape that replaces one that is too long for a line about one error."""
_OTHERS = COMBINED | {"patternProperties"}
"""Keywords that may allow more fields than `properties` names."""
_SAID_BY_THE_SHAPE = frozenset({"not", "contains", "unevaluatedItems"})
_SAYS_NOTHING = frozenset({"any", "string"})
_PARAMETERS = {
    "minimum": "limit", "maximum": "limit", "exclusiveMinimum": "limit",
    "exclusiveMaximum": "limit", "multipleOf": "multiple_of", "minLength": "limit",
    "maxLength": "limit", "minItems": "limit", "maxItems": "limit", "minProperties": "limit",
    "maxProperties": "limit", "additionalItems": "limit", "pattern": "pattern", "format": "format",
}  # fmt: skip

Path = tuple[str | int, ...]
Error = jsonschema_rs.ValidationError


class Explainer:
    """Explains the errors of one schema."""

    def __init__(self, schema: dict[str, Any], shapes: Shapes) -> None:
        self._schema = schema
        self._shapes = shapes
        self._lists: dict[tuple[int, str], Listed] = {}

    def problems(self, errors: Iterable[Error], arguments: Any) -> tuple[Problem, ...]:
        """The distinct problems, most useful first.

        Union choices come first, because the others depend on them; unknown fields that resemble no
        known one come last.
        """
        ranked: dict[tuple[Any, ...], tuple[int, Problem]] = {}
        hints = Hints()
        errors = list(islice(errors, _ERRORS_AT_MOST))
        if errors and has_key(arguments, ""):
            errors = [error for error in errors if self._has_its_path(error)]
        for error in errors:
            in_union = error.kind.name in UNIONS
            for problem in self._explain(error, arguments, hints):
                idle = problem.kind == "additionalProperties" and problem.closest is None
                rank = 2 if idle else 0 if in_union else 1
                said = (problem.path, problem.kind, problem.expected, problem.allowed)
                ranked.setdefault(said, (rank, problem))
        if not ranked:  # the validator refused the arguments without a reason
            return (Problem((), "schema", received=json_type(arguments)),)
        found = [problem for _, problem in sorted(ranked.values(), key=lambda pair: pair[0])]
        found = found[:_ERRORS_AT_MOST]
        told = {p.path for p in found if p.kind in ("enum", "const") and p.expected}
        return tuple(p for p in found if not (p.kind == "type" and p.path in told))

    @functools.cached_property
    def _schema_has_an_empty_key(self) -> bool:
        return has_key(self._schema, "")

    def _has_its_path(self, error: Error) -> bool:
        """Whether the validator names each step of the path: it skips empty field names."""
        if self._schema_has_an_empty_key:
            return False
        *_, (depth, _) = looked_at(_place(error), self._schema)
        return error.kind.name not in UNIONS and depth == len(error.instance_path)

    def _explain(self, error: Error, arguments: Any, hints: Hints) -> Iterator[Problem]:
        kind: Any = error.kind
        name: str = kind.name
        path = _path(error, arguments)
        value = at_path(arguments, path)
        if name == "required":
            yield self._missing(error, path, value, hints)
        elif name == "type":
            types = sorted(kind.types, key=lambda name: name == "null")
            yield Problem(
                path, "type", "|".join(types), json_type(value),
                shape=self._inline(self._subschema(error)) if _is_nested(types) else None,
                is_optional=value is None and self._may_be_left_out(error, path),
                holds=_held(value, types), place=_place(error),
            )  # fmt: skip
        elif name in ("enum", "const"):
            is_optional = value is None and self._may_be_left_out(error, path)
            problem = _enumerated(path, name, self._listed(error), value, hints)
            yield msgspec.structs.replace(problem, place=_place(error), is_optional=is_optional)
        elif name in ("additionalProperties", "unevaluatedProperties"):
            yield from self._unexpected(error, path, value, kind.unexpected, hints)
        elif name == "falseSchema" and error.schema_path[-1:] == ["additionalProperties"]:
            yield from self._unexpected(
                error, path, value, list(value), hints
            )  # there are no others
        elif name in UNIONS:
            yield from self._union(error, path, arguments, hints)
        elif name == "propertyNames":
            yield Problem(path, name, received=json_type(value), place=_place(error))
        else:
            parameter = str(getattr(kind, _PARAMETERS.get(name, ""), ""))
            # The shape already lists the available fields, the counted items and the excluded
            # values.
            is_open = name in _SAID_BY_THE_SHAPE or (
                name == "minProperties" and bool(properties_of(self._subschema(error) or {}))
            )
            yield Problem(
                path, name, parameter, json_type(value), place=_place(error), is_unsure=is_open
            )

    def _missing(self, error: Error, path: Path, value: Any, hints: Hints) -> Problem:
        """A missing field, or one that was sent under another name."""
        name: str = getattr(error.kind, "property")  # noqa: B009 - the stubs know one class of kinds
        holder = self._subschema(error) or {}
        wanted = properties_of(holder).get(name)
        if wanted is None:
            wanted = named_around(name, _place(error), len(path), self._schema)
        sent = next((u for u, m in hints.fields(value, holder).items() if m == name), None)
        shape = (
            None
            if sent and _may_fit(value[sent], resolve(wanted, self._schema))
            else self._inline(wanted)
        )
        return Problem(
            (*path, name), "required",
            expected="|".join(self._types(wanted)),
            shape=None if shape in _SAYS_NOTHING and not sent else shape,
            closest=None if holder.get("additionalProperties") is False else sent,
            place=_place(error),
        )  # fmt: skip

    def _unexpected(
        self, error: Error, path: Path, value: Any, fields: list[str], hints: Hints
    ) -> Iterator[Problem]:
        holder = self._subschema(error) or {}
        properties = properties_of(holder)
        present = value if isinstance(value, dict) else {}
        absent = [name for name in properties if name not in present]
        pairs = hints.fields(value, holder)
        others = {"patternProperties"} if error.kind.name == "additionalProperties" else _OTHERS
        allowed = tuple(absent[:MEMBERS_AT_MOST])
        # If only the first error was requested, it names only the first field.
        is_all = error.kind.name == "additionalProperties" and "patternProperties" not in holder
        if is_all and holder.get("additionalProperties") is False:
            fields = [name for name in present if name not in properties]
        elif error.kind.name == "unevaluatedProperties":  # all unevaluated fields are unknown
            known = always_named(holder, self._schema)
            fields = [name for name in fields if name not in known]
        told = fields[:_UNKNOWN_AT_MOST]
        for extra in told:
            yield Problem(
                (*path, extra),
                "additionalProperties",
                allowed=allowed,
                closest=pairs.get(extra),
                more=max(0, len(absent) - MEMBERS_AT_MOST),
                place=_place(error),
                is_unsure=not others.isdisjoint(holder),
                also=len(fields) - len(told) if extra == told[-1] else 0,
            )

    def _union(self, error: Error, path: Path, arguments: Any, hints: Hints) -> Iterator[Problem]:
        """The problems of the branch that was certainly meant, else the choice of branches.

        A branch is certain if it alone accepts the type, else if its tag was sent, else if it alone
        lacks no field and knows all fields that were sent.
        """
        kind: Any = error.kind
        branches: list[list[Error]] = getattr(kind, "context", [])
        value = at_path(arguments, path)
        if kind.name == "oneOf" and sum(not branch for branch in branches) > 1:
            yield _unsure(Problem(path, "oneOf", received=json_type(value)), error)
            return
        nodes = self._branches(error, len(branches))
        numbers = union_branches.open_branches(branches, path, value)
        chosen = numbers[0] if len(numbers) == 1 else None
        if chosen is None and isinstance(value, dict):
            tag = tag_of([nodes[number] for number in numbers], self._schema)
            if tag is not None and tag[0] in value:
                name, values = tag
                sent = literal(value[name])
                tagged = (
                    n for n, v in zip(numbers, values, strict=True) if sent in map(literal, v)
                )
                chosen = next(tagged, None)
                if chosen is None:
                    options = [option for listed in values for option in listed]
                    problem = _enumerated(
                        (*path, name), "enum", Listed(options), value[name], hints
                    )
                    yield _unsure(problem, error)
                    return
            else:
                chosen = union_branches.branch_by_names(branches, numbers, path)
        if len(numbers) == 1 and union_branches.listed_in([nodes[numbers[0]]])[1]:
            chosen = None  # a value of another branch's list may have been meant
        if chosen is not None:
            for inner in branches[chosen]:
                yield from self._explain(inner, arguments, hints)
            return
        yield from self._undecided(error, path, value, numbers, hints)

    def _undecided(
        self, error: Error, path: Path, value: Any, numbers: list[int], hints: Hints
    ) -> Iterator[Problem]:
        """The problems that all of these branches have in common."""
        branches: list[list[Error]] = getattr(error.kind, "context", [])
        listed, is_all = union_branches.listed_in(self._branches(error, len(branches)))
        if numbers and is_all:
            problem = _enumerated(path, "enum", self._gathered(error, listed), value, hints)
            yield msgspec.structs.replace(problem, place=_place(error))
            return
        missing, unknown = union_branches.wrong_names(branches, numbers, path)
        for name in missing:
            yield _unsure(Problem((*path, name), "required"), error)
        told = unknown[:_UNKNOWN_AT_MOST]
        for name in told:
            also = len(unknown) - len(told) if name == told[-1] else 0
            yield _unsure(Problem((*path, name), "additionalProperties", also=also), error)
        if not missing and not unknown:
            problem = self._no_form(error, path, value, is_unsure=bool(numbers))
            if numbers and listed:
                closest = hints.member(value, self._gathered(error, listed))
                problem = msgspec.structs.replace(problem, closest=closest)
            yield problem

    def _no_form(self, error: Error, path: Path, value: Any, *, is_unsure: bool) -> Problem:
        """The problem that a value matches no branch of a union."""
        name = error.kind.name
        holder = self._subschema(error) or {}
        types = list(dict.fromkeys(self._types({name: holder.get(name, [])})))
        if is_unsure and not types:
            types = [json_type(value)]
        return Problem(
            path, name, "|".join(types) or "another form", json_type(value),
            shape=self._inline(holder) if path else TOO_LONG,
            is_optional=value is None and self._may_be_left_out(error, path),
            holds=_held(value, types), place=_place(error),
        )  # fmt: skip

    def _branches(self, error: Error, count: int) -> list[Any]:
        """The schemas of a union's branches."""
        holder = self._subschema(error) or {}
        listed = holder.get(error.kind.name)
        if not isinstance(listed, list) or len(listed) != count:
            return [None] * count
        return [resolve(branch, self._schema) for branch in listed]

    def _listed(self, error: Error) -> Listed:
        """The values that the failed `enum` or `const` lists."""
        holder = self._subschema(error)
        if holder is None:
            kind: Any = error.kind
            return Listed(kind.options if kind.name == "enum" else [kind.expected_value])
        key = (id(holder), error.kind.name)
        if key not in self._lists:
            values = holder[error.kind.name]
            self._lists[key] = Listed([values] if error.kind.name == "const" else values)
        return self._lists[key]

    def _gathered(self, error: Error, values: list[Any]) -> Listed:
        """The values that the branches of a union list."""
        holder = self._subschema(error)
        if holder is None:
            return Listed(values)
        key = (id(holder), error.kind.name)
        if key not in self._lists:
            self._lists[key] = Listed(values)
        return self._lists[key]

    def _types(self, node: Any, depth: int = 3) -> list[str]:
        """The types that a schema names."""
        node = resolve(node, self._schema)
        if not isinstance(node, dict):
            return []
        kind = node.get("type")
        if kind is not None:
            return [str(each) for each in kind] if isinstance(kind, list) else [str(kind)]
        if isinstance(node.get("enum"), list):
            return types_of(node["enum"]).split("|")
        if "const" in node:
            return [json_type(node["const"])]
        options = node.get("anyOf") or node.get("oneOf")
        if isinstance(options, list) and depth:
            found = [name for each in options for name in self._types(each, depth - 1)]
            return list(dict.fromkeys(found))
        return ["object"] if "properties" in node else []

    def _inline(self, node: Any) -> str | None:
        """The shape of the failed schema."""
        if not isinstance(node, dict):
            return None
        shape = self._shapes.whole(node, _INLINE_CHARACTERS)
        return TOO_LONG if shape is None else shape.line

    def _may_be_left_out(self, error: Error, path: Path) -> bool:
        """Whether the value is a named, optional field of its object."""
        way = list(looked_at(_place(error), self._schema))
        holders = [node for depth, node in way if depth == way[-1][0] - 1]
        if not path or not holders or path[-1] not in properties_of(holders[-1]):
            return False
        return not any(path[-1] in holder.get("required", ()) for holder in holders)

    def _subschema(self, error: Error) -> dict[str, Any] | None:
        """The schema object that holds the failed keyword; None behind a reference."""
        node: Any = self._schema
        for step in error.schema_path[:-1]:
            try:
                node = node[step]
            except (KeyError, IndexError, TypeError):
                return None
        return node if isinstance(node, dict) else None


def _unsure(problem: Problem, union: Error) -> Problem:
    """Mark a problem of each possible branch of a union as unsure."""
    return msgspec.structs.replace(problem, place=_place(union), is_unsure=True)


def _held(value: Any, types: Sequence[str]) -> str:
    """Whether a string holds the wanted list or object, as `array`, `object` or `list`."""
    if not isinstance(value, str) or "string" in types:
        return ""
    ends = value.lstrip()[:1] + value.rstrip()[-1:]
    if ends == "[]" and "array" in types:
        return "array"
    if ends == "{}" and "object" in types:
        return "object"
    is_list = "array" in types and any(mark in value for mark in ",;\n")
    return "list" if is_list else ""


def _is_nested(types: Sequence[str]) -> bool:
    return "object" in types or "array" in types


def _may_fit(value: Any, wanted: Any) -> bool:
    """Whether a misnamed field's value is clearly of the wanted type."""
    if not isinstance(wanted, dict) or isinstance(value, (dict, list)):
        return False
    if isinstance(wanted.get("enum"), list):
        return value in wanted["enum"]
    kind = "number" if json_type(value) == "integer" else json_type(value)
    wants = wanted.get("type", kind)
    return kind == ("number" if wants == "integer" else wants)


def _enumerated(path: Path, kind: str, listed: Listed, value: Any, hints: Hints) -> Problem:
    """The problem of a value that is not in a list."""
    return Problem(
        path,
        kind,
        expected=listed.types,
        received=json_type(value),
        allowed=listed.literals,
        closest=hints.member(value, listed),
        more=listed.more,
    )


def _place(error: Error) -> Path:
    return tuple(error.evaluation_path[:-1])


def _path(error: Error, arguments: Any) -> Path:
    """The path to the value; the validator reports a field named `0` as an index."""
    steps: list[str | int] = []
    for step in error.instance_path:
        if isinstance(arguments, dict) and step not in arguments:
            step = str(step)
        steps.append(step)
        arguments = at_path(arguments, (step,))
    return tuple(steps)

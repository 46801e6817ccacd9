"""From a validator's errors to problems that a model can act on."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import jsonschema_rs

from toolpool.contract.schema.problem import Problem
from toolpool.contract.schema.shapes import closest, json_type, literal, shape, type_of, types_of

_ALLOWED_AT_MOST = 12
_UNEXPECTED_AT_MOST = 20
_ERRORS_AT_MOST = 1_000
_BRANCHES_AT_MOST = 200
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

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema

    def problems(self, errors: Iterable[Error], arguments: Any) -> tuple[Problem, ...]:
        """What is wrong, the most useful first, nothing twice.

        First what decides a union, because the rest depends on it; last the fields that are merely
        too many and resemble none.
        """
        ranked: dict[Problem, int] = {}
        for error in islice(errors, _ERRORS_AT_MOST):
            in_union = error.kind.name in ("anyOf", "oneOf")
            for problem in self._explain(error, arguments):
                idle = problem.kind == "additionalProperties" and problem.closest is None
                ranked.setdefault(problem, 2 if idle else 0 if in_union else 1)
        if not ranked:  # a validator that cannot say why has still refused them
            ranked[Problem((), "schema", received=json_type(arguments))] = 0
        told = {p.path for p in ranked if p.kind in ("enum", "const") and p.expected}
        return tuple(
            problem
            for problem in sorted(ranked, key=ranked.__getitem__)
            if not (problem.kind == "type" and problem.path in told)
        )

    def _explain(self, error: Error, arguments: Any) -> Iterator[Problem]:
        kind: Any = error.kind
        name: str = kind.name
        path = _path(error, arguments)
        value = _at(arguments, path)
        if name == "required":
            wanted = self._properties(error).get(kind.property)
            yield Problem(
                (*path, kind.property), "required",
                expected=type_of(wanted, self._schema) or "", shape=shape(wanted, self._schema),
                closest=self._sent_as(error, kind.property, value),
            )  # fmt: skip
        elif name == "type":
            types = sorted(kind.types, key=lambda name: name == "null")
            yield Problem(
                path, "type", "|".join(types), json_type(value),
                shape=shape(self._subschema(error), self._schema),
                is_optional=value is None and self._may_be_left_out(error),
            )  # fmt: skip
        elif name in ("enum", "const"):
            options = kind.options if name == "enum" else [kind.expected_value]
            is_optional = value is None and self._may_be_left_out(error)
            yield enumerated(path, name, options, value, is_optional=is_optional)
        elif name in ("additionalProperties", "unevaluatedProperties"):
            yield from self._unexpected(error, path, value, kind.unexpected)
        elif name == "falseSchema" and error.schema_path[-1:] == ["additionalProperties"]:
            yield from self._unexpected(error, path, value, list(value))  # there are no others
        elif name in ("anyOf", "oneOf"):
            yield from self._union(error, path, arguments)
        elif name == "propertyNames":
            yield Problem(path, name, received=json_type(value))
        else:
            parameter = getattr(kind, _PARAMETERS.get(name, ""), "")
            yield Problem(path, name, str(parameter), json_type(value))

    def _unexpected(
        self, error: Error, path: Path, value: Any, fields: list[str]
    ) -> Iterator[Problem]:
        properties = list(self._properties(error))
        present = value if isinstance(value, dict) else {}
        absent = [name for name in properties if name not in present]
        for extra in fields[:_UNEXPECTED_AT_MOST]:
            yield Problem(
                (*path, extra),
                "additionalProperties",
                allowed=tuple(properties[:_ALLOWED_AT_MOST]),
                closest=closest(extra, absent),
                more=max(0, len(properties) - _ALLOWED_AT_MOST),
            )

    def _union(self, error: Error, path: Path, arguments: Any) -> Iterator[Problem]:
        """The branch that the argument resembles; what there is to choose where it resembles none.

        A branch is out where the value's own type is wrong. Then the one is meant whose tag fits
        (a `const` or `enum` field such as `kind: "circle"`), then the one with the fewest errors.
        """
        kind: Any = error.kind
        branches: list[list[Error]] = getattr(kind, "context", [])[:_BRANCHES_AT_MOST]
        if kind.name == "oneOf" and sum(not branch for branch in branches) > 1:
            yield Problem(path, "oneOf", received=json_type(_at(arguments, path)))
            return
        open_branches = [b for b in branches if not any(_shuts_out(e, path) for e in b)]
        fitting = [b for b in open_branches if not any(_is_tag(e, path) for e in b)]
        if fitting:
            for inner in min(fitting, key=_distance):
                yield from self._explain(inner, arguments)
        elif open_branches:
            yield from self._tags(open_branches, path, arguments)
        else:
            options = (self._subschema(error) or {}).get(kind.name, [])
            described = dict.fromkeys(
                shape(option, self._schema) or type_of(option, self._schema) or "another form"
                for option in options[:_ALLOWED_AT_MOST]
            )
            value = _at(arguments, path)
            is_optional = value is None and self._may_be_left_out(error)
            yield Problem(
                path, kind.name, "|".join(described), json_type(value), is_optional=is_optional
            )

    def _tags(self, branches: list[list[Error]], path: Path, arguments: Any) -> Iterator[Problem]:
        """Every tag that the branches ask for, as one enum; the field is the one most ask for."""
        asked: dict[Path, list[Any]] = {}
        for branch in branches:
            for error in branch:
                if _is_tag(error, path):
                    kind: Any = error.kind
                    options = kind.options if kind.name == "enum" else [kind.expected_value]
                    asked.setdefault(_path(error, arguments), []).extend(options)
        where = max(asked, key=lambda found: len(asked[found]))
        yield enumerated(where, "enum", asked[where], _at(arguments, where))

    def _sent_as(self, error: Error, name: str, value: Any) -> str | None:
        """The field that was probably meant, where a schema lets any field pass unsaid."""
        holder = self._subschema(error) or {}
        if not isinstance(value, dict) or holder.get("additionalProperties") is False:
            return None
        properties = self._properties(error)
        return closest(name, [field for field in value if field not in properties])

    def _may_be_left_out(self, error: Error) -> bool:
        """Whether the value is a field that its object's schema does not require."""
        steps = error.schema_path
        if len(steps) < 3 or steps[-3] != "properties":
            return False
        holder = self._subschema(error, above=3)
        return holder is not None and steps[-2] not in holder.get("required", ())

    def _properties(self, error: Error) -> dict[str, Any]:
        properties = (self._subschema(error) or {}).get("properties")
        return properties if isinstance(properties, dict) else {}

    def _subschema(self, error: Error, above: int = 1) -> dict[str, Any] | None:
        """The schema object that holds the failed keyword; None where a reference hides it.

        `above` is how many steps it is above the keyword's end.
        """
        node: Any = self._schema
        for step in error.schema_path[:-above]:
            try:
                node = node[step]
            except (KeyError, IndexError, TypeError):
                return None
        return node if isinstance(node, dict) else None


def enumerated(
    path: Path, kind: str, options: Sequence[Any], value: Any, *, is_optional: bool = False
) -> Problem:
    """The problem of a value that is none of `options`."""
    return Problem(
        path,
        kind,
        expected=types_of(options[:_ALLOWED_AT_MOST]),
        received=json_type(value),
        allowed=tuple(literal(option) for option in options[:_ALLOWED_AT_MOST]),
        closest=_meant(value, [option for option in options if isinstance(option, str)]),
        more=max(0, len(options) - _ALLOWED_AT_MOST),
        is_optional=is_optional,
    )


def _meant(value: Any, texts: Sequence[str]) -> str | None:
    """The text that was probably meant; for a number or boolean the one that spells it."""
    if isinstance(value, str):
        return closest(value, texts)
    if isinstance(value, (bool, int, float)):
        spelt = literal(value)
        return next((text for text in texts if text.casefold() == spelt), None)
    return None


def _at(arguments: Any, path: Path) -> Any:
    for step in path:
        try:
            arguments = arguments[step]
        except (KeyError, IndexError, TypeError):
            return None
    return arguments


def _path(error: Error, arguments: Any) -> Path:
    """The way to the value; the validator takes a field that is called `0` for an index."""
    steps: list[str | int] = []
    for step in error.instance_path:
        if isinstance(arguments, dict) and step not in arguments:
            step = str(step)
        steps.append(step)
        arguments = _at(arguments, (step,))
    return tuple(steps)


def _shuts_out(error: Error, path: Path) -> bool:
    """Whether the value itself is of the wrong type, or not the one value of a branch."""
    name = error.kind.name
    here = len(error.instance_path) == len(path)
    return here and name in ("type", "const", "enum", "falseSchema")


def _is_tag(error: Error, path: Path) -> bool:
    """Whether a field right below the value has not the text by which its branch is known."""
    kind: Any = error.kind
    if kind.name not in ("const", "enum") or len(error.instance_path) != len(path) + 1:
        return False
    options = kind.options if kind.name == "enum" else [kind.expected_value]
    return all(isinstance(option, str) for option in options)


def _distance(branch: list[Error]) -> tuple[int, int]:
    """How far off: first by the fields that lack or are too many, then by all that is wrong."""
    strange = 0
    for error in branch:
        kind: Any = error.kind
        if kind.name == "required":
            strange += 1
        elif kind.name == "additionalProperties":
            strange += len(kind.unexpected)
    return strange, len(branch)

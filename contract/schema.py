"""Compiled JSON Schemas: one validator a schema, cached by the spec's digest (R20, R21).

Drafts 4 to 2020-12 by `$schema`, 2020-12 by default. Nothing is ever fetched: a remote `$ref` is
refused when the schema is compiled.
"""

import difflib
from collections.abc import Iterator, Sequence
from typing import Any

import jsonschema_rs

from contract import encoding
from contract.errors import ToolDeclarationInvalid
from contract.problem import Problem
from contract.spec import ToolSpec

_CACHED_AT_MOST = 10_000
_ALLOWED_AT_MOST = 12
_SHAPE_CHARACTERS = 80
_WORDED = {
    "minimum": "a number of at least {limit}",
    "maximum": "a number of at most {limit}",
    "exclusiveMinimum": "a number above {limit}",
    "exclusiveMaximum": "a number below {limit}",
    "multipleOf": "a multiple of {multiple_of}",
    "minLength": "at least {limit} characters",
    "maxLength": "at most {limit} characters",
    "minItems": "at least {limit} items",
    "maxItems": "at most {limit} items",
    "minProperties": "at least {limit} fields",
    "maxProperties": "at most {limit} fields",
    "pattern": "text matching {pattern}",
    "format": "text in {format} format",
    "uniqueItems": "items that all differ",
    "contains": "an array with at least one item of the wanted kind",
    "falseSchema": "nothing here",
    "not": "another value: this one is excluded",
}


class SchemaValidator:
    """Accepts or explains. Raises `ToolDeclarationInvalid` when the schema does not compile."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        try:
            self._validator = jsonschema_rs.validator_for(schema, offline=True)
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
            raise ToolDeclarationInvalid(
                f"its input_schema does not compile: {str(error).splitlines()[0]}"
            ) from None

    def problems(self, arguments: Any) -> tuple[Problem, ...]:
        """Everything that is wrong with `arguments`, the most useful first; empty if nothing is.

        Raises ValueError for values that are not JSON.
        """
        if self._validator.is_valid(arguments):
            return ()
        found: dict[Problem, None] = {}
        for error in self._validator.iter_errors(arguments):
            for problem in self._explain(error):
                found.setdefault(problem)
        return tuple(sorted(found, key=lambda problem: problem.kind == "additionalProperties"))

    def _explain(self, error: "jsonschema_rs.ValidationError") -> Iterator[Problem]:
        kind: Any = error.kind
        name: str = kind.name
        path = tuple(error.instance_path)
        received = json_type(error.instance)
        if name == "required":
            wanted = self._property(error, kind.property)
            yield Problem((*path, kind.property), "required", shape=shape(wanted, self._schema))
        elif name == "type":
            wanted = self._subschema(error)
            yield Problem(
                path, "type", " or ".join(_sorted_types(kind.types)), received,
                shape=shape(wanted, self._schema),
            )  # fmt: skip
        elif name in ("enum", "const"):
            options = kind.options if name == "enum" else [kind.expected_value]
            yield _enumerated(path, name, options, error.instance)
        elif name in ("additionalProperties", "unevaluatedProperties"):
            properties = list((self._subschema(error) or {}).get("properties", {}))
            for extra in kind.unexpected:
                yield Problem(
                    (*path, extra),
                    "additionalProperties",
                    allowed=tuple(properties[:_ALLOWED_AT_MOST]),
                    closest=closest(extra, properties),
                )
        elif name in ("anyOf", "oneOf") and hasattr(kind, "context"):
            yield from self._branches(error, path, received)
        elif name == "propertyNames":
            yield Problem(path, name, "other field names", received)
        else:
            values = {k: getattr(kind, k) for k in ("limit", "multiple_of", "pattern", "format")
                      if hasattr(kind, k)}  # fmt: skip
            worded = _WORDED.get(name, "a value that satisfies {name}").format(name=name, **values)
            yield Problem(path, name, worded, received)

    def _branches(
        self, error: "jsonschema_rs.ValidationError", path: tuple[str | int, ...], received: str
    ) -> Iterator[Problem]:
        """The branch that the argument resembles; the list of types where it resembles none."""
        kind: Any = error.kind
        branches: list[list[jsonschema_rs.ValidationError]] = kind.context
        resembling = [
            branch
            for branch in branches
            if not any(
                e.kind.name in ("type", "const") and tuple(e.instance_path) == path for e in branch
            )
        ]
        if resembling:
            for inner in min(resembling, key=len):
                yield from self._explain(inner)
            return
        options = (self._subschema(error) or {}).get(kind.name, [])
        described = dict.fromkeys(
            shape(option, self._schema) or _type_of(option) or "another form" for option in options
        )
        yield Problem(path, kind.name, " or ".join(described) or "another form", received)

    def _subschema(self, error: "jsonschema_rs.ValidationError") -> Any:
        """The schema object that holds the failed keyword; None where a reference hides it."""
        node: Any = self._schema
        for step in list(error.schema_path)[:-1]:
            if isinstance(node, dict) and "$ref" in node and step not in node:
                node = resolve(node, self._schema)
                if step == "$ref":
                    continue
            if isinstance(node, dict) and step == "$ref":
                node = resolve(node, self._schema)
                continue
            try:
                node = node[step]
            except (KeyError, IndexError, TypeError):
                return None
        return resolve(node, self._schema) if isinstance(node, dict) else None

    def _property(self, error: "jsonschema_rs.ValidationError", name: str) -> Any:
        holder = self._subschema(error)
        return (holder or {}).get("properties", {}).get(name)


class SchemaCache:
    """Validators by schema digest. A spec without a schema, or with it off, has None (R28)."""

    def __init__(self) -> None:
        self._validators: dict[str, SchemaValidator] = {}

    def validator(self, spec: ToolSpec) -> SchemaValidator | None:
        """Raises `ToolDeclarationInvalid` when the schema does not compile."""
        if spec.input_schema is None or not spec.check_schema:
            return None
        digest = spec.digest or encoding.digest(spec.input_schema)
        validator = self._validators.get(digest)
        if validator is None:
            if len(self._validators) >= _CACHED_AT_MOST:
                self._validators.clear()
            validator = self._validators[digest] = SchemaValidator(spec.input_schema)
        return validator


def json_type(value: Any) -> str:
    """The JSON name of a Python value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((int, "integer"), (float, "number"), (str, "string"), (dict, "object")):
        if isinstance(value, kind):
            return name
    return "array" if isinstance(value, (list, tuple)) else type(value).__name__


def closest(name: str, candidates: Sequence[str]) -> str | None:
    """The candidate that was probably meant; None where none is near."""
    folded = {candidate.casefold().replace("-", "_"): candidate for candidate in candidates}
    near = difflib.get_close_matches(name.casefold().replace("-", "_"), folded, n=1, cutoff=0.6)
    return folded[near[0]] if near else None


def shape(schema: Any, root: dict[str, Any], depth: int = 2) -> str | None:
    """One line for an object or array: `{start: integer, end: integer}`, `array of string`."""
    schema = resolve(schema, root)
    if not isinstance(schema, dict):
        return None
    if isinstance(schema.get("properties"), dict) and depth:
        fields = ", ".join(
            f"{name}: {shape(inner, root, depth - 1) or _type_of(resolve(inner, root)) or 'any'}"
            for name, inner in schema["properties"].items()
        )
        text = "{" + fields + "}"
        return text if len(text) <= _SHAPE_CHARACTERS else text[: _SHAPE_CHARACTERS - 2] + "…}"
    if schema.get("type") == "array" and "items" in schema:
        inner = shape(schema["items"], root, depth - 1) if depth else None
        return f"array of {inner or _type_of(resolve(schema['items'], root)) or 'any'}"
    return None


def resolve(schema: Any, root: dict[str, Any]) -> Any:
    """`schema` with its own local reference followed; as it is where there is none."""
    for _ in range(8):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#"):
            return schema
        node: Any = root
        for step in reference[1:].strip("/").split("/") if len(reference) > 1 else []:
            step = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, dict) or step not in node:
                return schema
            node = node[step]
        schema = node
    return schema


def _type_of(schema: Any) -> str | None:
    if not isinstance(schema, dict):
        return None
    kind = schema.get("type")
    if isinstance(kind, list):
        return " or ".join(map(str, kind))
    if kind is None and isinstance(schema.get("enum"), list):
        return "one of " + ", ".join(_literal(option) for option in schema["enum"][:5])
    if kind is None and "const" in schema:
        return _literal(schema["const"])
    return str(kind) if kind is not None else None


def _sorted_types(types: Sequence[str]) -> list[str]:
    return sorted(types, key=lambda name: name == "null")


def _literal(value: Any) -> str:
    return encoding.encode(value).decode()


def _enumerated(
    path: tuple[str | int, ...], kind: str, options: Sequence[Any], value: Any
) -> Problem:
    texts = [option for option in options if isinstance(option, str)]
    return Problem(
        path,
        kind,
        received=json_type(value),
        allowed=tuple(_literal(option) for option in options[:_ALLOWED_AT_MOST]),
        closest=closest(value, texts) if isinstance(value, str) else None,
    )

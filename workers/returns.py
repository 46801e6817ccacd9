"""The output schema of a tool, from its return annotation or declaration."""

import dataclasses
import enum
import typing
from typing import Any

import msgspec
import pydantic
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, JsonSchemaWarningKind

from toolpool.contract import encoding
from toolpool.contract.content import blocks_of
from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.contract.schema.annotations import changed, without
from toolpool.contract.schema.problem import Problem
from toolpool.contract.schema.validator import SchemaValidator

_UNSAID = (None, type(None), Any, object, typing.NoReturn, typing.Never)
_CONTENT_PACKAGES = frozenset({"mcp", "mcp_types", "fastmcp"})
"""Packages whose types are content for models, not data."""
_TOO_STRICT = ("format", "uniqueItems")
"""Keywords that pydantic's output may break: dates without a time zone (RFC 3339), browsers' URLs
(RFC 3986), IPv6 addresses with a scope, and sets of NaN, which become lists of nulls.
"""
_SAYS_NOTHING = frozenset({"$defs", "description"})


class Returns:
    """Validates results against `schema`.

    If `is_annotation`, it describes the function's return value, otherwise the data in it;
    `aliased` is the source type if its fields have aliases. Raises `ToolDeclarationInvalid` if the
    schema does not compile.
    """

    def __init__(
        self,
        schema: dict[str, Any],
        *,
        is_annotation: bool,
        aliased: "pydantic.TypeAdapter[Any] | None" = None,
    ) -> None:
        self.schema = schema
        self.is_annotation = is_annotation
        self._aliased = aliased
        self._names = _names_in(schema)
        try:
            self._validator = SchemaValidator(schema)
            # For an annotation, `True` is an integer and a number, as in Python.
            self._pythonic = SchemaValidator(changed(schema, _pythonic)) if is_annotation else None
        except ToolDeclarationInvalid as error:
            reason = str(error).replace("input_schema", "output_schema")
            raise ToolDeclarationInvalid(reason) from None

    def problems(self, data: Any) -> tuple[Problem, ...]:
        """The problems of a result, without its values. `data` is plain JSON.

        In a path, `*` stands for any key that the schema does not name.
        """
        if not self.is_annotation:
            if isinstance(data, dict) and isinstance(data.get("content"), list):
                data = data.get("structuredContent", data)
            if blocks_of(data) is not None:
                return (Problem(("structuredContent",), "required"),)
        found = self._validator.problems(data)
        if found and self._pythonic is not None:
            if not self._pythonic.problems(data):
                return ()
            found = tuple(problem for problem in found if problem.received != "boolean") or found
        if not found:
            return ()
        return tuple(
            # Hints are for models that can correct a value, and may quote the result.
            msgspec.structs.replace(
                problem, path=self._without_keys(problem.path), closest=None, is_optional=False
            )
            for problem in found
            if problem.kind != "tooDeep"  # a result that is too deep to check is accepted
        )

    def by_alias(self, encoded: bytes) -> bytes | None:
        """The result with its fields renamed to their aliases in the schema.

        A model's `model_dump()` uses the field names. None if the model's type rejects or changes
        the result.
        """
        if self._aliased is None:
            return None
        try:
            value = self._aliased.validate_json(encoded, strict=True, by_alias=True, by_name=True)
            made = self._aliased.dump_json(value, by_alias=True, warnings="error")
            return None if self.problems(encoding.decode(made)) else made
        except Exception:  # noqa: BLE001 - validators are user code
            return None

    def _without_keys(self, path: tuple[str | int, ...]) -> tuple[str | int, ...]:
        return tuple(step if isinstance(step, int) or step in self._names else "*" for step in path)


def _names_in(schema: Any) -> frozenset[str]:
    """The field names anywhere in a schema."""
    names: set[str] = set()
    nodes = [schema]
    for node in nodes:
        if isinstance(node, dict):
            if isinstance(node.get("properties"), dict):
                names.update(node["properties"])
            if isinstance(node.get("required"), list):
                names.update(name for name in node["required"] if isinstance(name, str))
            nodes.extend(node.values())
        elif isinstance(node, list):
            nodes.extend(node)
    return frozenset(names)


def returns_of(hint: Any, given: Any, where: str) -> Returns | None:
    """The schema for a tool's results: a `given` schema, else that of its return annotation.

    None if `given` is False, or if the annotation allows anything. Raises `ToolDeclarationInvalid`
    for an invalid `given` schema.
    """
    if given is False:
        return None
    if given is None:
        if any(hint is nothing for nothing in _UNSAID) or _is_content(hint):
            return None
        try:
            adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(hint)
            schema = _annotated(adapter, by_alias=True)
            if _SAYS_NOTHING.issuperset(schema):
                return None
            aliased = adapter if _annotated(adapter, by_alias=False) != schema else None
            return Returns(schema, is_annotation=True, aliased=aliased)
        except Exception:  # noqa: BLE001 - an annotation is user code
            return None
    if not isinstance(given, dict):
        raise ToolDeclarationInvalid(
            f"{where}: output_schema is a JSON Schema, or False for none; "
            f"not {type(given).__name__}"
        )
    try:
        return Returns(given, is_annotation=False)
    except ToolDeclarationInvalid as error:
        raise ToolDeclarationInvalid(f"{where}: {error}") from None


class _AsSent(GenerateJsonSchema):
    """Generates the schema of results as JSON, without constraints that they may break.

    A decimal may have an exponent, flags may be combined, an object of a derived class has more
    fields, and a serializer without a return type may produce anything.
    """

    _models = 0
    """The nesting depth, in models, of the type that is being described."""

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        """Ignore warnings: types without a schema are omitted."""

    def ser_schema(self, schema: Any) -> JsonSchemaValue | None:
        module = getattr(schema.get("function"), "__module__", None) or ""
        is_known = "function" not in schema or module.partition(".")[0] == "pydantic"
        # Serializers in annotations apply inside models only.
        if not is_known and (schema.get("return_schema") is None or not self._models):
            return {}
        return super().ser_schema(schema)

    def float_schema(self, schema: Any) -> JsonSchemaValue:
        made = super().float_schema(schema)
        if getattr(self._config, "ser_json_inf_nan", None) == "strings":
            return {"anyOf": [made, {"enum": ["Infinity", "-Infinity", "NaN", None]}]}
        return made

    def timedelta_schema(self, schema: Any) -> JsonSchemaValue:
        return _loosely(super().timedelta_schema(schema))

    def decimal_schema(self, schema: Any) -> JsonSchemaValue:
        return _loosely(super().decimal_schema(schema))

    def enum_schema(self, schema: Any) -> JsonSchemaValue:
        made = super().enum_schema(schema)
        return _loosely(made, "enum") if issubclass(schema["cls"], enum.Flag) else made

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        self._models += 1
        made = super().model_schema(schema)
        self._models -= 1
        is_closed = made.get("additionalProperties") is False
        return _loosely(made, "additionalProperties") if is_closed else made

    def dataclass_schema(self, schema: Any) -> JsonSchemaValue:
        # Whether the fields use aliases depends on the containing model.
        made = super().dataclass_schema(schema)
        if set(made.get("properties", ())) - {f.name for f in dataclasses.fields(schema["cls"])}:
            raise ValueError("its fields have more than one name")
        return made


def _loosely(schema: JsonSchemaValue, *dropped: str) -> JsonSchemaValue:
    keys = dropped or ("pattern",)
    return {key: value for key, value in schema.items() if key not in keys}


def _pythonic(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("type") in ("integer", "number"):
        return {**schema, "type": [schema["type"], "boolean"]}
    return schema


def _annotated(adapter: "pydantic.TypeAdapter[Any]", *, by_alias: bool) -> dict[str, Any]:
    """The schema of an annotation."""
    made = adapter.json_schema(by_alias=by_alias, mode="serialization", schema_generator=_AsSent)
    return typing.cast(dict[str, Any], without(made, ("title", *_TOO_STRICT)))


def _is_content(hint: Any) -> bool:
    """Whether any part of an annotation is an MCP content type."""
    if isinstance(hint, type):
        return hint.__module__.partition(".")[0] in _CONTENT_PACKAGES
    return any(_is_content(part) for part in typing.get_args(hint))

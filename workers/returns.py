"""What a tool's results look like: the schema that its annotation or declaration gives them."""

import dataclasses
import enum
import typing
from typing import Any

import msgspec
import pydantic
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, JsonSchemaWarningKind

from toolpool.contract.content import blocks_of
from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.contract.schema.problem import Problem
from toolpool.contract.schema.validator import SchemaValidator
from toolpool.workers.signature import without_titles

_UNSAID = (None, type(None), Any, object, typing.NoReturn, typing.Never)
_CONTENT_PACKAGES = frozenset({"mcp", "mcp_types", "fastmcp"})
"""Their types are what a model is shown, not data."""
_SAYS_NOTHING = frozenset({"$defs", "description"})


class Returns:
    """Holds results to `schema`.

    With `is_annotation` it describes what the function returns, otherwise the data in it. Raises
    `ToolDeclarationInvalid` when the schema does not compile.
    """

    def __init__(self, schema: dict[str, Any], *, is_annotation: bool) -> None:
        self.schema = schema
        self.is_annotation = is_annotation
        try:
            self._validator = SchemaValidator(schema)
        except ToolDeclarationInvalid as error:
            reason = str(error).replace("input_schema", "output_schema")
            raise ToolDeclarationInvalid(reason) from None

    def problems(self, data: Any) -> tuple[Problem, ...]:
        """What is wrong with a result; none holds a part of it. `data` is plain JSON."""
        if not self.is_annotation:
            if isinstance(data, dict) and isinstance(data.get("content"), list):
                data = data.get("structuredContent", data)
            if blocks_of(data) is not None:
                return (Problem(("structuredContent",), "required"),)
        found = self._validator.problems(data)
        return tuple(
            # A hint is for who can send something else, and may be a part of the result.
            msgspec.structs.replace(problem, closest=None, is_optional=False)
            for problem in found
            if problem.kind != "tooDeep"  # too much to look at is not wrong
        )


def returns_of(hint: Any, given: Any, where: str) -> Returns | None:
    """What a tool's results are held to: a `given` schema, else its return annotation.

    None where `given` is False, and where the annotation says nothing that a schema could. Raises
    `ToolDeclarationInvalid` for a `given` schema that cannot be used.
    """
    if given is False:
        return None
    if given is None:
        schema = _annotated(hint)
        try:
            return None if schema is None else Returns(schema, is_annotation=True)
        except ToolDeclarationInvalid:
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
    """What results are as JSON, without what they need not keep to.

    A date without a time zone is none by RFC 3339, a decimal may have an exponent, flags may be
    several at once, and an object of a derived class has more fields.
    """

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        """Nobody has to be told: what cannot be said is left out."""

    def datetime_schema(self, schema: Any) -> JsonSchemaValue:
        return _loosely(super().datetime_schema(schema))

    def time_schema(self, schema: Any) -> JsonSchemaValue:
        return _loosely(super().time_schema(schema))

    def timedelta_schema(self, schema: Any) -> JsonSchemaValue:
        return _loosely(super().timedelta_schema(schema))

    def decimal_schema(self, schema: Any) -> JsonSchemaValue:
        return _loosely(super().decimal_schema(schema))

    def enum_schema(self, schema: Any) -> JsonSchemaValue:
        made = super().enum_schema(schema)
        return _loosely(made, "enum") if issubclass(schema["cls"], enum.Flag) else made

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        made = super().model_schema(schema)
        is_closed = made.get("additionalProperties") is False
        return _loosely(made, "additionalProperties") if is_closed else made

    def dataclass_schema(self, schema: Any) -> JsonSchemaValue:
        # Whether its fields go by their aliases depends on what the dataclass stands in.
        made = super().dataclass_schema(schema)
        if set(made.get("properties", ())) - {f.name for f in dataclasses.fields(schema["cls"])}:
            raise ValueError("its fields have more than one name")
        return made


def _loosely(schema: JsonSchemaValue, *dropped: str) -> JsonSchemaValue:
    keys = dropped or ("format", "pattern")
    return {key: value for key, value in schema.items() if key not in keys}


def _annotated(hint: Any) -> dict[str, Any] | None:
    """The schema of what an annotation names; None where it has none."""
    if any(hint is nothing for nothing in _UNSAID) or _is_content(hint):
        return None
    try:
        adapter: Any = pydantic.TypeAdapter(hint)
        schema = adapter.json_schema(mode="serialization", schema_generator=_AsSent)
    except Exception:  # noqa: BLE001 - an annotation is anybody's code, and may be anything
        return None
    schema = typing.cast(dict[str, Any], without_titles(schema))
    return None if _SAYS_NOTHING.issuperset(schema) else schema


def _is_content(hint: Any) -> bool:
    """Whether any part of an annotation is a type of MCP content."""
    if isinstance(hint, type):
        return hint.__module__.partition(".")[0] in _CONTENT_PACKAGES
    return any(_is_content(part) for part in typing.get_args(hint))

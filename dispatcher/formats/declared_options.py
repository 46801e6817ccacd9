"""The provider options in a tool's declaration, beyond its name and schema."""

import re
from typing import Any

import msgspec

from toolpool.contract.schema.dialect import plain
from toolpool.contract.schema.references import resolve
from toolpool.contract.schema.strict import Form, NotStrict, strict_schema
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.formats.result_text import schema_of
from toolpool.dispatcher.formats.tool_names import alias


def options_of(spec: ToolSpec, *options: str) -> dict[str, Any]:
    """The `options` that the tool declares, by name, as plain JSON."""
    values = {name: getattr(spec, name) for name in options}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value is not msgspec.UNSET
    }


def callers_of(spec: ToolSpec, *known: str) -> dict[str, list[str]]:
    """`allowed_callers`, limited to those with a prefix that the provider knows."""
    declared = () if spec.allowed_callers is msgspec.UNSET else spec.allowed_callers
    callers = [caller for caller in declared if caller.startswith(known)]
    return {"allowed_callers": callers} if callers else {}


def strict_of(spec: ToolSpec, form: Form) -> dict[str, Any] | None:
    """The input schema in a provider's strict form; None if the tool is not strict there."""
    if spec.strict is not True or spec.input_schema is None:
        return None
    try:
        return strict_schema(spec.input_schema, form)
    except NotStrict:
        return None


def flat_functions(specs: list[ToolSpec], taken: re.Pattern[str]) -> list[dict[str, Any]]:
    """Functions with all fields on one level, as the newer APIs require."""
    return [
        {
            "type": "function",
            "name": alias(spec.name, taken),
            "description": spec.description,
            "parameters": schema_of(spec.input_schema),
        }
        for spec in specs
    ]


def text_format_of(spec: ToolSpec) -> dict[str, Any] | None:
    """The grammar of a tool's free text, for tools that declare one."""
    return None if spec.text_format is msgspec.UNSET else dict(spec.text_format)


def output_of(spec: ToolSpec) -> dict[str, Any] | None:
    """The output schema, for tools that declare one."""
    return None if spec.output_schema is msgspec.UNSET else plain(spec.output_schema)


def output_object_of(spec: ToolSpec) -> dict[str, Any] | None:
    """The output schema, if its root says that every result is an object."""
    schema = output_of(spec)
    root = resolve(schema, schema) if schema is not None else None
    if schema is None or not isinstance(root, dict) or root.get("type") != "object":
        return None
    return {**root, **{key: value for key, value in schema.items() if key != "$ref"}}

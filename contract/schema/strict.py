"""Converts schemas to the restricted form that providers need for strict tools.

Every object is closed and names its fields. Limits that the form cannot express move to the
description; structures that it cannot express are refused. Calls are still validated against the
tool's own schema.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolpool.contract import encoding
from toolpool.contract.schema.dialect import plain
from toolpool.contract.schema.json_values import json_type, list_of
from toolpool.contract.schema.references import at_pointer

_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)
_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_BOUNDS = _NUMBERS | {
    "format", "pattern", "minLength", "maxLength", "minItems", "maxItems", "uniqueItems",
    "minProperties", "maxProperties",
}  # fmt: skip
_STRUCTURE = frozenset(
    {"type", "enum", "const", "description", "properties", "required", "additionalProperties",
     "items", "anyOf", "oneOf", "allOf", "$ref", "$defs", "definitions", "default"}
)  # fmt: skip
_UNSAID = frozenset(
    {"title", "examples", "$schema", "$id", "$comment", "deprecated", "readOnly", "writeOnly",
     "discriminator"}
)  # fmt: skip
_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})


class NotStrict(ValueError):
    """Raised when a schema has no strict form; the message names the part and the reason."""


@dataclass(frozen=True, slots=True)
class Form:
    """A provider's strict form: the limits it supports, and its rules for fields."""

    bounds: frozenset[str]
    all_required: bool
    """Every field must be sent: an optional one needs a default, or has to allow null."""
    recursive: bool


OPENAI = Form(_NUMBERS | {"format", "pattern", "minItems", "maxItems"}, True, True)
ANTHROPIC = Form(frozenset({"format"}), False, False)
"""Also the form of Bedrock."""


def strict_schema(schema: dict[str, Any], form: Form) -> dict[str, Any]:
    """The strict form of a tool's `schema`. Raises `NotStrict` if it has none."""
    schema = plain(schema)
    if schema.get("type") != "object":
        raise NotStrict("its root is not plainly an object")
    return _Narrowing(schema, form).schema()


class _Narrowing:
    """Converts one schema to a strict form."""

    def __init__(self, schema: dict[str, Any], form: Form) -> None:
        self._root = schema
        self._form = form
        self._definitions: dict[str, Any] = {}
        self._under_way: list[str] = []
        self._wanted: set[str] = set()
        """References from within their own targets."""

    def schema(self) -> dict[str, Any]:
        made = self._node(self._root, ())
        for reference in self._wanted:
            self._reference({"$ref": reference}, ())
        return {**made, "$defs": self._definitions} if self._definitions else made

    def _node(self, node: Any, path: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(node, dict):
            raise _not_strict(path, "takes any value, or none")
        strange = [key for key in node if key not in _STRUCTURE | _UNSAID | _BOUNDS]
        if strange:
            raise _not_strict(path, f"has {strange[0]!r}, which strict schemas cannot say")
        if "$ref" in node:
            return self._reference(node, path)
        parts = node.get("allOf")
        if parts is not None:
            if not isinstance(parts, list) or len(parts) != 1 or not isinstance(parts[0], dict):
                raise _not_strict(path, "has 'allOf', which strict schemas cannot say")
            rest = {key: value for key, value in node.items() if key != "allOf"}
            return self._node({**parts[0], **rest}, path)
        made = self._described(node)
        branches = node.get("anyOf", node.get("oneOf"))
        if branches is not None:
            if not path:
                raise _not_strict(path, "offers alternatives for all arguments at once")
            made["anyOf"] = [self._node(branch, (*path, "*")) for branch in list_of(branches)]
            return made
        return made | self._typed(node, path)

    def _typed(self, node: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        made: dict[str, Any] = {key: node[key] for key in ("enum", "const") if key in node}
        kinds = _kinds(node)
        if not kinds or not _TYPES.issuperset(kinds):
            raise _not_strict(path, "takes values of any type")
        made["type"] = kinds[0] if len(kinds) == 1 else kinds
        made |= {key: node[key] for key in node if self._keeps(key, node[key])}
        if "object" in kinds:
            made |= self._object(node, path)
        if "array" in kinds:
            if not isinstance(node.get("items"), dict):
                raise _not_strict(path, "takes items of any kind")
            made["items"] = self._node(node["items"], (*path, "*"))
        return made

    def _object(self, node: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        properties = node.get("properties", {})
        is_open = node.get("additionalProperties", False) is not False
        is_unsaid = bool(path) and not properties and "additionalProperties" not in node
        if is_open or is_unsaid or not isinstance(properties, dict):
            raise _not_strict(path, "takes fields that it does not name")
        required = list_of(node.get("required", []))
        missing = [name for name in required if name not in properties]
        if missing:
            raise _not_strict(path, f"requires {missing[0]!r}, which it does not describe")
        for name, inner in properties.items():
            if self._form.all_required and name not in required and not self._is_answered(inner):
                reason = "is optional, but has no default and does not accept null"
                raise _not_strict((*path, name), reason)
        return {
            "properties": {
                name: self._node(inner, (*path, name)) for name, inner in properties.items()
            },
            "required": list(properties) if self._form.all_required else list(required),
            "additionalProperties": False,
        }

    def _is_answered(self, node: Any) -> bool:
        """Whether a value can be sent for a field instead of omitting it."""
        if not isinstance(node, dict):
            return False
        if node.get("default") is not None:
            return True
        branches = node.get("anyOf", node.get("oneOf", []))
        return "null" in _kinds(node) or any(
            isinstance(branch, dict) and "null" in _kinds(branch) for branch in list_of(branches)
        )

    def _reference(self, node: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        """A reference alone; keywords beside it are merged with its target."""
        reference = str(node["$ref"])
        target = at_pointer(self._root, reference[1:])
        if not reference.startswith(("#/$defs/", "#/definitions/")) or target is None:
            raise _not_strict(path, f"refers to {reference[:60]!r}, which is not a definition")
        step = reference.rpartition("/")[2]
        name, itself = step.replace("~1", "/").replace("~0", "~"), {"$ref": f"#/$defs/{step}"}
        if reference in self._under_way:
            if not self._form.recursive:
                raise _not_strict(path, "refers to itself")
            self._wanted.add(reference)
            return itself
        rest = {key: value for key, value in node.items() if key != "$ref" and key not in _UNSAID}
        self._under_way.append(reference)
        made = itself
        if rest and isinstance(target, dict):
            made = self._node({**target, **rest}, path)
        elif name not in self._definitions:
            self._definitions[name] = self._node(target, path)
        self._under_way.pop()
        return made

    def _keeps(self, key: str, value: Any) -> bool:
        if key == "format":
            return value in _FORMATS and key in self._form.bounds
        return key in self._form.bounds

    def _described(self, node: dict[str, Any]) -> dict[str, Any]:
        """The description, with the limits and the default that the form cannot express."""
        told = {
            key: value
            for key, value in node.items()
            if (key in _BOUNDS and not self._keeps(key, value))
            or (key == "default" and value is not None)
        }
        text = str(node.get("description", ""))
        if told:
            said = ", ".join(f"{key}: {encoding.encode(told[key]).decode()}" for key in told)
            text = f"{text} ({said})".strip()
        return {"description": text} if text else {}


def _not_strict(path: tuple[str, ...], reason: str) -> NotStrict:
    where = ".".join(path)
    return NotStrict(f"{where} {reason}" if where else f"it {reason}")


def _kinds(node: Mapping[str, Any]) -> list[str]:
    """The types a schema allows, by `type` or by its fixed values."""
    kind = node.get("type")
    if isinstance(kind, str):
        return [kind]
    if isinstance(kind, list):
        return [str(each) for each in kind]
    if "const" in node:
        return [json_type(node["const"])]
    if "properties" in node:
        return ["object"]
    return list(dict.fromkeys(json_type(value) for value in list_of(node.get("enum", []))))

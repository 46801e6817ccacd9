"""Converts schemas in Gemini's dialect to JSON Schema.

Gemini writes types in capitals and uses `nullable`; both are common in catalogs that were made for
it. Any other schema is left unchanged.
"""

from typing import Any

_TYPES = frozenset({"STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL"})
_SCHEMA_MAPS = ("properties", "$defs", "definitions", "patternProperties")
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties", "not")


def plain(schema: dict[str, Any]) -> dict[str, Any]:
    """`schema`, converted if its root type is one of Gemini's."""
    return _rewritten(schema) if _is_capital(schema) else schema


def _is_capital(schema: Any) -> bool:
    kind = schema.get("type") if isinstance(schema, dict) else None
    return isinstance(kind, str) and kind in _TYPES


def _rewritten(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    made = dict(node)
    if _is_capital(node):
        made["type"] = str(node["type"]).lower()
        if made.pop("nullable", False) is True:
            made["type"] = [made["type"], "null"]
            if isinstance(made.get("enum"), list) and None not in made["enum"]:
                made["enum"] = [*made["enum"], None]
    for key in _SCHEMA_MAPS:
        if isinstance(made.get(key), dict):
            made[key] = {name: _rewritten(inner) for name, inner in made[key].items()}
    for key in _SCHEMA_LISTS:
        if isinstance(made.get(key), list):
            made[key] = [_rewritten(inner) for inner in made[key]]
    for key in _SCHEMAS:
        if key in made:
            made[key] = _rewritten(made[key])
    return made

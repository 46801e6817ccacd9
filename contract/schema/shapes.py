"""Schemas and values in few words: types, one-line shapes, the name that was probably meant."""

import difflib
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from toolpool.contract import encoding

_SHAPE_CHARACTERS = 80
_FIELDS_SHOWN = 16
_LONGEST_COMPARED = 64
_COMPARED_AT_MOST = 1_000
_LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"')


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
    wanted = _folded(name)
    if not 0 < len(wanted) <= _LONGEST_COMPARED:
        return None
    folded = {_folded(candidate): candidate for candidate in candidates[:_COMPARED_AT_MOST]}
    if wanted in folded:
        return folded[wanted]
    near = difflib.get_close_matches(wanted, folded, n=1, cutoff=0.6)
    return folded[near[0]] if near else None


def _folded(name: str) -> str:
    return name.casefold().replace("-", "_").strip("_")


def shape(schema: Any, root: dict[str, Any], depth: int = 2) -> str | None:
    """One line for an object or array: `{start: integer, end: integer}`, `array of string`."""
    schema = resolve(schema, root)
    if not isinstance(schema, dict):
        return None
    properties = schema.get("properties")
    if isinstance(properties, dict) and properties and depth:
        fields = ", ".join(
            f"{name}: {shape(inner, root, depth - 1) or type_of(inner, root) or 'any'}"
            for name, inner in islice(properties.items(), _FIELDS_SHOWN)
        )
        more = ", …" if len(properties) > _FIELDS_SHOWN else ""
        return shortened("{" + fields + more + "}", _SHAPE_CHARACTERS)
    if schema.get("type") == "array" and isinstance(schema.get("items"), dict):
        inner = shape(schema["items"], root, depth - 1) if depth else None
        return f"array of {inner or type_of(schema['items'], root) or 'any'}"
    return None


def shortened(text: str, characters: int) -> str:
    """`text`, at most this long: of a shape whole fields are left out, and its brackets closed."""
    if len(text) <= characters:
        return text
    if text.startswith(("{", "array of ")):
        for between in reversed(list(re.finditer(", ", text[:characters]))):
            plain = _LITERAL.sub("", text[: between.end()])
            closing = "}" * (plain.count("{") - plain.count("}"))
            if '"' not in plain and between.end() + 1 + len(closing) <= characters:
                return f"{text[: between.end()]}…{closing}"
    return text[: characters - 1] + "…"


def resolve(schema: Any, root: dict[str, Any]) -> Any:
    """`schema` with its own local reference followed; as it is where there is none."""
    for _ in range(8):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#"):
            return schema
        target = at_pointer(root, reference[1:])
        if target is None:
            return schema
        schema = target
    return schema


def at_pointer(root: Any, pointer: str) -> Any:
    """What a JSON pointer (RFC 6901, without `#`) leads to; None where it leads nowhere."""
    node = root
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and step in node:
            node = node[step]
        elif isinstance(node, list) and step.isdecimal() and int(step) < len(node):
            node = node[int(step)]
        else:
            return None
    return node


def type_of(schema: Any, root: dict[str, Any], depth: int = 3) -> str | None:
    """The type a schema asks for, in words; None where it does not say."""
    schema = resolve(schema, root)
    if not isinstance(schema, dict):
        return None
    kind = schema.get("type")
    if isinstance(kind, list):
        return " or ".join(map(str, kind))
    if kind is not None:
        return str(kind)
    if isinstance(schema.get("enum"), list):
        return "one of " + ", ".join(literal(option) for option in schema["enum"][:5])
    if "const" in schema:
        return literal(schema["const"])
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list):
        words = [type_of(option, root, depth - 1) for option in options[:4]] if depth else []
        return " or ".join(dict.fromkeys(word for word in words if word)) or None
    return "object" if "properties" in schema else None


def literal(value: Any) -> str:
    """A value of the schema's own as JSON."""
    return encoding.encode(value).decode()


def types_of(values: Iterable[Any]) -> str:
    """The types of these values, joined by `|`."""
    return "|".join(dict.fromkeys(json_type(value) for value in values))

"""The shapes of single types: texts, numbers, lists, objects and listed values."""

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from toolpool.contract.schema.json_values import json_type, list_of, literal, printable

if TYPE_CHECKING:
    from toolpool.contract.schema.shape_writer import Writer

MORE_RULES = " (more rules)"
KINDS = ("string", "integer", "number", "boolean", "array", "object", "null")
_BARE_NAME = re.compile(r"[^\W\d][\w$.@-]*")
_BARE_FORMAT = re.compile(r"[A-Za-z][\w-]*")
_SLASH = re.compile(r"((?:^|[^\\])(?:\\\\)*)/")
_BY_KIND = {
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems",
              "contains", "unevaluatedItems"),
    "object": ("properties", "required", "additionalProperties", "patternProperties",
               "propertyNames", "minProperties", "maxProperties", "dependentRequired",
               "dependencies", "unevaluatedProperties"),
}  # fmt: skip
COMBINED = frozenset({"$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "if",
                      "dependentSchemas"})  # fmt: skip
"""Keywords that apply other schemas to the same value."""
_RESERVED = frozenset({"chars", "unique", "multiple"})
_DRAFTS = ("2020-12", "2019-09", "draft-07")
_NOT_ALONE = frozenset({"unevaluatedProperties", "unevaluatedItems", "items", "additionalItems",
                        "prefixItems", "dependencies", "dependentRequired", "dependentSchemas",
                        "contains", "minContains", "maxContains"})  # fmt: skip
"""Keywords that depend on others, or that differ between drafts."""

Kinds = tuple[str, ...]
Said = tuple[str, bool]


class Fields(NamedTuple):
    """The fields of an object that are omitted, and those that are not repeated."""

    hidden: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()


def kinds_of(node: Any) -> Kinds | None:
    """The types that a schema itself names; None if it names none."""
    kind = node.get("type") if isinstance(node, dict) else None
    if isinstance(kind, str):
        return (kind,)
    return tuple(k for k in KINDS if k in kind) if isinstance(kind, list) else None


def own(
    writer: "Writer",
    node: dict[str, Any],
    kinds: Kinds | None,
    fields: Fields | None,
    *,
    is_typed: bool,
) -> Said | None:
    """The shape of a schema's own keywords; None if they require nothing.

    If `is_typed`, other parts of the schema already name the type, and it is not repeated.
    """
    listed = _listed(node, kinds)
    if listed is not None:
        return _enumerated(writer, node, listed)
    asked = [kind for kind, keywords in _BY_KIND.items() if any(key in node for key in keywords)]
    if kinds is None:
        if not asked:
            return None
        writer.allows_less = True
        kinds = tuple(asked)
    elif is_typed and not any(plain_kind(kind) in asked for kind in kinds):
        return None
    said = [writer.typed(node, kind, fields) for kind in _without_doubles(kinds)]
    return " | ".join(said) or writer.spend("nothing"), len(said) != 1


def plain_kind(kind: str) -> str:
    """The base type whose keywords apply to a type."""
    return "number" if kind == "integer" else kind


def _without_doubles(kinds: Kinds) -> list[str]:
    return [kind for kind in kinds if kind != "integer" or "number" not in kinds]


def listed_values(node: dict[str, Any]) -> list[Any] | None:
    """The values that a schema's own `const` or `enum` lists; None if it has neither."""
    if "const" in node:
        return [node["const"]]
    return node["enum"] if isinstance(node.get("enum"), list) else None


def _listed(node: dict[str, Any], kinds: Kinds | None) -> list[Any] | None:
    """The listed values of a wanted type."""
    listed = listed_values(node)
    if listed is None or kinds is None:
        return listed
    return [value for value in listed if is_of(value, kinds)]


def is_of(value: Any, kinds: Kinds) -> bool:
    """Whether a value is of one of these types."""
    kind = json_type(value)
    if kind == "integer":
        return "integer" in kinds or "number" in kinds
    if kind == "number":
        return "number" in kinds or ("integer" in kinds and float(value).is_integer())
    return kind in kinds


def _enumerated(writer: "Writer", node: dict[str, Any], values: list[Any]) -> Said:
    texts: list[str] = []
    for value in values:
        text = _value(value)
        if writer.detail.cut and len(text) + 4 > writer.room:
            texts.append(writer.omitted())
            break
        texts.append(writer.spend(text))
    said = "|".join(dict.fromkeys(texts)) or writer.spend("nothing")
    kinds = {plain_kind(json_type(value)) for value in values}
    if any(key in node for kind in kinds for key in _BY_KIND.get(kind, ())):
        rules = {key: node[key] for kind in kinds for key in _BY_KIND.get(kind, ()) if key in node}
        return writer.with_more_rules(f"({said})" if len(texts) > 1 else said, rules), False
    return said, len(texts) > 1


def _value(value: Any) -> str:
    """A literal value as a shape."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name_of(k)}: {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        inner = ", ".join(map(_value, value)) or "any"
        return f"[{inner}]" if len(value) > 1 else f"[{inner}] {len(value)}..{len(value)}"
    return literal(value)


def name_of(name: str) -> str:
    """A field's name, quoted if necessary."""
    return name if _BARE_NAME.fullmatch(name) else printable(json.dumps(name, ensure_ascii=False))


def string(writer: "Writer", node: dict[str, Any]) -> str:
    """`string`, with its format, pattern and length."""
    text, is_said = "string", True
    form = node.get("format")
    if isinstance(form, str):
        if _BARE_FORMAT.fullmatch(form) and form not in _RESERVED:
            text += f" {form}"
        else:
            is_said = False
    if isinstance(node.get("pattern"), str):
        text += f" {pattern(node['pattern'])}"
    length = between(node.get("minLength"), node.get("maxLength"))
    text += f"{length} chars" if length else ""
    return text if is_said else writer.with_more_rules(text, {"format": form})


def pattern(expression: str) -> str:
    """A regular expression between slashes."""
    return "/" + printable(_SLASH.sub(r"\1\\/", _SLASH.sub(r"\1\\/", expression))) + "/"


def between(low: Any, high: Any) -> str:
    """A count such as ` 1..20`, open-ended without a limit; empty without limits."""
    low = None if low == 0 else low
    if low is None and high is None:
        return ""
    return f" {'' if low is None else literal(low)}..{'' if high is None else literal(high)}"


def limits(node: dict[str, Any]) -> str:
    """The limits after `integer` or `number`."""
    low, high = node.get("minimum"), node.get("maximum")
    above, below = node.get("exclusiveMinimum"), node.get("exclusiveMaximum")
    if isinstance(above, bool):  # draft 4
        low, above = (None, low) if above else (low, None)
    if isinstance(below, bool):
        high, below = (None, high) if below else (high, None)
    text = ""
    if low is not None or high is not None:
        text = f" {'' if low is None else literal(low)}..{'' if high is None else literal(high)}"
    text += "" if above is None else f" >{literal(above)}"
    text += "" if below is None else f" <{literal(below)}"
    step = node.get("multipleOf")
    return text + ("" if step is None else f" multiple of {literal(step)}")


def array(writer: "Writer", node: dict[str, Any]) -> str:
    """`[item] 1..20`, or the items by position."""
    prefix, rest = list_of(node.get("prefixItems")), node.get("items", True)
    if isinstance(rest, list):
        prefix, rest = rest, node.get("additionalItems", True)
    is_open = not isinstance(node.get("items"), (dict, bool))
    is_open = is_open and not ("additionalItems" in node and prefix)
    if "unevaluatedItems" in node and is_open and not COMBINED & node.keys():
        rest = node["unevaluatedItems"]
    low, high = node.get("minItems") or 0, node.get("maxItems")
    if not prefix:
        text = "array" if rest is True or rest == {} else f"[{writer.below(rest)}]"
        text = writer.spend(text) if text == "array" else text
        count = between(low, high)
    else:
        items = [writer.below(item) for item in prefix]
        if rest is not False:
            items.append("..." + writer.below(rest))
        elif len(items) == 1:
            items.append("...nothing")
        text = f"[{', '.join(items)}]"
        is_whole = low == len(prefix) and high in (None, low)
        count = "" if is_whole and high is None else f" {low}..{'' if high is None else high}"
    text += count + (" unique" if node.get("uniqueItems") is True else "")
    text += _containing(writer, node)
    unsaid = "unevaluatedItems" in node and ("contains" in node or COMBINED & node.keys())
    return writer.with_more_rules(text) if unsaid else text


def _containing(writer: "Writer", node: dict[str, Any]) -> str:
    """` containing 2..4 (item)`: the number of items that must match another schema."""
    if "contains" not in node:
        return ""
    low, high = node.get("minContains", 1), node.get("maxContains")
    if writer.hides_siblings:  # older drafts lack these keywords
        low, high = 1, None
    if low == 0 and high is None:
        return ""
    before = writer.allows_less
    text = writer.below(node["contains"])
    count = "" if low == 1 and high is None else between(low, high)
    said = f" containing{count} ({text})"
    if high is not None and writer.allows_less and not before:
        return writer.with_more_rules(said)  # fewer kinds allow more values
    return said


def mentions(node: Any, fields: Fields | None) -> bool:
    """Whether the omitted fields are named anywhere in it."""
    level = [node] if fields and fields.hidden else []
    for each in level:
        if isinstance(each, str) and fields and each in fields.hidden:
            return True
        if isinstance(each, dict):
            level.extend([*each, *each.values()])
        elif isinstance(each, list):
            level.extend(each)
    return False


def can_be_quoted(rules: Any, root: dict[str, Any]) -> bool:
    """Whether rules mean the same on their own, and in every draft since 7."""
    if not any(draft in str(root.get("$schema", _DRAFTS[0])) for draft in _DRAFTS):
        return False
    level = [rules]
    for node in level:
        if isinstance(node, dict):
            if any(key.startswith("$") for key in node) or not _NOT_ALONE.isdisjoint(node):
                return False
            level.extend(node.values())
        elif isinstance(node, list):
            level.extend(node)
    return True

"""The shape of an object: its fields, required ones first, and whether others are allowed."""

from typing import TYPE_CHECKING, Any

from toolpool.contract.schema.json_values import list_of
from toolpool.contract.schema.shape_types import (
    COMBINED,
    Fields,
    between,
    kinds_of,
    mentions,
    name_of,
    pattern,
)

if TYPE_CHECKING:
    from toolpool.contract.schema.shape_writer import Writer

_TEXT = ("string",)
_OBJECT = ("object",)
_ANNOTATIONS = frozenset({"title", "description", "examples", "default", "$comment", "$schema"})


def written(writer: "Writer", node: dict[str, Any], fields: Fields) -> str:
    """`{name: type, other?: type}`, with `...` if other fields are allowed."""
    properties = _map(node.get("properties"))
    required = [name for name in list_of(node.get("required")) if isinstance(name, str)]
    others = node.get("additionalProperties", True)
    if _counts_all(writer, node):
        others = True if COMBINED & node.keys() else node["unevaluatedProperties"]
    patterns = dict(_map(node.get("patternProperties")))
    keys = ""
    if "propertyNames" in node:
        named = _key_pattern(node["propertyNames"])
        if mentions(node["propertyNames"], fields):
            keys = writer.with_more_rules("")
        elif named is None or (named and (properties or patterns or required)):
            keys = f" keys ({writer.one(node['propertyNames'], _TEXT)})"
        elif named:
            patterns, others = {named: others}, False
    # The shape does not tell whether a pattern allows the field.
    unsaid = bool(patterns) and others is not True and not properties.keys() >= set(required)
    needs = _needs(node, properties, fields.hidden)
    said = _said(writer, node, fields, others if not patterns else True, needs)
    said += [
        f"[key {pattern(writer.spend(key))}]: {writer.below(inner)}"
        for key, inner in patterns.items()
    ]
    text = _closed(writer, node, said, others)
    text += between(node.get("minProperties"), node.get("maxProperties")) + keys
    return writer.with_more_rules(text) if unsaid else text


def others_of(writer: "Writer", node: dict[str, Any]) -> str:
    """` with no other fields`, beyond those that any part of the schema accepts."""
    if not (_counts_all(writer, node) and COMBINED & node.keys()):
        return ""
    others = node["unevaluatedProperties"]
    if others is True or others == {}:
        return ""
    text = " with no other fields"
    if others is not False:
        text = f" with other fields ({writer.below(others)})"
    is_unsaid = not writer.named_only <= _map(node.get("properties")).keys()
    return writer.with_more_rules(text) if is_unsaid else text


def dependent(writer: "Writer", node: dict[str, Any], fields: Fields | None) -> list[str]:
    """`(if ({a: any, ...}) then (…))`: the rules for an object that has a field."""
    said = []
    properties = _map(node.get("properties"))
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        for name, wanted in _map(node.get(keyword)).items():
            if wanted is True or wanted in ([], {}) or _is_a_need(name, wanted, properties):
                continue
            if mentions([name, wanted], fields):
                continue
            inner = {"required": wanted} if isinstance(wanted, list) else wanted
            writer.named_only.add(name)
            text = writer.one(inner, _OBJECT)
            field = writer.spend(f"{{{name_of(name)}: any, ...}}")
            said.append(f"(if ({field}) then ({text}))")
    return said


def _counts_all(writer: "Writer", node: dict[str, Any]) -> bool:
    """Whether the remaining fields are those that no part of the schema accepts."""
    has = "unevaluatedProperties" in node and "additionalProperties" not in node
    return has and not writer.hides_siblings


def _closed(writer: "Writer", node: dict[str, Any], said: list[str], others: Any) -> str:
    if others is True or others == {}:
        takes_all = "additionalProperties" in node or node.get("unevaluatedProperties") in (
            True,
            {},
        )
        if takes_all and writer.counts_others:
            return "{" + ", ".join([*said, writer.spend("[key]: any")]) + "}"
        return "{" + ", ".join([*said, "..."]) + "}" if said else writer.spend("object")
    if others is not False:
        said = [*said, f"[key]: {writer.below(others)}"]
    return "{" + ", ".join(said) + "}"


def _said(
    writer: "Writer", node: dict[str, Any], fields: Fields, others: Any, needs: dict[str, list[str]]
) -> list[str]:
    """The fields in the order of the schema, required ones first.

    If lists are cut, wrong and missing fields come first.
    """
    detail = writer.detail
    properties = _map(node.get("properties"))
    required = dict.fromkeys(n for n in list_of(node.get("required")) if isinstance(n, str))
    names = [n for n in properties if n in required]
    names += [n for n in required if n not in properties]
    names += [n for n in properties if n not in required]
    names = [n for n in names if n not in fields.hidden and n not in fields.known]
    wrong = {n for n in names if id(properties.get(n)) in writer.wrong}
    right = writer.right.get(id(node), frozenset()) - wrong
    optional = set(names) - required.keys() - wrong
    writer.met.right |= not right.isdisjoint(names)
    writer.met.optional |= bool(optional)
    if detail.cut:
        names.sort(key=lambda n: n not in wrong)
    left_out = right if detail.right == "none" else frozenset()
    is_short = bool(fields.known & properties.keys())
    said = ["…"] if is_short else []
    if not left_out.isdisjoint(names) and not is_short:
        said.append(writer.omitted())
    for name in names:
        if name in left_out or (name in optional and detail.optional == "none"):
            continue
        if detail.cut and len(name) + 8 > writer.room:
            return [*said, writer.omitted()]
        inner = properties.get(name, others)
        if name not in properties and inner is True:
            writer.named_only.add(name)
        if name in right and detail.right == "named":
            text = writer.omitted()
        else:
            text = _optional(writer, inner) if name in optional else writer.below(inner)
        mark = "" if name in required else "?"
        said.append(_field(writer, name, mark, text, needs.get(name)))
    if detail.optional == "none" and optional - left_out:
        said.append(writer.omitted())
    return said


def _optional(writer: "Writer", node: Any) -> str:
    if writer.detail.optional == "shown":
        return writer.below(node)
    kinds = kinds_of(node)
    if kinds and len(kinds) == 1 and kinds[0] not in ("array", "object"):
        return writer.below(node)
    return writer.omitted()


def _field(writer: "Writer", name: str, mark: str, inner: str, needs: list[str] | None) -> str:
    rest = f" needs {' and '.join(map(name_of, needs))}" if needs else ""
    return f"{writer.spend(name_of(name))}{mark}: {inner}{rest}"


def _needs(
    node: dict[str, Any], properties: dict[str, Any], hidden: frozenset[str]
) -> dict[str, list[str]]:
    """The fields that each field requires."""
    found: dict[str, list[str]] = {}
    for keyword in ("dependentRequired", "dependencies"):
        for name, others in _map(node.get(keyword)).items():
            if others and _is_a_need(name, others, properties):
                needed = [other for other in map(str, others) if other not in hidden]
                found[name] = [*found.get(name, []), *needed]
    return found


def _is_a_need(name: str, wanted: Any, properties: dict[str, Any]) -> bool:
    """Whether the requirement can be written beside the field itself."""
    return isinstance(wanted, list) and name in properties


def _key_pattern(names: Any) -> str | None:
    """The pattern of an object's keys; empty if any key is allowed, None if it has other rules."""
    if names is True or not isinstance(names, dict):
        return "" if names is True else None
    rules = {key: value for key, value in names.items() if key not in _ANNOTATIONS}
    if rules.pop("type", "string") != "string":
        return None
    if not rules:
        return ""
    only = rules.get("pattern")
    return only if set(rules) == {"pattern"} and isinstance(only, str) and only else None


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

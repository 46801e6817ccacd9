"""Writes one shape: a schema and all that it contains, as one line.

`Shapes` in `shape.py` chooses how much of it is written.
"""

import re
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from toolpool.contract.schema.discriminators import are_disjoint
from toolpool.contract.schema.focus import Focus
from toolpool.contract.schema.json_values import (
    COMBINED,
    Kinds,
    is_of,
    json_type,
    kinds_of,
    list_of,
    listed_values,
    literal,
    plain_kind,
)
from toolpool.contract.schema.references import UNIONS, referred, resolve
from toolpool.contract.schema.shape_text import (
    between,
    limits,
    name_of,
    pattern,
    value_text,
)

MORE_RULES = " (more rules)"
_SHORT_ENOUGH_TO_REPEAT = 24
_MARK = re.compile("\0(\\d+)\0")
_NO_IDENTIFIER = re.compile(r"\W+")
_FOR_BRACKETS = 16
_ROOM_FOR_A_BRANCH = 60
_STEPS_AT_LEAST = 200
_STEPS_A_CHARACTER = 1
"""Schemas visited per character of space. A written schema takes several characters; one that only
refers to others takes none."""
_NO_FOCUS = Focus()
_LEFT_OUT: dict[str, Any] = {}
_CONDITION = frozenset({"if", "then", "else"})
_UNSAID = frozenset({"$dynamicRef", "$recursiveRef"})
_BARE_FORMAT = re.compile(r"[A-Za-z][\w-]*")
_BY_KIND = {
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems",
              "contains", "unevaluatedItems"),
    "object": ("properties", "required", "additionalProperties", "patternProperties",
               "propertyNames", "minProperties", "maxProperties", "dependentRequired",
               "dependencies", "unevaluatedProperties"),
}  # fmt: skip
_RESERVED = frozenset({"chars", "unique", "multiple"})
_DRAFTS = ("2020-12", "2019-09", "draft-07")
_NOT_ALONE = frozenset({"unevaluatedProperties", "unevaluatedItems", "items", "additionalItems",
                        "prefixItems", "dependencies", "dependentRequired", "dependentSchemas",
                        "contains", "minContains", "maxContains"})  # fmt: skip
"""Keywords that depend on others, or that differ between drafts."""
_TEXT = ("string",)
_OBJECT = ("object",)
_ANNOTATIONS = frozenset({"title", "description", "examples", "default", "$comment", "$schema"})

Said = tuple[str, bool]
"""A shape, and whether it is several alternatives."""


class TooLong(Exception):
    """Raised as soon as a shape exceeds its length."""


@dataclass(frozen=True, slots=True)
class Detail:
    """How much of correct fields, optional fields and nested levels a shape shows.

    `cut` shortens lists; `spare` is the space that a cut list leaves for the text after it.
    """

    right: Literal["shown", "named", "none"] = "shown"
    optional: Literal["shown", "named", "none"] = "shown"
    levels: int = 1_000
    cut: bool = False
    spare: int = 0


@dataclass(slots=True)
class Shortenable:
    """What a writer found that less detail would have omitted or cut."""

    right: bool = False
    optional: bool = False
    deepest: int = 0

    def by(self, detail: Detail, tried: Detail) -> bool:
        """Whether `detail` can be shorter than the shape that was `tried` and too long."""
        return (
            (self.right and detail.right != tried.right)
            or (self.optional and detail.optional != tried.optional)
            or self.deepest > detail.levels
            or detail.cut
        )


class Fields(NamedTuple):
    """The fields of an object that are omitted, and those that are not repeated."""

    hidden: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Definition:
    """The target of a reference. A placeholder stands for it until the line is complete."""

    number: int
    name: str
    text: str = ""
    joins: bool = False
    uses: int = 0
    is_recursive: bool = False

    @property
    def mark(self) -> str:
        """The placeholder."""
        return f"\0{self.number}\0"

    @property
    def has_name(self) -> bool:
        """Whether it is defined once after `where` rather than inline."""
        is_long = len(self.text) > _SHORT_ENOUGH_TO_REPEAT
        return self.uses > 0 and (self.is_recursive or (self.uses > 1 and is_long))


class Writer:
    """Writes one shape. Call `line` once; then the attributes tell what it omitted."""

    def __init__(
        self,
        root: dict[str, Any],
        at_most: int,
        detail: Detail,
        focus: Focus = _NO_FOCUS,
        *,
        hides_siblings: bool,
        counts_others: bool,
    ) -> None:
        self.detail = detail
        self._wrong = focus.wrong
        self._right = dict(focus.right)
        self.allows_more = False
        self.allows_less = False
        self.left_out = False
        self.shortenable = Shortenable()
        self._named_only: set[str] = set()
        """Required fields whose schemas say nothing else."""
        self._hides_siblings = hides_siblings
        self._counts_others = counts_others
        self._root = root
        self._at_most = at_most
        self._spent = 0
        self._certain = 0
        self._steps = max(_STEPS_AT_LEAST, at_most * _STEPS_A_CHARACTER)
        self._names: dict[str, int] = {}
        self._definitions: dict[int, _Definition] = {}
        self._open: set[int] = set()
        self._level = 0

    def line(self, node: Any, *, hidden: frozenset[str], known: frozenset[str]) -> str:
        """The shape of `node`, with its definitions after `where`. Raises `TooLong`."""
        start = self._definition(node, "")
        self._open.add(id(node))
        text = self._one(node, None, Fields(hidden, known))
        if start.is_recursive:
            start.text, start.uses = text, start.uses + 1
            text = start.mark
        return self._joined(text)

    def _spend(self, text: str) -> str:
        """Count `text` as written and return it. Raises `TooLong` if the line is full."""
        self._spent += len(text) + 2
        self._certain += len(text)
        if self._certain > self._at_most:
            raise TooLong
        return text

    @property
    def _room(self) -> int:
        """The number of characters that are certainly left."""
        return self._at_most - self._spent - _FOR_BRACKETS - self.detail.spare

    def _omitted(self) -> str:
        """The sign for an omission."""
        self.left_out = True
        return self._spend("…")

    def _with_more_rules(self, text: str, rules: dict[str, Any] | None = None) -> str:
        """`text` with the rules that the grammar cannot express, quoted or as a sign."""
        if rules is not None and _can_be_quoted(rules, self._root):
            quoted = literal(rules)
            if not self.detail.cut or len(quoted) < self._room:
                return f"{text} (more rules {self._spend(quoted)})"
            self.left_out = True
        self.allows_more = True
        return text if text.endswith(MORE_RULES) else text + MORE_RULES

    def _below(self, node: Any) -> str:
        """The shape of a nested schema."""
        level = self._level
        if id(node) in self._wrong:
            self._level = 0
        elif level >= self.detail.levels:
            return self._omitted()
        else:
            self._level += 1
            self.shortenable.deepest = max(self.shortenable.deepest, self._level)
        text = self._one(node)
        self._level = level
        return text

    def _typed(self, node: dict[str, Any], kind: str, fields: Fields | None) -> str:
        """The shape of a schema for values of one type."""
        if kind == "string":
            return self._spend(self._string(node))
        if kind in ("integer", "number"):
            return self._spend(kind + limits(node))
        if kind == "array":
            return self._array(node)
        if kind == "object":
            return self._object(node, fields or Fields())
        return self._spend(kind)

    def _one(self, node: Any, within: Kinds | None = None, fields: Fields | None = None) -> str:
        """The shape of a schema; `within` are the types that the surrounding schema leaves."""
        return self._either(node, within, fields)[0]

    def _either(
        self, node: Any, within: Kinds | None, fields: Fields | None = None
    ) -> tuple[str, bool]:
        """The shape, and whether it is several alternatives, which need parentheses beside `&`."""
        self._steps -= 1
        if self._steps < 0:
            raise TooLong
        if not isinstance(node, dict):
            return self._spend("nothing" if node is False else "any"), False
        if isinstance(node.get("$ref"), str) and (self._hides_siblings or len(node) == 1):
            return self._referred(node, within, fields)
        kinds = kinds_of(node) or within or self._implied(node)
        parts = self._parts(node, kinds, fields)
        others = self._other_fields(node)
        if not parts:
            return self._spend("any"), False
        if len(parts) == 1 and not others:
            return parts[0]
        text = " & ".join(f"({text})" if joins else text for text, joins in parts)
        return f"({text}){others}" if others else text, False

    def _parts(
        self, node: dict[str, Any], kinds: Kinds | None, fields: Fields | None
    ) -> list[tuple[str, bool]]:
        """The shapes of all parts that must hold together."""
        parts: list[tuple[str, bool]] = []
        if isinstance(node.get("$ref"), str):
            parts.append(self._referred({"$ref": node["$ref"]}, kinds, fields))
        inner_fields = Fields(fields.hidden) if fields and fields.hidden else None
        parts += [self._either(inner, kinds, inner_fields) for inner in _all_of(node)]
        for keyword in ("anyOf", "oneOf"):
            branches = node.get(keyword)
            if isinstance(branches, list) and branches:
                parts.append(self._union(keyword, branches, kinds, inner_fields))
        if "not" in node:
            parts.append(self._excluded(node["not"], kinds, inner_fields))
        if "if" in node and ("then" in node or "else" in node):
            parts.append(self._condition(node, kinds, inner_fields))
        if kinds is None or "object" in kinds:
            parts += [(text, False) for text in self._dependent(node, inner_fields)]
        is_typed = any(self._says_its_type(inner, kinds) for inner in _all_of(node)) or any(
            all(self._says_its_type(branch, kinds) for branch in list_of(node[union]))
            for union in UNIONS & node.keys()
        )
        own = self._own(node, kinds, fields, is_typed=is_typed)
        if own is not None:
            parts.insert(0, own)
        if any(keyword in node for keyword in _UNSAID):
            text, joins = parts.pop(0) if parts else (self._spend("any"), False)
            parts.insert(0, (self._with_more_rules(f"({text})" if joins else text), False))
        return parts

    def _says_its_type(self, node: Any, kinds: Kinds | None) -> bool:
        """Whether the shape of a part restricts the type to `kinds`."""
        said = kinds_of(resolve(node, self._root))
        if said is not None:
            return kinds is not None and set(said) <= set(kinds)
        return isinstance(node, dict) and not COMBINED & node.keys() and "not" not in node

    def _union(
        self, keyword: str, branches: list[Any], kinds: Kinds | None, fields: Fields | None
    ) -> tuple[str, bool]:
        shown = [branch for branch in branches if branch is not False]
        said, is_exact = self._exactly(shown, kinds, fields)
        if len(said) == 1:
            return said[0]
        texts = [text for text, _ in said]
        if not texts:
            return self._spend("nothing"), False
        if keyword == "oneOf" and not are_disjoint(shown, kinds, self._root):
            texts = [f"({text})" if joins else text for text, joins in said]
            text = f"exactly one of ({' | '.join(texts)})"
            self.allows_less |= not is_exact
            return text if is_exact else self._with_more_rules(text), False
        texts = list(dict.fromkeys(texts))
        is_literal = all(text[:1] in '"-0123456789…' for text in texts)
        return ("|" if is_literal else " | ").join(texts), len(texts) > 1 or said[0][1]

    def _exactly(
        self, nodes: list[Any], kinds: Kinds | None, fields: Fields | None = None
    ) -> tuple[list[tuple[str, bool]], bool]:
        """Shapes, and whether they express their schemas completely."""
        before = self.allows_more, self.allows_less
        self.allows_more = self.allows_less = False
        said: list[tuple[str, bool]] = []
        texts: set[str] = set()
        for node in self._meant(nodes):
            if node is _LEFT_OUT:
                said.append((self._omitted(), False))
                break
            if self.detail.cut and said and self._room < _ROOM_FOR_A_BRANCH:
                said.append((self._omitted(), False))
                break
            certain = self._certain
            said.append(self._either(node, kinds, fields))
            if said[-1][0] in texts:
                self._certain = certain  # the rules are quoted only once
            texts.add(said[-1][0])
        is_exact = not (self.allows_more or self.allows_less)
        self.allows_more |= before[0]
        self.allows_less |= before[1]
        return said, is_exact

    def _meant(self, branches: list[Any]) -> list[Any]:
        """The branches that the model may have meant; all, if that is unclear."""
        meant = [branch for branch in branches if id(branch) in self._wrong]
        if not meant or len(meant) == len(branches):
            return branches
        self.shortenable.right = True
        return branches if self.detail.right == "shown" else [*meant, _LEFT_OUT]

    def _excluded(self, node: Any, kinds: Kinds | None, fields: Fields | None) -> tuple[str, bool]:
        """`not …`, if the exclusion can be expressed exactly."""
        if _mentions(node, fields):
            return self._with_more_rules(self._spend("any")), False
        before = self._so_far()
        [(text, _)], is_exact = self._exactly([node], kinds)
        if is_exact:
            return f"not ({text})", False
        self._go_back(before)
        return self._with_more_rules("any", {"not": node}), False

    def _so_far(self) -> tuple[bool, bool, int, int]:
        return self.allows_more, self.allows_less, self._spent, self._certain

    def _go_back(self, before: tuple[bool, bool, int, int]) -> None:
        """Discard what was written since."""
        self.allows_more, self.allows_less, self._spent, self._certain = before

    def _condition(
        self, node: dict[str, Any], kinds: Kinds | None, fields: Fields | None
    ) -> tuple[str, bool]:
        rules = {key: value for key, value in node.items() if key in _CONDITION}
        if _mentions(rules, fields):
            return self._with_more_rules(self._spend("any")), False
        before = self._so_far()
        [(text, _)], is_exact = self._exactly([node["if"]], kinds)
        if not is_exact:
            self._go_back(before)
            return self._with_more_rules("any", rules), False
        text = f"if ({text})"
        for keyword in ("then", "else"):
            if keyword in node:
                text += f" {keyword} ({self._one(node[keyword], kinds)})"
        return f"({text})", False

    def _own(
        self,
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
            return self._enumerated(node, listed)
        asked = [
            kind for kind, keywords in _BY_KIND.items() if any(key in node for key in keywords)
        ]
        if kinds is None:
            if not asked:
                return None
            self.allows_less = True
            kinds = tuple(asked)
        elif is_typed and not any(plain_kind(kind) in asked for kind in kinds):
            return None
        said = [self._typed(node, kind, fields) for kind in _without_doubles(kinds)]
        return " | ".join(said) or self._spend("nothing"), len(said) != 1

    def _enumerated(self, node: dict[str, Any], values: list[Any]) -> Said:
        texts: list[str] = []
        for value in values:
            text = value_text(value)
            if self.detail.cut and len(text) + 4 > self._room:
                texts.append(self._omitted())
                break
            texts.append(self._spend(text))
        said = "|".join(dict.fromkeys(texts)) or self._spend("nothing")
        kinds = {plain_kind(json_type(value)) for value in values}
        if any(key in node for kind in kinds for key in _BY_KIND.get(kind, ())):
            rules = {
                key: node[key] for kind in kinds for key in _BY_KIND.get(kind, ()) if key in node
            }
            return self._with_more_rules(f"({said})" if len(texts) > 1 else said, rules), False
        return said, len(texts) > 1

    def _string(self, node: dict[str, Any]) -> str:
        """`string`, with its format, pattern and length; a pattern alone says that it is one."""
        text, is_said = "string", True
        form = node.get("format")
        if isinstance(form, str):
            if _BARE_FORMAT.fullmatch(form) and form not in _RESERVED:
                text += f" {form}"
            else:
                is_said = False
        if isinstance(node.get("pattern"), str):
            shown = pattern(node["pattern"])
            text = shown if text == "string" else f"{text} {shown}"
        length = between(node.get("minLength"), node.get("maxLength"))
        text += f"{length} chars" if length else ""
        return text if is_said else self._with_more_rules(text, {"format": form})

    def _array(self, node: dict[str, Any]) -> str:
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
            text = "array" if rest is True or rest == {} else f"[{self._below(rest)}]"
            text = self._spend(text) if text == "array" else text
            count = between(low, high)
        else:
            items = [self._below(item) for item in prefix]
            if rest is not False:
                items.append("..." + self._below(rest))
            elif len(items) == 1:
                items.append("...nothing")
            text = f"[{', '.join(items)}]"
            is_whole = low == len(prefix) and high in (None, low)
            count = "" if is_whole and high is None else f" {low}..{'' if high is None else high}"
        text += count + (" unique" if node.get("uniqueItems") is True else "")
        text += self._containing(node)
        unsaid = "unevaluatedItems" in node and ("contains" in node or COMBINED & node.keys())
        return self._with_more_rules(text) if unsaid else text

    def _containing(self, node: dict[str, Any]) -> str:
        """` containing 2..4 (item)`: the number of items that must match another schema."""
        if "contains" not in node:
            return ""
        low, high = node.get("minContains", 1), node.get("maxContains")
        if self._hides_siblings:  # older drafts lack these keywords
            low, high = 1, None
        if low == 0 and high is None:
            return ""
        before = self.allows_less
        text = self._below(node["contains"])
        count = "" if low == 1 and high is None else between(low, high)
        said = f" containing{count} ({text})"
        if high is not None and self.allows_less and not before:
            return self._with_more_rules(said)  # fewer kinds allow more values
        return said

    def _object(self, node: dict[str, Any], fields: Fields) -> str:
        """`{name: type, other?: type}`, with `...` if other fields are allowed."""
        properties = _map(node.get("properties"))
        required = [name for name in list_of(node.get("required")) if isinstance(name, str)]
        others = node.get("additionalProperties", True)
        if self._counts_all(node):
            others = True if COMBINED & node.keys() else node["unevaluatedProperties"]
        patterns = dict(_map(node.get("patternProperties")))
        keys = ""
        if "propertyNames" in node:
            named = _key_pattern(node["propertyNames"])
            if _mentions(node["propertyNames"], fields):
                keys = self._with_more_rules("")
            elif named is None or (named and (properties or patterns or required)):
                keys = f" keys ({self._one(node['propertyNames'], _TEXT)})"
            elif named:
                patterns, others = {named: others}, False
        # The shape does not tell whether a pattern allows the field.
        unsaid = bool(patterns) and others is not True and not properties.keys() >= set(required)
        needs = _needs(node, properties, fields.hidden)
        said = self._fields(node, fields, others if not patterns else True, needs)
        said += [
            f"[key {pattern(self._spend(key))}]: {self._below(inner)}"
            for key, inner in patterns.items()
        ]
        text = self._closed(node, said, others)
        text += between(node.get("minProperties"), node.get("maxProperties")) + keys
        return self._with_more_rules(text) if unsaid else text

    def _counts_all(self, node: dict[str, Any]) -> bool:
        """Whether "other fields" means the fields that no part of the schema accepts."""
        has = "unevaluatedProperties" in node and "additionalProperties" not in node
        return has and not self._hides_siblings

    def _closed(self, node: dict[str, Any], said: list[str], others: Any) -> str:
        if others is True or others == {}:
            takes_all = "additionalProperties" in node or node.get("unevaluatedProperties") in (
                True,
                {},
            )
            if takes_all and self._counts_others:
                return "{" + ", ".join([*said, self._spend("[key]: any")]) + "}"
            return "{" + ", ".join([*said, "..."]) + "}" if said else self._spend("object")
        if others is not False:
            said = [*said, f"[key]: {self._below(others)}"]
        return "{" + ", ".join(said) + "}"

    def _fields(
        self, node: dict[str, Any], fields: Fields, others: Any, needs: dict[str, list[str]]
    ) -> list[str]:
        """The fields in the order of the schema, required ones first.

        If lists are cut, wrong and missing fields come first.
        """
        detail = self.detail
        properties = _map(node.get("properties"))
        required = dict.fromkeys(n for n in list_of(node.get("required")) if isinstance(n, str))
        names = [n for n in properties if n in required]
        names += [n for n in required if n not in properties]
        names += [n for n in properties if n not in required]
        names = [n for n in names if n not in fields.hidden and n not in fields.known]
        wrong = {n for n in names if id(properties.get(n)) in self._wrong}
        right = self._right.get(id(node), frozenset()) - wrong
        optional = set(names) - required.keys() - wrong
        self.shortenable.right |= not right.isdisjoint(names)
        self.shortenable.optional |= bool(optional)
        if detail.cut:
            names.sort(key=lambda n: n not in wrong)
        left_out = right if detail.right == "none" else frozenset()
        is_short = bool(fields.known & properties.keys())
        said = ["…"] if is_short else []
        if not left_out.isdisjoint(names) and not is_short:
            said.append(self._omitted())
        for name in names:
            if name in left_out or (name in optional and detail.optional == "none"):
                continue
            if detail.cut and len(name) + 8 > self._room:
                return [*said, self._omitted()]
            inner = properties.get(name, others)
            if name not in properties and inner is True:
                self._named_only.add(name)
            if name in right and detail.right == "named":
                text = self._omitted()
            else:
                text = self._optional(inner) if name in optional else self._below(inner)
            mark = "" if name in required else "?"
            said.append(self._field(name, mark, text, needs.get(name)))
        if detail.optional == "none" and optional - left_out:
            said.append(self._omitted())
        return said

    def _optional(self, node: Any) -> str:
        if self.detail.optional == "shown":
            return self._below(node)
        kinds = kinds_of(node)
        if kinds and len(kinds) == 1 and kinds[0] not in ("array", "object"):
            return self._below(node)
        return self._omitted()

    def _field(self, name: str, mark: str, inner: str, needs: list[str] | None) -> str:
        rest = f" needs {' and '.join(map(name_of, needs))}" if needs else ""
        return f"{self._spend(name_of(name))}{mark}: {inner}{rest}"

    def _other_fields(self, node: dict[str, Any]) -> str:
        """` with no other fields`, beyond those that any part of the schema accepts."""
        if not (self._counts_all(node) and COMBINED & node.keys()):
            return ""
        others = node["unevaluatedProperties"]
        if others is True or others == {}:
            return ""
        text = " with no other fields"
        if others is not False:
            text = f" with other fields ({self._below(others)})"
        is_unsaid = not self._named_only <= _map(node.get("properties")).keys()
        return self._with_more_rules(text) if is_unsaid else text

    def _dependent(self, node: dict[str, Any], fields: Fields | None) -> list[str]:
        """`(if ({a: any, ...}) then (…))`: the rules for an object that has a field."""
        said = []
        properties = _map(node.get("properties"))
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, wanted in _map(node.get(keyword)).items():
                if wanted is True or wanted in ([], {}) or _is_a_need(name, wanted, properties):
                    continue
                if _mentions([name, wanted], fields):
                    continue
                inner = {"required": wanted} if isinstance(wanted, list) else wanted
                self._named_only.add(name)
                text = self._one(inner, _OBJECT)
                field = self._spend(f"{{{name_of(name)}: any, ...}}")
                said.append(f"(if ({field}) then ({text}))")
        return said

    def _implied(self, node: dict[str, Any]) -> Kinds | None:
        """The types that the other parts of a schema leave, if one names any."""
        beside = [node] if isinstance(node.get("$ref"), str) else []
        for inner in (*beside, *_all_of(node)):
            kinds = kinds_of(resolve(inner, self._root))
            if kinds:
                return kinds
        return None

    def _referred(
        self, node: dict[str, Any], kinds: Kinds | None, fields: Fields | None
    ) -> tuple[str, bool]:
        """The target of a reference; inline if fields of it are omitted."""
        target = resolve(node, self._root) if fields and fields.hidden else None
        if isinstance(target, dict) and "$ref" not in target:
            return self._either(target, kinds, fields)
        return self._reference(node["$ref"])

    def _reference(self, reference: str) -> tuple[str, bool]:
        target = referred(reference, self._root)
        if not isinstance(target, dict):
            if isinstance(target, bool):
                return self._one(target), False
            return self._with_more_rules(self._spend("any")), False
        target = resolve(target, self._root) if set(target) == {"$ref"} else target
        known = self._definitions.get(id(target))
        if known is None:
            known = self._definition(target, reference)
            self._open.add(id(target))
            level, self._level = self._level, 0
            known.text, known.joins = self._either(target, None)
            self._level = level
            self._open.discard(id(target))
        elif id(target) in self._open:
            known.is_recursive = True
            known.name = known.name or self._name(reference)
        known.uses += 1
        self._spent += len(known.name) + 2  # its name may replace the definition in the end
        return known.mark, known.joins

    def _definition(self, node: Any, reference: str) -> _Definition:
        number = len(self._definitions)
        made = _Definition(number, self._name(reference) if reference else "")
        self._definitions[id(node)] = made
        return made

    def _name(self, reference: str) -> str:
        """A unique name for the target of a reference."""
        last = _NO_IDENTIFIER.sub("_", reference.rpartition("/")[2]).strip("_#")
        name = last[:1].upper() + last[1:40] if last[:1].isalpha() else f"T{last[:40]}"
        name = "Root" if reference == "#" else name
        number = self._names.get(name, 0)
        made = name
        while made in self._names:
            number += 1
            made = f"{name}{number + 1}"
        self._names[name] = number
        self._names.setdefault(made, 0)
        return made

    def _joined(self, text: str) -> str:
        """The complete line: short or single-use definitions are inlined, others are named."""
        definitions = list(self._definitions.values())
        budget = [len(definitions) * 8 + 4_000]

        def put(found: re.Match[str]) -> str:
            budget[0] -= 1
            if budget[0] < 0:
                raise TooLong
            made = definitions[int(found[1])]
            return made.name if made.has_name else _MARK.sub(put, made.text)

        line = _MARK.sub(put, text)
        where = [
            f"{made.name} = {_MARK.sub(put, made.text)}" for made in definitions if made.has_name
        ]
        return f"{line} where {' and '.join(where)}" if where else line


def _without_doubles(kinds: Kinds) -> list[str]:
    return [kind for kind in kinds if kind != "integer" or "number" not in kinds]


def _listed(node: dict[str, Any], kinds: Kinds | None) -> list[Any] | None:
    """The listed values of a wanted type."""
    listed = listed_values(node)
    if listed is None or kinds is None:
        return listed
    return [value for value in listed if is_of(value, kinds)]


def _mentions(node: Any, fields: Fields | None) -> bool:
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


def _can_be_quoted(rules: Any, root: dict[str, Any]) -> bool:
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


def _all_of(node: dict[str, Any]) -> list[Any]:
    return list_of(node.get("allOf"))

"""Writes one shape: `Writer` joins the parts of a schema and names repeated references."""

import re
from dataclasses import dataclass
from typing import Any

from toolpool.contract.schema import shape_types as types
from toolpool.contract.schema.discriminators import are_apart
from toolpool.contract.schema.focus import Focus
from toolpool.contract.schema.json_values import list_of, literal
from toolpool.contract.schema.references import UNIONS, referred, resolve
from toolpool.contract.schema.shape_detail import Detail, Met, TooLong
from toolpool.contract.schema.shape_objects import dependent, others_of, written
from toolpool.contract.schema.shape_types import MORE_RULES, Kinds

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
        self.wrong = focus.wrong
        self.right = dict(focus.right)
        self.allows_more = False
        self.allows_less = False
        self.left_out = False
        self.met = Met()
        self.named_only: set[str] = set()
        """Required fields whose schemas say nothing else."""
        self.hides_siblings = hides_siblings
        self.counts_others = counts_others
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
        text = self.one(node, None, types.Fields(hidden, known))
        if start.is_recursive:
            start.text, start.uses = text, start.uses + 1
            text = start.mark
        return self._joined(text)

    def spend(self, text: str) -> str:
        """Count `text` as written and return it. Raises `TooLong` if the line is full."""
        self._spent += len(text) + 2
        self._certain += len(text)
        if self._certain > self._at_most:
            raise TooLong
        return text

    @property
    def room(self) -> int:
        """The characters that are certainly left."""
        return self._at_most - self._spent - _FOR_BRACKETS - self.detail.spare

    def omitted(self) -> str:
        """The sign for an omission."""
        self.left_out = True
        return self.spend("…")

    def with_more_rules(self, text: str, rules: dict[str, Any] | None = None) -> str:
        """`text` with the rules that the grammar cannot express, quoted or as a sign."""
        if rules is not None and types.can_be_quoted(rules, self._root):
            quoted = literal(rules)
            if not self.detail.cut or len(quoted) < self.room:
                return f"{text} (more rules {self.spend(quoted)})"
            self.left_out = True
        self.allows_more = True
        return text if text.endswith(MORE_RULES) else text + MORE_RULES

    def below(self, node: Any) -> str:
        """The shape of a nested schema."""
        level = self._level
        if id(node) in self.wrong:
            self._level = 0
        elif level >= self.detail.levels:
            return self.omitted()
        else:
            self._level += 1
            self.met.deepest = max(self.met.deepest, self._level)
        text = self.one(node)
        self._level = level
        return text

    def typed(self, node: dict[str, Any], kind: str, fields: types.Fields | None) -> str:
        """The shape of a schema for values of one type."""
        if kind == "string":
            return self.spend(types.string(self, node))
        if kind in ("integer", "number"):
            return self.spend(kind + types.limits(node))
        if kind == "array":
            return types.array(self, node)
        if kind == "object":
            return written(self, node, fields or types.Fields())
        return self.spend(kind)

    def one(
        self, node: Any, within: Kinds | None = None, fields: types.Fields | None = None
    ) -> str:
        """The shape of a schema; `within` are the types that the surrounding schema leaves."""
        return self._either(node, within, fields)[0]

    def _either(
        self, node: Any, within: Kinds | None, fields: types.Fields | None = None
    ) -> tuple[str, bool]:
        """The shape, and whether it is several alternatives, which need parentheses beside `&`."""
        self._steps -= 1
        if self._steps < 0:
            raise TooLong
        if not isinstance(node, dict):
            return self.spend("nothing" if node is False else "any"), False
        if isinstance(node.get("$ref"), str) and (self.hides_siblings or len(node) == 1):
            return self._referred(node, within, fields)
        kinds = types.kinds_of(node) or within or self._implied(node)
        parts = self._parts(node, kinds, fields)
        others = others_of(self, node)
        if not parts:
            return self.spend("any"), False
        if len(parts) == 1 and not others:
            return parts[0]
        text = " & ".join(f"({text})" if joins else text for text, joins in parts)
        return f"({text}){others}" if others else text, False

    def _parts(
        self, node: dict[str, Any], kinds: Kinds | None, fields: types.Fields | None
    ) -> list[tuple[str, bool]]:
        """The shapes of all parts that must hold together."""
        parts: list[tuple[str, bool]] = []
        if isinstance(node.get("$ref"), str):
            parts.append(self._referred({"$ref": node["$ref"]}, kinds, fields))
        inner_fields = types.Fields(fields.hidden) if fields and fields.hidden else None
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
            parts += [(text, False) for text in dependent(self, node, inner_fields)]
        is_typed = any(self._says_its_type(inner, kinds) for inner in _all_of(node)) or any(
            all(self._says_its_type(branch, kinds) for branch in list_of(node[union]))
            for union in UNIONS & node.keys()
        )
        own = types.own(self, node, kinds, fields, is_typed=is_typed)
        if own is not None:
            parts.insert(0, own)
        if any(keyword in node for keyword in _UNSAID):
            text, joins = parts.pop(0) if parts else (self.spend("any"), False)
            parts.insert(0, (self.with_more_rules(f"({text})" if joins else text), False))
        return parts

    def _says_its_type(self, node: Any, kinds: Kinds | None) -> bool:
        """Whether the shape of a part restricts the type to `kinds`."""
        said = types.kinds_of(resolve(node, self._root))
        if said is not None:
            return kinds is not None and set(said) <= set(kinds)
        return isinstance(node, dict) and not types.COMBINED & node.keys() and "not" not in node

    def _union(
        self, keyword: str, branches: list[Any], kinds: Kinds | None, fields: types.Fields | None
    ) -> tuple[str, bool]:
        shown = [branch for branch in branches if branch is not False]
        said, is_exact = self._exactly(shown, kinds, fields)
        if len(said) == 1:
            return said[0]
        texts = [text for text, _ in said]
        if not texts:
            return self.spend("nothing"), False
        if keyword == "oneOf" and not are_apart(shown, kinds, self._root):
            texts = [f"({text})" if joins else text for text, joins in said]
            text = f"exactly one of ({' | '.join(texts)})"
            self.allows_less |= not is_exact
            return text if is_exact else self.with_more_rules(text), False
        texts = list(dict.fromkeys(texts))
        is_literal = all(text[:1] in '"-0123456789…' for text in texts)
        return ("|" if is_literal else " | ").join(texts), len(texts) > 1 or said[0][1]

    def _exactly(
        self, nodes: list[Any], kinds: Kinds | None, fields: types.Fields | None = None
    ) -> tuple[list[tuple[str, bool]], bool]:
        """Shapes, and whether they express their schemas completely."""
        before = self.allows_more, self.allows_less
        self.allows_more = self.allows_less = False
        said: list[tuple[str, bool]] = []
        texts: set[str] = set()
        for node in self._meant(nodes):
            if node is _LEFT_OUT:
                said.append((self.omitted(), False))
                break
            if self.detail.cut and said and self.room < _ROOM_FOR_A_BRANCH:
                said.append((self.omitted(), False))
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
        """The branches without those that were certainly not meant."""
        meant = [branch for branch in branches if id(branch) in self.wrong]
        if not meant or len(meant) == len(branches):
            return branches
        self.met.right = True
        return branches if self.detail.right == "shown" else [*meant, _LEFT_OUT]

    def _excluded(
        self, node: Any, kinds: Kinds | None, fields: types.Fields | None
    ) -> tuple[str, bool]:
        """`not …`, if the exclusion can be expressed exactly."""
        if types.mentions(node, fields):
            return self.with_more_rules(self.spend("any")), False
        before = self._so_far()
        [(text, _)], is_exact = self._exactly([node], kinds)
        if is_exact:
            return f"not ({text})", False
        self._go_back(before)
        return self.with_more_rules("any", {"not": node}), False

    def _so_far(self) -> tuple[bool, bool, int, int]:
        return self.allows_more, self.allows_less, self._spent, self._certain

    def _go_back(self, before: tuple[bool, bool, int, int]) -> None:
        """Discard what was written since."""
        self.allows_more, self.allows_less, self._spent, self._certain = before

    def _condition(
        self, node: dict[str, Any], kinds: Kinds | None, fields: types.Fields | None
    ) -> tuple[str, bool]:
        rules = {key: value for key, value in node.items() if key in _CONDITION}
        if types.mentions(rules, fields):
            return self.with_more_rules(self.spend("any")), False
        before = self._so_far()
        [(text, _)], is_exact = self._exactly([node["if"]], kinds)
        if not is_exact:
            self._go_back(before)
            return self.with_more_rules("any", rules), False
        text = f"if ({text})"
        for keyword in ("then", "else"):
            if keyword in node:
                text += f" {keyword} ({self.one(node[keyword], kinds)})"
        return f"({text})", False

    def _implied(self, node: dict[str, Any]) -> Kinds | None:
        """The types that the other parts of a schema leave, if one names any."""
        beside = [node] if isinstance(node.get("$ref"), str) else []
        for inner in (*beside, *_all_of(node)):
            kinds = types.kinds_of(resolve(inner, self._root))
            if kinds:
                return kinds
        return None

    def _referred(
        self, node: dict[str, Any], kinds: Kinds | None, fields: types.Fields | None
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
                return self.one(target), False
            return self.with_more_rules(self.spend("any")), False
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
        self._spent += len(known.name) + 2  # the name may replace it in the end
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


def _all_of(node: dict[str, Any]) -> list[Any]:
    return list_of(node.get("allOf"))

"""Reads a shape back into a JSON Schema, by the grammar of docs/shapes.md and nothing else."""

import json
import re
from typing import Any

_NAME = re.compile(r"[^\W\d][\w$.@-]*")
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_PATTERN = re.compile(r"/((?:[^/\\]|\\.)*)/", re.DOTALL)
_COUNT = re.compile(r" (-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)?\.\.(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)?")
_ABOVE = re.compile(r" >(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)")
_BELOW = re.compile(r" <(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)")
_STEP = re.compile(r" multiple of (-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)")
_FORMAT = re.compile(r" (?!chars\b)([A-Za-z][\w-]*)")
_WORDS: dict[str, Any] = {
    "any": {}, "nothing": False, "boolean": {"type": "boolean"}, "null": {"type": "null"},
    "object": {"type": "object"}, "true": {"const": True}, "false": {"const": False},
}  # fmt: skip


def parse(line: str, draft: str | None = None) -> tuple[dict[str, Any], bool]:
    """The schema that a shape stands for, and whether it says all of the rules."""
    reader = _Reader(line)
    schema = reader.shape()
    if draft:
        schema = {"$schema": draft, **schema}
    return schema, not reader.has_more_rules


class _Reader:
    def __init__(self, line: str) -> None:
        self.line = line
        self.at = 0
        self.has_more_rules = False

    def shape(self) -> dict[str, Any]:
        first = self.union()
        definitions = {}
        if self.took(" where "):
            while True:
                name = self.name()
                self.must(" = ")
                definitions[name] = self.union()
                if not self.took(" and "):
                    break
        assert self.at == len(self.line), self.rest()
        return {"allOf": [first], "$defs": definitions}

    def rest(self) -> str:
        return self.line[self.at :]

    def took(self, text: str) -> bool:
        if self.line.startswith(text, self.at):
            self.at += len(text)
            return True
        return False

    def must(self, text: str) -> None:
        assert self.took(text), f"expected {text!r} before {self.rest()[:60]!r} in {self.line}"

    def found(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.line, self.at)
        if match is not None:
            self.at = match.end()
        return match

    def name(self) -> str:
        if self.line[self.at] == '"':
            return str(self.text())
        match = self.found(_NAME)
        assert match is not None, self.rest()
        return match[0]

    def text(self) -> Any:
        match = self.found(_TEXT)
        assert match is not None, self.rest()
        return json.loads(re.sub(r"\\x([0-9a-f]{2})", r"\\u00\1", match[0]))

    def union(self) -> Any:
        branches = [self.both()]
        while self.took(" | ") or self.took("|"):
            branches.append(self.both())
        return branches[0] if len(branches) == 1 else {"anyOf": branches}

    def both(self) -> Any:
        parts = [self.ruled()]
        while self.took(" & "):
            parts.append(self.ruled())
        return parts[0] if len(parts) == 1 else {"allOf": parts}

    def ruled(self) -> Any:
        schema = self.one()
        while True:
            if self.took(" (more rules)"):
                self.has_more_rules = True
            elif self.took(" (more rules "):
                schema = {"allOf": [schema, self.json()]}
                self.must(")")
            elif self.took(" with no other fields"):
                schema = {"allOf": [schema], "unevaluatedProperties": False}
            elif self.took(" with other fields ("):
                schema = {"allOf": [schema], "unevaluatedProperties": self.union()}
                self.must(")")
            else:
                return schema

    def json(self) -> Any:
        value, self.at = json.JSONDecoder().raw_decode(self.line, self.at)
        return value

    def one(self) -> Any:
        if self.took("exactly one of ("):
            inner = self.union()
            self.must(")")
            return {"oneOf": inner["anyOf"]} if list(inner) == ["anyOf"] else inner
        if self.took("not ("):
            inner = self.union()
            self.must(")")
            return {"not": inner}
        if self.took("(if ("):
            return self.condition()
        if self.took("("):
            inner = self.union()
            self.must(")")
            return inner
        if self.took("{"):
            return self.object()
        if self.took("["):
            return self.array()
        if self.line[self.at] == '"':
            return {"const": self.text()}
        if number := self.found(_NUMBER):
            return {"const": json.loads(number[0])}
        if self.line[self.at] == "/":
            return self.length({"type": "string", "pattern": self.pattern()})
        return self.word()

    def word(self) -> Any:
        word = self.name()
        if word == "string":
            return self.string()
        if word in ("integer", "number"):
            return self.number(word)
        if word == "array":
            return self.counted({"type": "array"}, "Items")
        if word == "object":
            return self.counted({"type": "object"}, "Properties")
        return _WORDS.get(word, {"$ref": f"#/$defs/{word}"})

    def condition(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"if": self.union()}
        self.must(")")
        for keyword in ("then", "else"):
            if self.took(f" {keyword} ("):
                schema[keyword] = self.union()
                self.must(")")
        self.must(")")
        return schema

    def string(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "string"}
        for word in ("where", "and", "needs"):
            if self.rest().startswith(f" {word} "):
                return schema
        if form := self.found(_FORMAT):
            schema["format"] = form[1]
        if self.line.startswith(" /", self.at):
            self.at += 1
            schema["pattern"] = self.pattern()
        return self.length(schema)

    def length(self, schema: dict[str, Any]) -> dict[str, Any]:
        before = self.at
        if count := self.found(_COUNT):
            if self.took(" chars"):
                schema |= _limits(count, "minLength", "maxLength")
            else:
                self.at = before
        return schema

    def pattern(self) -> str:
        match = self.found(_PATTERN)
        assert match is not None, self.rest()
        return match[1].replace("\\/", "/")

    def number(self, word: str) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": word}
        if count := self.found(_COUNT):
            schema |= _limits(count, "minimum", "maximum")
        if above := self.found(_ABOVE):
            schema["exclusiveMinimum"] = json.loads(above[1])
        if below := self.found(_BELOW):
            schema["exclusiveMaximum"] = json.loads(below[1])
        if step := self.found(_STEP):
            schema["multipleOf"] = json.loads(step[1])
        return schema

    def counted(self, schema: dict[str, Any], what: str) -> dict[str, Any]:
        if count := self.found(_COUNT):
            schema |= _limits(count, f"min{what}", f"max{what}")
        if what == "Items" and self.took(" unique"):
            schema["uniqueItems"] = True
        if what == "Items" and self.took(" containing"):
            if count := self.found(_COUNT):
                schema |= {"minContains": 0, **_limits(count, "minContains", "maxContains")}
            schema["contains"] = self.embraced()
        if what == "Properties" and self.took(" keys"):
            schema["propertyNames"] = self.embraced()
        return schema

    def embraced(self) -> Any:
        self.must(" (")
        inner = self.union()
        self.must(")")
        return inner

    def array(self) -> dict[str, Any]:
        items: list[Any] = []
        rest: Any = None
        while True:
            if self.took("..."):
                rest = self.union()
            else:
                items.append(self.union())
            if not self.took(", "):
                break
        self.must("]")
        if len(items) == 1 and rest is None:
            return self.counted({"type": "array", "items": items[0]}, "Items")
        schema = {"type": "array", "prefixItems": items, "items": False if rest is None else rest}
        before = self.at
        schema = self.counted(schema, "Items")
        if not _COUNT.match(self.line, before):
            schema["minItems"] = len(items)
        return schema

    def object(self) -> dict[str, Any]:
        schema: dict[str, Any] = {
            "type": "object", "properties": {}, "required": [], "patternProperties": {},
            "additionalProperties": False, "dependentRequired": {},
        }  # fmt: skip
        while not self.took("}"):
            if self.took("..."):
                del schema["additionalProperties"]  # and none of them is taken
            elif self.took("[key]: "):
                schema["additionalProperties"] = self.union()
            elif self.took("[key "):
                pattern = self.pattern()
                self.must("]: ")
                schema["patternProperties"][pattern] = self.union()
            else:
                self.field(schema)
            self.took(", ")
        return self.counted(schema, "Properties")

    def field(self, schema: dict[str, Any]) -> None:
        name = self.name()
        if not self.took("?"):
            schema["required"].append(name)
        self.must(": ")
        schema["properties"][name] = self.union()
        if self.took(" needs "):
            needed = [self.name()]
            while self.took(" and "):
                needed.append(self.name())
            schema["dependentRequired"][name] = needed


def _limits(count: re.Match[str], low: str, high: str) -> dict[str, Any]:
    found = {}
    if count[1] is not None:
        found[low] = json.loads(count[1])
    if count[2] is not None:
        found[high] = json.loads(count[2])
    return found

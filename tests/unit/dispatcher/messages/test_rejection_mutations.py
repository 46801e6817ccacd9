"""Valid calls made wrong on purpose: the class, the path and the hint are right each time.

The single slips are tried on every field of every valid recorded call; Hypothesis mixes them.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from toolpool.contract.call import ToolCall
from toolpool.contract.outcome import Code
from toolpool.contract.result import ToolResult
from toolpool.contract.schema.json_values import json_type
from toolpool.contract.schema.validator import SchemaValidator
from toolpool.contract.spec import ToolSpec, sealed
from toolpool.dispatcher.admission.catalog import Catalog, Offer
from toolpool.dispatcher.admission.validate import validate
from toolpool.dispatcher.messages import texts
from toolpool.dispatcher.messages.wording import Caps, Wording

WRONG: dict[str, Any] = {
    "string": 918_273_645,
    "integer": "not a number",
    "number": "not a number",
    "boolean": "not a boolean",
    "array": 7.5,
    "object": 7.5,
}
SLIPS = {"swap": 0.99, "drop": 0.95, "double": 0.99, "camel": 1.0, "dash": 1.0}
"""The share that is certain: of a short word, one letter makes another word."""
GOT = {"en": "got", "zh": "实际为"}
Place = tuple[tuple[str | int, ...], dict[str, Any]]


class Recorded:
    """A valid recorded call; other fields than its own tool's are refused."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.schema: dict[str, Any] = row["tool"]["input_schema"]
        self.arguments: dict[str, Any] = row["arguments"]
        self.is_closed = self.arguments.keys() <= self.schema["properties"].keys()
        if self.is_closed:
            self.schema = {**self.schema, "additionalProperties": False}
        self.validator = SchemaValidator(self.schema)
        self.open = SchemaValidator(row["tool"]["input_schema"])
        catalog = Catalog()
        catalog.replace([sealed(ToolSpec(name="t", input_schema=self.schema))])
        self.offers: dict[str, Offer] = dict(catalog.offers)

    def judged(self, arguments: Any, *, repairs: bool = False) -> Any:
        call = ToolCall(index=0, id="c", name="t", arguments=arguments)
        wording = Wording(Caps(errors=50))
        return validate(call, self.offers, None, wording, repairs=repairs)

    def line(self, arguments: Any, path: str) -> str:
        """What the rejection of these arguments says of one path."""
        verdict = self.judged(arguments)
        assert isinstance(verdict, ToolResult)
        assert verdict.code is Code.INVALID_ARGUMENTS
        text = texts.invalid_arguments(
            self.validator.problems(arguments), Wording(Caps(errors=50, characters=5_000))
        )
        lines = text.partition("Errors: ")[2].split("; ")
        [said] = [line for line in lines if line.startswith(f"{path}: ")]
        return said.removeprefix(f"{path}: ")

    def places(self) -> Iterator[Place]:
        """Every field of an object in the arguments, at any depth, with its schema."""
        yield from _places(self.schema, self.arguments, ())

    def __repr__(self) -> str:
        return f"<{json.dumps(self.arguments)[:200]}>"


def _places(schema: Any, value: Any, path: tuple[str | int, ...]) -> Iterator[Place]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in schema.get("properties", {}):
                yield (*path, name), schema["properties"][name]
                yield from _places(schema["properties"][name], inner, (*path, name))
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for index, inner in enumerate(value):
            yield from _places(schema["items"], inner, (*path, index))


@cache
def recorded(shared_data: Path) -> list[Recorded]:
    """Every valid call that has arguments."""
    lines = (shared_data / "bfcl_calls.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["valid"] and row["arguments"]]
    assert len(rows) > 3_500
    return [Recorded(row) for row in rows]


def _is_closed(call: Recorded) -> bool:
    return call.is_closed


GONE = object()


def put(node: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """A copy of `node` with `value` at `path`, or without the field there."""
    if not path:
        return value
    copy: Any = dict(node) if isinstance(node, dict) else list(node)
    if len(path) == 1 and value is GONE:
        del copy[path[0]]
    else:
        copy[path[0]] = put(copy[path[0]], path[1:], value)
    return copy


def at(node: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        node = node[step]
    return node


def dotted(path: tuple[str | int, ...]) -> str:
    return ".".join(map(str, path))


def slipped(name: str, slip: str) -> str:
    middle = len(name) // 2
    return {
        "swap": name[: middle - 1] + name[middle] + name[middle - 1] + name[middle + 1 :],
        "drop": name[:middle] + name[middle + 1 :],
        "double": name[:middle] + name[middle] + name[middle:],
        "camel": name.title().replace("_", ""),
        "dash": name.replace("_", "-"),
    }[slip]


@pytest.mark.long
def test_a_dropped_field_is_required(shared_data: Path) -> None:
    tried = 0
    for call in recorded(shared_data):
        for path, _ in call.places():
            holder = call.schema
            for step in path[:-1]:
                holder = holder["items"] if isinstance(step, int) else holder["properties"][step]
            if path[-1] not in holder.get("required", ()):
                continue
            said = call.line(put(call.arguments, path, GONE), dotted(path))
            assert said == "Required" or said.startswith("Required, expected "), (call, path)
            tried += 1
    assert tried > 6_900


@pytest.mark.long
@pytest.mark.parametrize("style", ["default", "numbered", "pointer", "brief"])
@pytest.mark.parametrize("locale", ["en", "zh"])
def test_a_retyped_field_says_what_was_expected_and_what_came(
    shared_data: Path, style: str, locale: str
) -> None:
    wording = Wording(style=style, locale=locale)
    tried = 0
    for call in recorded(shared_data):
        for path, schema in call.places():
            kind = schema.get("type")
            if kind not in WRONG:
                continue
            problems = call.validator.problems(put(call.arguments, path, WRONG[kind]))
            [problem] = [problem for problem in problems if problem.path == path]
            text = texts.invalid_arguments([problem], wording)
            line = text.removeprefix(wording.words.head[style]).removesuffix(
                wording.words.tail[style]
            )
            assert len(text) <= wording.caps.shape_characters
            assert str(path[-1]) in line
            assert kind in line, (line, path)
            if style != "pointer":
                assert line.endswith(f"{GOT[locale]} {json_type(WRONG[kind])}"), (line, path)
            assert str(WRONG[kind]) not in line.replace(dotted(path), "")
            tried += 1
    assert tried > 9_000


@pytest.mark.long
@pytest.mark.parametrize(("slip", "share"), SLIPS.items())
def test_a_misspelt_field_names_the_right_one_or_none(
    shared_data: Path, slip: str, share: float
) -> None:
    tried = named = 0
    for call in recorded(shared_data):
        for name in call.arguments if call.is_closed else ():
            wrong = slipped(name, slip)
            if len(name) < 5 or wrong in call.schema["properties"] or "." in wrong:
                continue
            sent = {wrong if key == name else key: v for key, v in call.arguments.items()}
            [found] = [p for p in call.validator.problems(sent) if p.path == (wrong,)]
            assert found.kind == "additionalProperties"
            assert found.closest in (name, None), call
            tried += 1
            named += found.closest == name
            if found.closest and name in call.schema.get("required", ()):
                [missing] = [p for p in call.open.problems(sent) if p.path == (name,)]
                assert (missing.kind, missing.closest) == ("required", wrong)
    assert tried > 1_000
    assert named / tried >= share


@pytest.mark.parametrize("holder", ["arguments", "input", "parameters"])
def test_nested_arguments_are_an_unknown_field_and_missing_ones(
    shared_data: Path, holder: str
) -> None:
    for call in recorded(shared_data):
        if holder in call.schema["properties"] or not call.is_closed:
            continue
        problems = call.validator.problems({holder: call.arguments})
        assert {problem.kind for problem in problems} <= {"additionalProperties", "required"}
        assert (holder,) in {problem.path for problem in problems}
        missing = {problem.path[0] for problem in problems if problem.kind == "required"}
        assert missing == set(call.schema.get("required", ()))


@pytest.mark.long
def test_a_stringified_field_is_put_right_exactly(shared_data: Path) -> None:
    """R29: at any depth, and only where the text means one value."""
    tried = 0
    for call in recorded(shared_data):
        for path, schema in call.places():
            value, kind = at(call.arguments, path), schema.get("type")
            if isinstance(value, str) or value is None or kind not in WRONG or kind == "string":
                continue
            sent = put(call.arguments, path, json.dumps(value))
            assert "expected" in call.line(sent, dotted(path))
            verdict = call.judged(sent, repairs=True)
            tried += 1
            if isinstance(verdict, ToolResult):
                assert isinstance(value, float), (call, path)  # more digits than are certain
                continue
            assert verdict[0].arguments == call.arguments
            assert kind == "number" or json.dumps(verdict[0].arguments) == json.dumps(
                call.arguments
            )
            assert f"{dotted(path)} was" in str(verdict[0].note)
    assert tried > 3_000


def test_a_valid_call_is_never_touched(shared_data: Path) -> None:
    """R29."""
    for call in recorded(shared_data):
        before = json.dumps(call.arguments)
        accepted, _ = call.judged(call.arguments, repairs=True)
        assert accepted.arguments is call.arguments
        assert (json.dumps(accepted.arguments), accepted.note) == (before, None)


@given(st.data())
def test_several_slips_at_once_are_all_told(shared_data: Path, data: st.DataObject) -> None:
    """By a line or by a shape: no name that the model needs is left out, and the caps hold."""
    calls = recorded(shared_data)
    call = data.draw(st.integers(0, len(calls) - 1).map(calls.__getitem__).filter(_is_closed))
    sent, wrong = dict(call.arguments), set()
    for name in call.arguments:
        kind = call.schema["properties"].get(name, {}).get("type")
        slip = data.draw(st.sampled_from(["none", "drop", "retype"]))
        if slip == "retype" and kind in WRONG:
            sent[name] = WRONG[kind]
            wrong.add(name)
        elif slip == "drop" and name in call.schema.get("required", ()):
            del sent[name]
            wrong.add(name)
    unknown = st.text("qz", min_size=1, max_size=80).filter(
        lambda name: name not in call.schema["properties"]
    )
    extra = data.draw(st.lists(unknown, unique=True, max_size=2))
    sent |= dict.fromkeys(extra, 1)
    problems = call.validator.problems(sent)
    assert {problem.path[0] for problem in problems} == wrong | set(extra)
    style, locale = (
        data.draw(st.sampled_from(["numbered", "default"])),
        data.draw(st.sampled_from(["en", "zh"])),
    )
    text = texts.invalid_arguments(
        problems, Wording(style=style, locale=locale), call.validator.shapes
    )
    assert len(text) <= Caps().shape_characters
    for name in wrong:
        assert re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text), (name, text)

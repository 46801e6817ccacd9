"""Repair: only what is certain, told, validated again, and never on a valid call (R29)."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from toolpool.contract.call import Flaw, ToolCall
from toolpool.contract.outcome import Code
from toolpool.contract.result import ToolResult
from toolpool.contract.spec import ToolSpec, sealed
from toolpool.dispatcher.admission.catalog import Catalog
from toolpool.dispatcher.admission.validate import Accepted, validate
from toolpool.dispatcher.formats import offered_name as alias
from toolpool.dispatcher.messages.wording import Wording


def judged(
    schema: dict[str, Any], arguments: Any, *, spec: dict[str, Any] | None = None, **options: Any
) -> Accepted | ToolResult:
    catalog = Catalog()
    catalog.replace([sealed(ToolSpec(name="t", input_schema=schema, **(spec or {})))])
    assert not catalog.refused
    call = ToolCall(index=0, id="c", name="t", arguments=arguments)
    return validate(call, catalog.offers, None, options.pop("wording", Wording()), **options)


def accepted(schema: dict[str, Any], arguments: Any, **options: Any) -> ToolCall:
    verdict = judged(schema, arguments, **options)
    assert not isinstance(verdict, ToolResult), verdict.error
    return verdict[0]


def field(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, **more}


CERTAIN: list[tuple[dict[str, Any], Any, Any, str]] = [
    ({"type": "integer"}, "10", 10, "a was a string and was read as integer"),
    ({"type": "integer"}, "-3", -3, "a was a string and was read as integer"),
    ({"type": "number"}, "2.50", 2.5, "a was a string and was read as number"),
    ({"type": "number"}, "10", 10, "a was a string and was read as integer"),
    ({"type": ["integer", "null"]}, "7", 7, "a was a string and was read as integer"),
    ({"enum": [1, 2]}, "2", 2, "a was a string and was read as integer"),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "7", 7,
     "a was a string and was read as integer"),
    ({"type": "boolean"}, "true", True, "a was a string and was read as boolean"),
    ({"type": "boolean"}, "false", False, "a was a string and was read as boolean"),
    ({"type": "object"}, '{"x": 1}', {"x": 1}, "a was JSON in a string and was read as object"),
    ({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
     '{"x": 1}', {"x": 1}, "a was JSON in a string and was read as object"),
    ({"type": "array", "items": {"type": "string"}}, '["x"]', ["x"],
     "a was JSON in a string and was read as array"),
    ({"type": "array", "items": {"enum": ["red", "green"]}}, "red", ["red"],
     "a was a single item and was put in an array"),
    ({"type": "array", "items": {"type": "integer", "enum": [1, 2]}}, 2, [2],
     "a was a single item and was put in an array"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "sent", "meant", "told"), CERTAIN)
def test_certain_repairs_are_made_and_reported(
    schema: dict[str, Any], sent: Any, meant: Any, told: str
) -> None:
    arguments = {"a": sent}
    call = accepted(field(schema), arguments)
    assert call.arguments == {"a": meant}
    assert json.dumps(call.arguments) == json.dumps({"a": meant})
    assert call.note == f"The arguments were corrected before the call: {told}."
    assert arguments == {"a": sent}  # the caller's own are left alone


@pytest.mark.parametrize(
    "labels",
    [
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "object", "patternProperties": {"^[a-z]+$": {"type": "string"}}},
        {"type": "array", "items": {"type": "string"}},
    ],
)
def test_null_in_a_map_or_list_is_not_left_out(labels: dict[str, Any]) -> None:
    """Nothing but its entries says what a map is for."""
    sent = {"env": None, "x": "y"} if labels["type"] == "object" else [None, "y"]
    assert isinstance(judged(field(labels), {"a": sent}), ToolResult)


def test_null_for_an_optional_field_behind_a_reference_is_left_out() -> None:
    schema = field({"$ref": "#/$defs/n"}, **{"$defs": {"n": {"type": "integer"}}})
    assert accepted(schema, {"a": None}).arguments == {}
    schema = field({"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/n"}]})
    schema["$defs"] = {"n": {"type": "string"}}
    assert accepted(schema, {"a": None}).arguments == {}


def test_null_for_an_optional_field_is_left_out() -> None:
    schema = field({"type": "string"}, additionalProperties=False)
    call = accepted(schema, {"a": None})
    assert call.arguments == {}
    assert call.note == "The arguments were corrected before the call: a was null and was left out."
    assert isinstance(judged(field({"type": "string"}, required=["a"]), {"a": None}), ToolResult)
    assert isinstance(judged(field({"items": {"type": "string"}}), {"a": [None]}), ToolResult)


UNSURE: list[tuple[dict[str, Any], Any]] = [
    ({"type": "integer"}, "ten"),
    ({"type": "integer"}, "010"),
    ({"type": "integer"}, "1.0"),
    ({"type": "integer"}, "1e3"),
    ({"type": "integer"}, " 1"),
    ({"type": "integer"}, "+1"),
    ({"type": "integer"}, "1,000"),
    ({"type": "integer"}, "9" * 19),
    ({"type": "integer"}, 1.5),
    ({"type": "integer"}, True),
    ({"type": "integer", "minimum": 5}, "3"),
    ({"type": "number"}, "NaN"),
    ({"type": "number"}, "1" * 16 + ".5"),
    ({"type": "boolean"}, "True"),
    ({"type": "boolean"}, "yes"),
    ({"type": "boolean"}, "1"),
    ({"type": "boolean"}, 1),
    ({"type": "string"}, 5),
    ({"type": "object"}, "{x: 1}"),
    ({"type": "object"}, '{"x": 1, "x": 2}'),
    ({"type": "object"}, "[1]"),
    ({"type": "object", "required": ["y"]}, '{"x": 1}'),
    ({"type": "object"}, '{"x": "\\ud800"}'),
    ({"type": "object"}, '{"a":' * 64 + "1" + "}" * 64),
    ({"type": "array", "items": {"type": "string"}}, "Paris, London"),
    ({"type": "array", "items": {"type": "string"}}, "Paris"),
    ({"type": "array", "items": {"type": "integer"}}, 5),
    ({"type": "array", "items": {"type": "object"}}, {"x": 1}),
    ({"type": "array", "items": {"enum": ["red"]}}, "Red"),
    ({"type": "array", "items": {"enum": ["1"]}}, 1),
    ({"type": "array", "items": {"enum": [1]}}, True),
    ({"type": "array", "items": {"enum": ["red"]}, "minItems": 2}, "red"),
    ({"type": "array", "items": {"type": "string"}}, "[Paris]"),
    ({"type": "array", "items": {"type": "integer"}}, "x"),
    ({"type": "array", "items": {"type": "string"}, "minItems": 2}, "x"),
    ({"type": ["array", "object"]}, 5),
    ({"enum": ["1", "2"]}, 1),
    ({"enum": ["red"]}, "Red"),
    ({"enum": ["red", 5]}, "5"),
    ({"const": None}, "null"),
]


@pytest.mark.parametrize(("schema", "sent"), UNSURE)
def test_what_is_not_certain_is_rejected(schema: dict[str, Any], sent: Any) -> None:
    verdict = judged(field(schema, required=["a"]), {"a": sent})
    assert isinstance(verdict, ToolResult)
    assert verdict.code is Code.INVALID_ARGUMENTS


def test_a_list_of_edits_is_applied_completely_or_not_at_all() -> None:
    """One problem that cannot be put right leaves the others to the model as well."""
    schema = {
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["c"],
    }
    verdict = judged(schema, {"a": "1", "b": "2"})
    assert isinstance(verdict, ToolResult)
    assert "a: expected integer, got string; b: expected integer, got string" in str(verdict.error)


def test_the_arguments_as_a_whole_are_never_changed() -> None:
    for schema in (
        {"anyOf": [{"type": "array", "items": {"enum": ["x"]}}, {"required": ["b"]}]},
        {"type": ["object", "null"], "minProperties": 1},
    ):
        assert isinstance(judged(schema, {}), ToolResult)


def test_what_stands_in_what_was_changed_is_judged_anew() -> None:
    """A schema that asks two things of one value: it blames the model, and never breaks."""
    broken = field({"type": "array", "properties": {"x": {"type": "integer"}}})
    verdict = judged(broken, {"a": {"x": "1"}})
    assert isinstance(verdict, ToolResult)
    assert verdict.code is Code.INVALID_ARGUMENTS
    inner = {
        "type": ["array", "null"],
        "items": {"enum": ["x"]},
        "properties": {"x": {"enum": [1]}},
    }
    for value in ("x", {"x": "1"}, '["x"]', '{"x": "1"}', None, 5):
        verdict = judged(field(inner, required=["a"]), {"a": value})
        assert not isinstance(verdict, ToolResult) or verdict.code is Code.INVALID_ARGUMENTS


def test_what_is_inside_a_string_is_put_right_too() -> None:
    inner = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    schema = field({"type": "array", "items": inner})
    call = accepted(schema, {"a": '[{"n": "1"}, {"n": 2}]'})
    assert call.arguments == {"a": [{"n": 1}, {"n": 2}]}
    assert call.note == (
        "The arguments were corrected before the call: a was JSON in a string and was read as "
        "array; a.0.n was a string and was read as integer."
    )


def test_it_can_be_switched_off_for_a_tool_and_for_all() -> None:
    schema = field({"type": "integer"})
    assert isinstance(judged(schema, {"a": "1"}, spec={"repair": False}), ToolResult)
    assert isinstance(judged(schema, {"a": "1"}, repairs=False), ToolResult)


def test_it_is_told_in_chinese_too() -> None:
    call = accepted(field({"type": "integer"}), {"a": "1"}, wording=Wording(locale="zh"))
    assert call.note == "调用前已修正参数：a 是字符串，已按 integer 读取。"


def test_an_earlier_note_is_kept() -> None:
    catalog = Catalog()
    catalog.replace([sealed(ToolSpec(name="t", input_schema=field({"type": "integer"})))])
    call = ToolCall(index=0, id="c", name="t", arguments={"a": "1"}, note="An id was made up.")
    verdict = validate(call, catalog.offers, None, Wording())
    assert not isinstance(verdict, ToolResult)
    assert str(verdict[0].note).startswith("An id was made up. The arguments were corrected")


def test_no_valid_call_is_ever_touched(shared_data: Path) -> None:
    """The very same object goes on, over every valid BFCL call."""
    count = 0
    for line in (shared_data / "bfcl_calls.jsonl").read_text().splitlines():
        row = json.loads(line)
        if not row["valid"]:
            continue
        before = copy.deepcopy(row["arguments"])
        call = accepted(row["tool"]["input_schema"], row["arguments"])
        assert call.arguments is row["arguments"]
        assert (call.arguments, call.note) == (before, None)
        count += 1
    assert count == 3862 - 199


NAMES = st.sampled_from(["a", "b", "", "0"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.sampled_from(["1", "true", "[1]", "x"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner),
    max_leaves=4,
)
KEYWORDS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["string", "integer", "boolean", "object", "array", "null"])
        | st.lists(st.sampled_from(["integer", "array", "object"]), min_size=1, unique=True),
        "enum": st.lists(st.sampled_from(["1", 1, "x", True, None, [1]]), min_size=1),
        "items": st.sampled_from([{"enum": ["1", "x"]}, {"type": "integer"}, {}]),
        "properties": st.sampled_from([{"a": {"type": "integer"}}, {"b": {"type": "array"}}]),
        "additionalProperties": st.sampled_from(
            [{"type": "array", "items": {"type": "integer"}}, {"type": "integer"}, False]
        ),
        "required": st.sampled_from([["a"], ["b"]]),
        "anyOf": st.just([{"type": "array"}, {"type": "object", "required": ["a"]}]),
    },
)


@given(st.dictionaries(NAMES, KEYWORDS), st.dictionaries(NAMES, VALUES))  # type: ignore[misc]
def test_no_schema_makes_it_raise(properties: dict[str, Any], arguments: dict[str, Any]) -> None:
    """Raising is blamed on the pool, not on the call."""
    verdict = judged({"type": "object", "properties": properties}, arguments)
    assert not isinstance(verdict, ToolResult) or verdict.code is Code.INVALID_ARGUMENTS


@pytest.mark.parametrize("sent", ["x", "1", ["x"], {"": "1"}, {"0": {"": None}}])
@pytest.mark.parametrize("inner", [{"type": "integer"}, {"items": {"type": "integer"}}])
def test_a_field_without_a_name_is_neither_repaired_nor_explained_wrongly(
    inner: dict[str, Any], sent: Any
) -> None:
    schema = field({"type": "object", "additionalProperties": {"type": "array", **inner}})
    verdict = judged(schema, {"a": {"": sent}})
    if isinstance(verdict, ToolResult):
        assert verdict.code is Code.INVALID_ARGUMENTS
        assert "Expected arguments: {a?: {[key]: " in verdict.error


TYPES = ["string", "integer", "number", "boolean", "object", "array", "null"]


@given(
    st.dictionaries(st.sampled_from("ab"), VALUES),  # type: ignore[misc]
    st.dictionaries(st.sampled_from("ab"), st.fixed_dictionaries({"type": st.sampled_from(TYPES)})),
)
def test_a_repaired_call_is_valid_and_a_valid_one_is_the_same(
    arguments: dict[str, Any], properties: dict[str, Any]
) -> None:
    schema = {"type": "object", "properties": properties}
    before = copy.deepcopy(arguments)
    plain = judged(schema, arguments, repairs=False)
    verdict = judged(schema, arguments)
    assert arguments == before
    if not isinstance(plain, ToolResult):
        assert not isinstance(verdict, ToolResult)
        assert verdict[0] == plain[0]
        assert verdict[0].arguments is arguments
    elif not isinstance(verdict, ToolResult):
        call = verdict[0]
        assert call.note is not None
        assert not isinstance(judged(schema, call.arguments, repairs=False), ToolResult)
        for name, value in (call.arguments or {}).items():
            if name not in str(call.note).replace("was", "").replace("and", ""):
                assert value == arguments[name]


def test_arguments_that_the_host_injects_are_never_named() -> None:
    """R27."""
    schema = field({"type": "integer"}, required=["context"], additionalProperties=True)
    spec = {"injected": ("context",)}
    assert not isinstance(judged(schema, {"a": 1}, spec=spec), ToolResult)
    verdict = judged(schema, {"a": "x"}, spec=spec)
    assert isinstance(verdict, ToolResult)
    assert "context" not in str(verdict.error)
    closed = field({"type": "integer"}, additionalProperties=False)
    closed["properties"]["context"] = {"type": "object"}
    for near in ("contxt", "zzz"):
        verdict = judged(closed, {near: 1}, spec=spec)
        assert isinstance(verdict, ToolResult)
        assert str(verdict.error).endswith(
            f"{near}: unknown field. Expected arguments: {{a?: integer}}"
        )


@pytest.mark.parametrize("format", ["anthropic", "openai_chat", "gemini", "bedrock"])
def test_a_name_that_a_provider_refuses_leads_back_to_its_tool(format: str) -> None:
    """R26, R40: and a list of tools has the names that were offered."""
    catalog = Catalog()
    catalog.replace([sealed(ToolSpec(name="mcp/files:read")), sealed(ToolSpec(name="plain"))])
    offered = alias("mcp/files:read", format)
    assert offered != "mcp/files:read"

    def ask(name: str, allowed: set[str] | None = None) -> Accepted | ToolResult:
        call = ToolCall(index=0, id="c", name=name, arguments={})
        return validate(
            call,
            catalog.offers,
            allowed,
            Wording(),
            aliases=catalog.aliases,
            format=format,
        )

    verdict = ask(offered)
    assert not isinstance(verdict, ToolResult)
    assert (verdict[0].name, verdict[1].spec.name) == ("mcp/files:read", "mcp/files:read")
    unknown = ask("nothing")
    assert isinstance(unknown, ToolResult)
    assert str(unknown.error).endswith((f"{offered}, plain.", f"plain, {offered}."))
    hidden = ask(offered, {"plain"})
    assert isinstance(hidden, ToolResult)
    assert hidden.error == f"Tool '{offered}' not found. Available tools: plain."


def test_the_tools_that_are_named_are_those_that_were_offered() -> None:
    """R26: all, or those on the allow-list; the pool's own where one of them was meant."""
    catalog = Catalog()
    catalog.replace([sealed(ToolSpec(name=name)) for name in ("q3", "q2", "q9", "q1")])

    def told(allowed: set[str] | None, name: str = "nothing_like_it") -> str:
        flaw = None if name else Flaw(Code.UNPARSEABLE, "no_name")
        call = ToolCall(index=0, id="c", name=name, arguments={}, flaw=flaw)
        verdict = validate(call, catalog.offers, allowed, Wording())
        assert isinstance(verdict, ToolResult)
        return str(verdict.error).partition("Available tools: ")[2]

    assert told(None, name="") == told(None) == "q1, q2, q3, q9."
    assert told(None, name="tasks_list").startswith("task_list, ")
    assert told({"q9", "q3", "gone"}) == "q3, q9."
    assert told(set()) == ""

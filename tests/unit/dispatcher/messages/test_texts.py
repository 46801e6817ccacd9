"""What the model reads of a rejection: exact text, in four styles and two languages (R23-R26)."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from toolpool.contract.call import Flaw
from toolpool.contract.ledger.failure_memory import FailureHistory
from toolpool.contract.outcome import Code, Executed, Outcome, failure
from toolpool.contract.schema.problem import Problem
from toolpool.contract.schema.validator import SchemaValidator
from toolpool.dispatcher.messages import texts
from toolpool.dispatcher.messages.wording import Caps, Wording

STYLES = ["default", "numbered", "pointer", "brief"]

EDIT = {
    "type": "object",
    "properties": {
        "file_path": {"type": "string"},
        "limit": {"type": "number"},
        "mode": {"enum": ["fast", "careful"]},
        "edits": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "range": {"$ref": "#/$defs/range"}},
                "required": ["path"],
            },
        },
    },
    "required": ["file_path"],
    "additionalProperties": False,
    "$defs": {
        "range": {
            "type": "object",
            "properties": {"start": {"type": "integer"}, "end": {"type": "integer"}},
        }
    },
}
FAULTY: dict[str, Any] = {
    "limit": "ten", "mode": "carefull", "edits": [{"range": 3}], "filepath": "a.txt"
}  # fmt: skip


def problems(schema: dict[str, Any], arguments: Any) -> tuple[Problem, ...]:
    return SchemaValidator(schema).problems(arguments)


def rejected(schema: dict[str, Any], arguments: Any, **wording: Any) -> str:
    validator = SchemaValidator(schema)
    found = validator.problems(arguments)
    return texts.invalid_arguments(found, Wording(**wording), validator.shapes)


def errors(schema: dict[str, Any], arguments: Any) -> str:
    """The default text without its head."""
    text = rejected(schema, arguments)
    head = "Please rewrite the tool input with valid arguments. "
    assert text.startswith((head + "Errors: ", head + "Expected "))
    return text.removeprefix(head).removeprefix("Errors: ")


TEXTS = {
    ("default", "en"): (
        "Please rewrite the tool input with valid arguments. Errors: "
        "limit: expected number, got string; "
        'mode: did you mean "careful"? expected one of "fast", "careful", got another string; '
        "edits.0.path: Required; "
        "edits.0.range: expected object {start?: integer, end?: integer, ...}, got integer; "
        "filepath: unknown field, did you mean 'file_path'?"
    ),
    ("numbered", "en"): (
        "Parameter validation failed:\n"
        "1. Field 'limit' expected number, got string\n"
        '2. Field \'mode\' did you mean "careful"? expected one of "fast", "careful", '
        "got another string\n"
        "3. Field 'edits.0.path' is required but missing\n"
        "4. Field 'edits.0.range' expected object {start?: integer, end?: integer, ...}, "
        "got integer\n"
        "5. Field 'filepath' is not known, did you mean 'file_path'?\n"
        "Please fix the parameters and try again."
    ),
    ("pointer", "en"): (
        "Validation failed:\n"
        "- /limit: must be number\n"
        '- /mode: did you mean "careful"? must be one of "fast", "careful"\n'
        "- /edits/0/path: must be present\n"
        "- /edits/0/range: must be object {start?: integer, end?: integer, ...}\n"
        "- /filepath: must not be present, did you mean 'file_path'?"
    ),
    ("brief", "en"): (
        "Invalid parameters: "
        "limit: expected number, got string; "
        'mode: did you mean "careful"? expected one of "fast", "careful", got another string; '
        "edits.0.path: Required; "
        "edits.0.range: expected object {start?: integer, end?: integer, ...}, got integer; "
        "filepath: unknown field, did you mean 'file_path'?"
    ),
    ("default", "zh"): (
        "请使用有效参数重写工具输入。错误："
        "limit: 应为 number，实际为 string; "
        'mode: 是否指 "careful"？应为 以下之一："fast", "careful"，实际为 其他 string; '
        "edits.0.path: 必填; "
        "edits.0.range: 应为 object {start?: integer, end?: integer, ...}，实际为 integer; "
        "filepath: 未知字段，是否指 'file_path'？"
    ),
    ("numbered", "zh"): (
        "参数校验失败：\n"
        "1. 字段 'limit' 应为 number，实际为 string\n"
        '2. 字段 \'mode\' 是否指 "careful"？应为 以下之一："fast", "careful"，'
        "实际为 其他 string\n"
        "3. 字段 'edits.0.path' 为必填项，但缺失\n"
        "4. 字段 'edits.0.range' 应为 object {start?: integer, end?: integer, ...}，"
        "实际为 integer\n"
        "5. 字段 'filepath' 不是已知字段，是否指 'file_path'？\n"
        "请修正参数后重试。"
    ),
    ("pointer", "zh"): (
        "校验失败：\n"
        "- /limit: 必须为 number\n"
        '- /mode: 是否指 "careful"？必须为 以下之一："fast", "careful"\n'
        "- /edits/0/path: 必须存在\n"
        "- /edits/0/range: 必须为 object {start?: integer, end?: integer, ...}\n"
        "- /filepath: 不得存在，是否指 'file_path'？"
    ),
    ("brief", "zh"): (
        "参数无效："
        "limit: 应为 number，实际为 string; "
        'mode: 是否指 "careful"？应为 以下之一："fast", "careful"，实际为 其他 string; '
        "edits.0.path: 必填; "
        "edits.0.range: 应为 object {start?: integer, end?: integer, ...}，实际为 integer; "
        "filepath: 未知字段，是否指 'file_path'？"
    ),
}


@pytest.mark.parametrize(("style", "locale"), TEXTS)
def test_every_style_in_every_language(style: str, locale: str) -> None:
    """R23, R24: to the letter."""
    assert rejected(EDIT, FAULTY, style=style, locale=locale) == TEXTS[style, locale]


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("default", "Please rewrite the tool input with valid arguments. Errors: path: Required; "
         "limit: expected number, got string"),
        ("numbered", "Parameter validation failed:\n1. Field 'path' is required but missing\n"
         "2. Field 'limit' expected number, got string\nPlease fix the parameters and try again."),
        ("pointer", "Validation failed:\n- /path: must be present\n- /limit: must be number"),
        ("brief", "Invalid parameters: path: Required; limit: expected number, got string"),
    ],
)  # fmt: skip
def test_the_pinned_wording(style: str, expected: str) -> None:
    schema = {
        "type": "object",
        "properties": {"limit": {"type": "number"}},
        "required": ["path"],
    }
    found = sorted(problems(schema, {"limit": "1"}), key=lambda p: p.kind)
    assert texts.invalid_arguments(found, Wording(style=style)) == expected


@pytest.mark.parametrize(
    ("style", "locale", "expected"),
    [
        ("default", "en", "Please rewrite the tool input with valid arguments. Errors: "
         "expected at least 1 fields"),
        ("numbered", "en", "Parameter validation failed:\n1. Root object expected at least 1 "
         "fields\nPlease fix the parameters and try again."),
        ("pointer", "en", "Validation failed:\n- /: must be at least 1 fields"),
        ("brief", "en", "Invalid parameters: expected at least 1 fields"),
        ("default", "zh", "请使用有效参数重写工具输入。错误：应为 至少 1 个字段"),
        ("numbered", "zh", "参数校验失败：\n1. 根对象 应为 至少 1 个字段\n请修正参数后重试。"),
    ],
)  # fmt: skip
def test_an_error_at_the_root_has_no_path(style: str, locale: str, expected: str) -> None:
    assert rejected({"minProperties": 1}, {}, style=style, locale=locale) == expected


def prop(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, **more}


CIRCLE = {
    "type": "object",
    "properties": {"kind": {"const": "circle"}, "radius": {"type": "number"}},
    "required": ["kind", "radius"],
}
SQUARE = {
    "type": "object",
    "properties": {"kind": {"const": "square"}, "side": {"type": "number"}},
    "required": ["kind", "side"],
}


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"type": "integer"}, "5", "a: expected integer, got string"),
        ({"type": ["string", "null"]}, 5, "a: expected string or null, got integer"),
        ({"type": ["null", "string"]}, 5, "a: expected string or null, got integer"),
        ({"type": "array", "items": {"type": "string"}}, "x",
         "a: expected array of string, got string"),
        ({"type": "array"}, "x", "a: expected array, got string"),
        ({"enum": ["red", "green"]}, "gren",
         'a: did you mean "green"? expected one of "red", "green", got another string'),
        ({"enum": ["red", "green"]}, "blue",
         'a: expected one of "red", "green", got another string'),
        ({"enum": [1, 2]}, None, "a: expected integer, one of 1, 2 (or leave it out), got null"),
        ({"enum": ["True", "False"]}, True,
         'a: did you mean "True"? expected string, one of "True", "False", got boolean'),
        ({"enum": ["1", "2", "any"]}, 2,
         'a: did you mean "2"? expected string, one of "1", "2", "any", got integer'),
        ({"type": "string"}, None, "a: expected string (or leave it out), got null"),
        ({"properties": {"b": {"type": "string"}}, "required": ["b"]}, {"b": None},
         "a.b: expected string, got null"),
        ({"type": "string", "enum": ["red"]}, 3, 'a: expected string, one of "red", got integer'),
        ({"const": "v1"}, "w", 'a: expected "v1", got another string'),
        ({"enum": ["x", None]}, 3, 'a: expected string or null, one of "x", null, got integer'),
        ({"minimum": 1}, 0, "a: expected a number of at least 1"),
        ({"exclusiveMaximum": 5}, 5, "a: expected a number below 5"),
        ({"multipleOf": 2}, 3, "a: expected a multiple of 2"),
        ({"minLength": 3}, "ab", "a: expected at least 3 characters"),
        ({"maxItems": 1}, [1, 2], "a: expected at most 1 items"),
        ({"uniqueItems": True}, [1, 1], "a: expected items that all differ"),
        ({"pattern": "^[a-z]+$"}, "A", "a: expected text matching ^[a-z]+$"),
        ({"pattern": "^a\nb$"}, "A", "a: expected text matching ^a\\nb$"),
        ({"const": None}, 1, "a: expected null, got integer"),
        ({"format": "date"}, "soon", "a: expected text in date format"),
        ({"not": {"type": "string"}}, "x",
         "a: expected another value: this one is excluded. Expected a: not (string)"),
        ({"contains": {"type": "string"}}, [1],
         "a: expected an array with the wanted number of items of the wanted kind. "
         "Expected a: array containing (string)"),
        ({"propertyNames": {"pattern": "^x"}}, {"y": 1},
         "a: expected other field names. Expected a: {[key /^x/]: any}"),
        ({"items": {"type": "object", "required": ["id"]}}, [{"id": 1}, {}],
         "a.1.id: Required"),
        ({"type": "object", "properties": {"x": {"type": "array", "items": {"type": "number"}}},
          "required": ["x"]}, {}, "a.x: Required, expected array of number"),
        # a union: the branch that the argument resembles
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, None,
         "a: expected string or integer (or leave it out), got null"),
        ({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]}, ["x", 3],
         "a.1: expected string, got integer"),
        ({"oneOf": [CIRCLE, SQUARE]}, {"kind": "square", "side": "4"},
         "a.side: expected number, got string"),
        ({"oneOf": [CIRCLE, SQUARE]}, {"kind": "circle", "side": 4},
         "a.radius: Required, expected number"),
        ({"anyOf": [CIRCLE, SQUARE]}, {"kind": "sqare", "side": 4},
         'a.kind: did you mean "square"? expected one of "circle", "square", got another string'),
        ({"anyOf": [CIRCLE, {"type": "string"}]}, {"kind": "circle"},
         "a.radius: Required, expected number"),
        ({"anyOf": [CIRCLE, SQUARE]}, 3,
         'a: expected {kind: "circle", radius: number, ...} | {kind: "square", side: number, ...}, '
         "got integer"),
        ({"oneOf": [{"required": ["x"]}, {"required": ["y"]}]}, {"x": 1, "y": 1},
         "a: fits more than one alternative, leave out what belongs to only one of them. "
         "Expected a: exactly one of ({x: any, ...} | {y: any, ...}) (more rules)"),
        ({"anyOf": [{"$ref": "#/$defs/c"}, {"type": "null"}]}, {"kind": "circle", "radius": "1"},
         "a.radius: expected number, got string"),
    ],
)  # fmt: skip
def test_one_problem(schema: dict[str, Any], value: Any, expected: str) -> None:
    """R25."""
    assert errors(prop(schema, **{"$defs": {"c": CIRCLE}}), {"a": value}) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"customerId": "c"}, "customerId: unknown field, did you mean 'customer_id'?"),
        ({"custmer_id": "c"}, "custmer_id: unknown field, did you mean 'customer_id'?"),
        ({"customer-id": "c"}, "customer-id: unknown field, did you mean 'customer_id'?"),
        ({"verbose": True}, "verbose: unknown field. "
         "Expected arguments: {customer_id?: string, limit?: integer}"),
        ({"customer_id": "c", "customerid": "c"},
         "customerid: unknown field. "
         "Expected arguments: {customer_id?: string, limit?: integer}"),
    ],
)  # fmt: skip
def test_an_unknown_field_names_the_one_that_was_meant(arguments: Any, expected: str) -> None:
    schema = {
        "properties": {"customer_id": {"type": "string"}, "limit": {"type": "integer"}},
        "additionalProperties": False,
    }
    assert errors(schema, arguments) == expected


@pytest.mark.parametrize(
    ("style", "locale", "expected"),
    [
        ("default", "en", "customer_id: Required, did you send it as 'customerId'?"),
        ("numbered", "en",
         "1. Field 'customer_id' is required but missing, did you send it as 'customerId'?"),
        ("pointer", "en", "- /customer_id: must be present, did you send it as 'customerId'?"),
        ("brief", "zh", "customer_id: 必填，是否误写为 'customerId'？"),
    ],
)  # fmt: skip
def test_a_missing_field_names_the_one_that_came_instead(
    style: str, locale: str, expected: str
) -> None:
    """Where other fields are let pass, nothing else would say so; a closed schema says it there."""
    schema: dict[str, Any] = {"properties": {"customer_id": {}}, "required": ["customer_id"]}
    assert expected in rejected(schema, {"customerId": 1, "zzz": 2}, style=style, locale=locale)
    assert errors(schema, {"zzz": 2}) == "customer_id: Required"
    closed = {**schema, "additionalProperties": False}
    assert errors(closed, {"customerId": 1}) == (
        "customerId: unknown field, did you mean 'customer_id'?"
    )
    typed = {**closed, "properties": {"customer_id": {"type": "string"}}}
    assert errors(typed, {"customerId": 1}) == (
        "customerId: unknown field, did you mean 'customer_id'?; "
        "customer_id: Required, expected string"
    )


@pytest.mark.parametrize("more", [{}, {"properties": {}}, {"type": "object", "required": []}])
def test_a_tool_without_arguments_takes_none(more: dict[str, Any]) -> None:
    assert errors({"additionalProperties": False, **more}, {"x": 1}) == (
        "x: unknown field, leave it out"
    )


def test_what_decides_a_union_comes_first_and_idle_fields_last() -> None:
    schema = {
        "type": "object",
        "properties": {
            "n": {"type": "integer"},
            "shape": {"anyOf": [CIRCLE, SQUARE]},
        },
        "additionalProperties": False,
    }
    arguments = {"zzz": 1, "n": "x", "shape": {"kind": "circle"}}
    assert [p.path for p in problems(schema, arguments)] == [
        ("shape", "radius"),
        ("n",),
        ("zzz",),
    ]


def test_no_problem_is_repeated() -> None:
    schema = prop({"allOf": [{"type": "string"}, {"type": "string", "enum": ["x"]}]})
    assert errors(schema, {"a": 1}) == 'a: expected string, one of "x", got integer'


def test_a_field_that_is_called_by_a_number_is_no_index() -> None:
    schema = {"additionalProperties": {"type": "string"}}
    [problem] = problems(schema, {"0": 5})
    assert (problem.path, problem.received) == (("0",), "integer")


def test_the_caps_hold() -> None:
    """R23, R52: five errors and how many more; so many characters for the whole text."""
    found = [Problem((f"field_{n}", "x" * n), "minimum", str(n)) for n in range(8)]
    text = texts.invalid_arguments(found)
    assert len(text.split("; ")) == 6
    assert text.endswith("; and 3 more")
    schema = {"additionalProperties": {"enum": ["member" * 5 + str(n) for n in range(50)]}}
    text = rejected(schema, {f"field_{n}": 1 for n in range(8)})
    assert 1_300 < len(text) <= 1_500
    assert text.endswith("…")
    caps = Caps(characters=80, shape_characters=80)
    one = rejected(prop({"pattern": "x" * 200}), {"a": "y"}, caps=caps, style="brief")
    assert one == "Invalid parameters: a: expected text matching " + "x" * 33 + "…"


def test_an_enum_says_how_many_members_it_leaves_out() -> None:
    [problem] = problems(prop({"enum": list(range(500))}), {"a": "x"})
    assert (len(problem.allowed), problem.more) == (400, 100)


def test_a_long_field_name_is_cut() -> None:
    text = errors({"additionalProperties": False}, {"x" * 10_000: 1})
    assert len(text) <= 100


JUNK = st.text("qwzjx0123456789", min_size=9, max_size=14).map(lambda text: f"SECRET-{text}")
VALUES = st.recursive(
    JUNK | st.integers(10**9, 10**12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=6,
)


def scalars(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for inner in value.values() for text in scalars(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in scalars(inner)]
    return [str(value)]


SCHEMAS: list[dict[str, Any]] = [
    EDIT,
    prop({"type": "boolean"}, required=["b"], additionalProperties=False),
    prop({"anyOf": [CIRCLE, SQUARE, {"type": "boolean"}]}),
    prop({"enum": ["red", "green"]}),
    prop({"const": "only"}),
    prop({"pattern": "^abc$", "maxLength": 3, "maximum": 3, "format": "date", "maxItems": 0}),
    prop({"not": {}}),
    prop({"propertyNames": {"maxLength": 0}, "uniqueItems": True, "contains": False}),
    {"additionalProperties": {"oneOf": [{"type": "boolean"}, {"type": "null"}]}},
]


@given(
    st.dictionaries(st.sampled_from([*EDIT["properties"], "a", "b"]), VALUES, max_size=4),  # type: ignore[misc]
    st.sampled_from(SCHEMAS),
    st.sampled_from(STYLES),
    st.sampled_from(["en", "zh"]),
)
def test_no_rejected_value_is_echoed(
    arguments: dict[str, Any], schema: dict[str, Any], style: str, locale: str
) -> None:
    """R25: it may be a secret."""
    found = problems(schema, arguments)
    text = texts.invalid_arguments(
        found, Wording(style=style, locale=locale), SchemaValidator(schema).shapes
    )
    for value in scalars(arguments):
        assert value not in text
    assert len(text) <= 1_500


def test_the_faulty_bfcl_calls_are_explained_shortly(shared_data: Path) -> None:
    """R52: near misses, so under 240 characters but for long lists of values."""
    lengths = []
    for line in (shared_data / "bfcl_calls.jsonl").read_text().splitlines():
        row = json.loads(line)
        schema = row["tool"]["input_schema"]
        found = problems(schema, row["arguments"])
        assert bool(found) is not row["valid"], row["id"]
        if not found:
            continue
        text = rejected(schema, row["arguments"])
        lengths.append(len(text))
        for problem in found:
            assert str(problem.path[0]) in text
            if not problem.is_optional and problem.kind == "enum":
                assert all(member in text for member in problem.allowed), text
    assert len(lengths) == 199
    assert sum(lengths) / len(lengths) < 160
    assert max(lengths) < 320


# Rejections of other kinds.


@pytest.mark.parametrize(
    ("name", "offered", "expected"),
    [
        ("fs_raed", ["bash", "fs_read"],
         "Tool 'fs_raed' not found. Did you mean 'fs_read'? Available tools: fs_read, bash."),
        ("zzz", ["bash"], "Tool 'zzz' not found. Available tools: bash."),
        ("zzz", [], "Tool 'zzz' not found. No tools are available."),
    ],
)  # fmt: skip
def test_an_unknown_tool(name: str, offered: list[str], expected: str) -> None:
    """R26."""
    assert texts.unknown_tool(name, offered) == expected


def test_a_call_without_a_name_is_told_the_names_there_are() -> None:
    assert texts.nameless(["bash", "fs_read"]) == (
        "The tool call has no name. Available tools: bash, fs_read."
    )
    assert texts.nameless(["a"], Wording(locale="zh")) == "该工具调用没有名称。可用的工具：a。"


def test_the_tools_that_fit_best_come_first_and_few_are_named() -> None:
    """R26: at most ten, in three hundred characters."""
    offered = [f"tool_{n}" for n in range(40)] + ["web_search", "search_orders", "searching"]
    text = texts.unknown_tool("search", offered)
    assert text.startswith("Tool 'search' not found. Available tools: ")
    first = text.partition("tools: ")[2].split(", ")[:3]
    assert set(first) == {"search_orders", "web_search", "searching"}
    assert text.count("tool_") + 3 == 10
    assert text.endswith(" and 33 more.")
    long = [f"a_tool_with_a_name_as_long_as_{n}_{'x' * 24}" for n in range(20)]
    for name in ("x" * 500, "y"):
        text = texts.unknown_tool(name, long)
        assert len(text) <= 300
        assert re.search(r"x and \d+ more\.$", text)


@pytest.mark.parametrize(
    "name",
    [
        "fs_read<|channel|>commentary",
        "fs_read<|end|>",
        "fs_read<｜tool▁sep｜>x",
        "fs_read</tool_call>",
        "fs_raed<|x|> json",
        "fs_read[/TOOL_CALLS]",
        "<|tool|>fs_read",
        "<tool_call>fs_read</tool_call>",
        "[TOOL_CALLS] fs_read",
        "functions.fs_read",
        "functions.fs_read<|end|>",
        "default_api:fs_read",
        "mcp__files__fs_read",
    ],
)
def test_special_tokens_are_no_part_of_a_name(name: str) -> None:
    text = texts.unknown_tool(name, ["bash", "fs_read", "commentary"])
    assert " Did you mean 'fs_read'? Available tools: " in text


@pytest.mark.parametrize("name", ["files.read", "a:b", "<|tool|>", "[END]", "a__b", ".", "x" * 500])
def test_another_name_behind_a_namespace_is_no_hint(name: str) -> None:
    assert "Did you mean" not in texts.unknown_tool(name, ["bash", "fs_read"])


ENDINGS: list[tuple[Outcome, str, str]] = [
    (failure(Code.RAISED, "boom", Executed.YES),
     "Error executing tool 't': boom", "执行工具 't' 出错：boom"),
    (failure(Code.RAISED, "'b'", Executed.YES, details={"exception": "builtins.KeyError"}),
     "Error executing tool 't': KeyError: 'b'", "执行工具 't' 出错：KeyError：'b'"),
    (failure(Code.RAISED, "Gone", Executed.YES, details={"exception": "shop.Gone"}),
     "Error executing tool 't': Gone", "执行工具 't' 出错：Gone"),
    (failure(Code.BAD_RESULT, "not JSON", Executed.YES),
     "Error executing tool 't': not JSON", "执行工具 't' 出错：not JSON"),
    (failure(Code.CRASHED, "exit 3", Executed.UNKNOWN),
     "Error executing tool 't': exit 3. It may have had effects: check before you repeat it.",
     "执行工具 't' 出错：exit 3。它可能已产生影响：重试前请先检查。"),
    (failure(Code.REPORTED, "no such order", Executed.YES), "no such order", "no such order"),
    (failure(Code.TIMEOUT, "", Executed.UNKNOWN),
     "Tool 't' timed out after 2.5 s and its worker has not answered. "
     "It may have had effects: check before you repeat it.",
     "工具 't' 在 2.5 秒后超时，执行它的进程尚未答复。它可能已产生影响：重试前请先检查。"),
    (failure(Code.TIMEOUT, "", Executed.UNKNOWN, worker="w-1"),
     "Tool 't' timed out after 2.5 s and was stopped. "
     "It may have had effects: check before you repeat it.",
     "工具 't' 在 2.5 秒后超时，已被停止。它可能已产生影响：重试前请先检查。"),
    (failure(Code.TIMEOUT, "its thread cannot be stopped", Executed.UNKNOWN),
     "Tool 't' timed out after 2.5 s but its thread cannot be stopped. "
     "It may have had effects: check before you repeat it.",
     "工具 't' 在 2.5 秒后超时，但 its thread cannot be stopped。"
     "它可能已产生影响：重试前请先检查。"),
    (failure(Code.TIMEOUT, "", Executed.UNKNOWN, silence=30.0),
     "Tool 't' was stopped: it gave no sign of life for 30 s. "
     "It may have had effects: check before you repeat it.",
     "工具 't' 在 30 秒内没有任何进展，已被停止。它可能已产生影响：重试前请先检查。"),
    (failure(Code.CANCELLED, "", Executed.NO),
     "Tool 't' was cancelled. It was not run.", "工具 't' 已取消。该调用未执行。"),
    (failure(Code.DENIED, "", Executed.NO),
     "Tool 't' was not run: it is not allowed here.", "工具 't' 未执行：此处不允许使用。"),
    (failure(Code.DENIED, "ask first", Executed.NO),
     "Tool 't' was not run: ask first.", "工具 't' 未执行：ask first。"),
    (failure(Code.DENIED, "ask first", Executed.YES),
     "Tool 't' gave no result: ask first. It may have had effects: check before you repeat it.",
     "工具 't' 没有结果：ask first。它可能已产生影响：重试前请先检查。"),
    (failure(Code.EXPIRED, "", Executed.NO),
     "Tool 't' gave no result: no worker started it in time. It was not run.",
     "工具 't' 没有结果：没有 worker 及时启动它。该调用未执行。"),
    (failure(Code.WORKER_LOST, "", Executed.UNKNOWN),
     "Tool 't' gave no result: the worker that ran it was lost. "
     "It may have had effects: check before you repeat it.",
     "工具 't' 没有结果：执行它的 worker 已丢失。它可能已产生影响：重试前请先检查。"),
    (failure(Code.INTERNAL, "", Executed.NO),
     "Tool 't' gave no result: the tool system had an internal fault. It was not run.",
     "工具 't' 没有结果：工具系统内部故障。该调用未执行。"),
    (failure(Code.UNKNOWN_TOOL, "Tool 't' not found.", Executed.NO),
     "Tool 't' not found.", "Tool 't' not found."),
    (failure(Code.DENIED, "changed", Executed.NO),
     "Tool 't' was not run: changed.", "工具 't' 未执行：changed。"),
    (failure(Code.INVALID_ARGUMENTS, "end is before start", Executed.NO, worker="w"),
     "Please rewrite the tool input with valid arguments. Errors: end is before start",
     "请使用有效参数重写工具输入。错误：end is before start"),
    (failure(Code.INVALID_ARGUMENTS, "", Executed.NO,
             problems=(Problem(("a",), "value", "Input should be a valid date", "string"),)),
     "Please rewrite the tool input with valid arguments. Errors: a: Input should be a valid date",
     "请使用有效参数重写工具输入。错误：a: Input should be a valid date"),
]  # fmt: skip


@pytest.mark.parametrize(("outcome", "english", "chinese"), ENDINGS)
def test_what_became_of_an_accepted_call(outcome: Outcome, english: str, chinese: str) -> None:
    """R11."""
    assert texts.failed("t", outcome, timeout=2.5) == english
    assert texts.failed("t", outcome, timeout=2.5, wording=Wording(locale="zh")) == chinese


@pytest.mark.parametrize(
    ("flaw", "english", "chinese"),
    [
        (Flaw(Code.UNPARSEABLE, "not_json.unclosed", {"at": 3, "of": 9, "near": '{"a": "b'}),
         "The arguments are not valid JSON: a string is never closed, at character 3 of 9, near "
         '`{"a": "b`. Send the call again with one JSON object, keys and strings in double quotes.',
         '参数不是有效的 JSON：有字符串没有闭合，位于第 3 个字符（共 9 个），附近为 `{"a": "b`。'
         "请重新发送该调用：一个 JSON 对象，键和字符串使用双引号。"),
        (Flaw(Code.UNPARSEABLE, "doubled_key", {"key": "{a}"}),
         "The key '{a}' appears twice in one object; send it once. Send the call again with one "
         "JSON object, keys and strings in double quotes.",
         "键 '{a}' 在同一对象中出现两次；请只发送一次。"
         "请重新发送该调用：一个 JSON 对象，键和字符串使用双引号。"),
        (Flaw(Code.TRUNCATED, "cut_off"),
         "The tool call was cut off by the output token limit. It was not run. Send it again, "
         "shorter, or in several smaller calls.",
         "该工具调用因输出 token 上限被截断。该调用未执行。"
         "请缩短后重新发送，或拆成几个较小的调用。"),
        (Flaw(Code.TOO_LARGE, "too_large", {"size": "2,000", "cap": "1,000"}),
         "The arguments are 2,000 bytes; at most 1,000 are accepted. Send less at once, or pass a "
         "reference to the data.",
         "参数共 2,000 字节；最多接受 1,000 字节。请一次少发一些，或传递数据的引用。"),
    ],
)  # fmt: skip
def test_a_call_that_could_not_be_read(flaw: Flaw, english: str, chinese: str) -> None:
    assert texts.flawed(flaw) == english
    assert texts.flawed(flaw, Wording(locale="zh")) == chinese


def test_what_was_assumed_is_told_in_both_languages() -> None:
    """R15."""
    zh = Wording(locale="zh")
    assert texts.made_up_id("t-1") == "The call had no usable id and was given the id 't-1'."
    assert texts.made_up_id("t-1", zh) == "该调用没有可用的 id，已给定 id 't-1'。"
    assert texts.text_repaired(["fence", "keys"]) == (
        "The arguments were not strict JSON (Markdown fence, keys without quotes) and were "
        "repaired."
    )
    assert texts.text_repaired(["fence", "keys"], zh) == (
        "参数不是严格的 JSON（Markdown 代码围栏、没有引号的键），已修正。"
    )


def test_the_other_rejections_in_both_languages() -> None:
    zh = Wording(locale="zh")
    assert texts.too_many_calls(64) == (
        "Only 64 tool calls are run in one turn and this one came after them. It was not run. "
        "Send it again in a later turn."
    )
    assert texts.too_many_calls(64, zh) == (
        "每轮只执行 64 个工具调用，此调用排在其后，未执行。请在之后的轮次重新发送。"
    )
    assert texts.no_response("no_choices", {}) == (
        "Please try again with valid format. The last response could not be read: the completion "
        "has no choices."
    )
    assert texts.no_response("malformed_call", {"why": "MALFORMED"}, zh) == (
        "请使用有效格式重试。无法读取上一个响应：其工具调用格式有误（MALFORMED）。"
    )
    assert texts.loop("t", FailureHistory(3, False)) == (
        "This call of 't' was not run: the same call has failed 3 times. Do not send it again. "
        "Change the arguments, use another tool, or tell the user what keeps failing."
    )
    assert texts.loop("t", FailureHistory(3, False), zh) == (
        "对 't' 的这次调用未执行：同一调用已失败 3 次。请勿再次发送。"
        "请更换参数、使用其他工具，或告知用户哪里一直失败。"
    )
    turns = FailureHistory(1, alternates=True)
    assert texts.loop("t", turns) == (
        "This call of 't' was not run: it and another call have been failing alternately. Do "
        "not send either again. Change the arguments, use another tool, or tell the user what "
        "keeps failing."
    )
    assert texts.loop("t", turns, zh) == (
        "对 't' 的这次调用未执行：它与另一个调用一直交替失败。请勿再次发送其中任何一个。"
        "请更换参数、使用其他工具，或告知用户哪里一直失败。"
    )
    assert texts.again(FailureHistory(3, False)) == (
        " This has failed 3 times: do not send it again. Change the call, use another tool, or "
        "tell the user what keeps failing."
    )
    assert texts.again(turns, zh) == (
        "此调用与另一个调用一直交替失败：请勿再次发送其中任何一个。"
        "请修改调用、使用其他工具，或告知用户哪里一直失败。"
    )
    assert texts.unknown_tool("x", ["a"], zh) == "找不到工具 'x'。可用的工具：a。"


BROKEN = problems(
    {
        "type": "array",
        "items": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
    },
    [{"id": "s3cret"}, {}],
)


@pytest.mark.parametrize(
    ("style", "locale", "text"),
    [
        ("default", "en",
         "Tool 'find' ran, but returned something other than it declares: "
         "0.id: expected integer, got string; 1.id: Required, expected integer. "
         "This is a fault of the tool, not of the arguments."),
        ("pointer", "en",
         "Tool 'find' ran, but returned something other than it declares: "
         "/0/id: must be integer; /1/id: must be present, expected integer. "
         "This is a fault of the tool, not of the arguments."),
        ("default", "zh",
         "工具 'find' 已运行，但返回的内容与其声明不符：0.id: 应为 integer，实际为 string; "
         "1.id: 必填，应为 integer。这是工具的问题，不是参数的问题。"),
    ],
)  # fmt: skip
def test_a_result_that_breaks_its_schema_is_reported_without_its_data(
    style: str, locale: str, text: str
) -> None:
    """R55: what is wrong, and that the tool is at fault."""
    outcome = failure(Code.BAD_RESULT, "for older versions", Executed.YES, problems=BROKEN)
    wording = Wording(style=style, locale=locale)
    assert texts.failed("find", outcome, timeout=5, wording=wording) == text


def test_of_a_result_with_many_faults_the_first_are_told() -> None:
    outcome = failure(Code.BAD_RESULT, "", Executed.YES, problems=BROKEN)
    told = texts.failed("find", outcome, timeout=5, wording=Wording(Caps(errors=1)))
    assert "declares: 0.id: expected integer, got string; and 1 more. This" in told

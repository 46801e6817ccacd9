"""Arguments: one object, certainly, or the reason why not (R15-R17)."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.cost import cost
from toolpool.contract.call import ToolCall
from toolpool.contract.outcome import Code
from toolpool.dispatcher.formats import arguments
from toolpool.dispatcher.formats.call_blocks import Reader
from toolpool.dispatcher.formats.stop_reasons import Ending, Handling
from toolpool.dispatcher.messages import texts

READER = Reader("turn", 2**20)
CUT_OFF = Reader("turn", 2**20, ending=Ending(Handling.CUT_OFF, "max_tokens"))
LIMIT = 200.0
"""Of what `cost` counts in; a megabyte takes up to a tenth of it."""


def read(raw: Any, **options: Any) -> ToolCall:
    return READER.call(0, id="c", name="look", raw=raw, **options)


def said_of(call: ToolCall) -> str:
    """What the model reads of a call that could not be read."""
    assert call.flaw is not None
    return texts.flawed(call.flaw)


@pytest.mark.parametrize("raw", [None, "", "  ", "null", " null\n", {}, "{}", b"{}", b""])
def test_absent_arguments_are_an_empty_object(raw: Any) -> None:
    """R15."""
    call = read(raw)
    assert (call.arguments, call.flaw, call.note) == ({}, None, None)


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        ([], "array"), ("[1]", "array"), ('"x"', "string"), ("1", "number"), ("1.5", "number"),
        ("true", "boolean"), (3, "number"), ([{"a": 1}], "array"),
    ],
)  # fmt: skip
def test_arguments_that_are_no_object_are_an_error(raw: Any, kind: str) -> None:
    assert said_of(read(raw)) == (
        f"The arguments must be one JSON object, not {kind}. Send the call again with one JSON "
        "object, keys and strings in double quotes."
    )


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ('{"a": 1, "a": 2}', "The key 'a' appears twice in one object; send it once"),
        ('{"b": {"a": 1, "a": 1}}', "The key 'a' appears twice in one object; send it once"),
        ("{'a': 1, 'a': 2,}", "not valid JSON"),
        ('{"\\ud800": 1, "\\ud800": 2}', "The key '?' appears twice"),
        ('{"a": \ud800', 'near `{"a": ?`'),
        ('{"a": NaN}', "NaN is not JSON; send a number or null"),
        ('{"a": -Infinity}', "-Infinity is not JSON; send a number or null"),
        ({"a": float("nan")}, "NaN and Infinity are not JSON; send a number or null"),
        ({"a": [float("inf"), None]}, "NaN and Infinity are not JSON; send a number or null"),
        ('{"a": "\\ud800"}', "A string in the arguments holds half of a surrogate pair"),
        ({"\udc00": 1}, "A string in the arguments holds half of a surrogate pair"),
        ('{"a":' * 65 + "1" + "}" * 65, "nested more than 64 levels deep"),
        ('{"a":' * 100_000, "nested more than 64 levels deep"),
        ({"a": object()}, "The arguments hold a value that JSON does not have"),
        ('{"a": ' + "9" * 5000 + "}", "too many digits"),
        (b'{"a": "\xff"}', "The arguments are not valid UTF-8"),
    ],
)
def test_what_no_tool_can_be_given(raw: Any, said: str) -> None:
    """R16: a clear result, and nothing crashes."""
    call = read(raw)
    assert call.arguments is None
    assert call.flaw is not None
    assert call.flaw.code is Code.UNPARSEABLE
    assert said in said_of(call)


def test_64_levels_are_taken() -> None:
    assert read('{"a":' * 64 + "1" + "}" * 64).flaw is None


def test_too_large_arguments_say_how_large() -> None:
    reader = Reader("turn", 100)
    for raw in ('{"a": "' + "x" * 200 + '"}', {"a": "x" * 200}, "{'a': '" + "x" * 200 + "'}"):
        call = reader.call(0, id="c", name="look", raw=raw)
        assert call.flaw is not None
        assert call.flaw.code is Code.TOO_LARGE
        assert re.search(r"\d+ bytes; at most 100 are accepted", said_of(call))


@pytest.mark.parametrize(
    ("raw", "values", "what"),
    [
        ('```json\n{"a": 1}\n```', {"a": 1}, "Markdown fence"),
        ('```\n{"a": 1}\n```', {"a": 1}, "Markdown fence"),
        ('````JSON {"a": 1}```', {"a": 1}, "Markdown fence"),
        ('{"a": 1}\n```', {"a": 1}, "Markdown fence"),
        ('```json\n{"a": "```py\\nx\\n```"}\n```', {"a": "```py\nx\n```"}, "Markdown fence"),
        ('Here it is: ```json {"a": 1} ``` Done.', {"a": 1}, "text around the object"),
        ('{"a": [1, 2,], "b": {"c": 1,},}', {"a": [1, 2], "b": {"c": 1}},
         "a comma before a closing bracket"),
        ("{'a': 'it is \"so\"'}", {"a": 'it is "so"'}, "single quotes"),
        ("{'a': 'it\\'s', 'b': '\\\\'}", {"a": "it's", "b": "\\"},
         "single quotes, \\' for an apostrophe"),
        ('{"a": "it\\\'s"}', {"a": "it's"}, "\\' for an apostrophe"),
        ('{a: 1, $b_2 : {c: 2}}', {"a": 1, "$b_2": {"c": 2}}, "keys without quotes"),
        ('{"a": True, "b": FALSE, "c": None}', {"a": True, "b": False, "c": None},
         "True, False or None for true, false or null"),
        ('{"a": "one\ntwo\tthree"}', {"a": "one\ntwo\tthree"},
         "line breaks or tabs inside a string"),
        ("{'a': 'one\r\ntwo'}", {"a": "one\r\ntwo"},
         "single quotes, line breaks or tabs inside a string"),
        ('{"a": 1 /* one */, // two\n "b": "// no"}', {"a": 1, "b": "// no"}, "comments"),
        ('{\\"a\\": \\"b\\\\n\\"}', {"a": "b\n"}, "escaped quotes"),
        ('"{\\"a\\": 1}"', {"a": 1}, "an object inside a string"),
        ("'{\"a\": 1}'", {"a": 1}, "single quotes, an object inside a string"),
        ('```\n{"a": "json b"}\n```', {"a": "json b"}, "Markdown fence"),
        ('\ufeff{"a": 1,}', {"a": 1}, "a comma before a closing bracket"),
        ('\ufeff{"a": 1}', {"a": 1}, "white space that JSON does not have"),
        ('\u00a0{"a": 1}\u2003', {"a": 1}, "white space that JSON does not have"),
    ],
)  # fmt: skip
def test_what_certainly_means_one_object_is_taken_with_a_note(
    raw: str, values: Any, what: str
) -> None:
    call = read(raw)
    assert call.arguments == values
    assert call.flaw is None
    assert call.note == f"The arguments were not strict JSON ({what}) and were repaired."


@pytest.mark.parametrize(
    "raw",
    [
        '{"a": 1',  # never closed for the model
        '{"a": [1, 2}',
        '{"a" 1}',
        '{"a": 1 "b": 2}',
        '{"a": x}',
        '{"a": x y}',
        '{"a": "x" "y"}',  # Python would join them
        "{'a': 'x' 'y'}",
        '{"a": [1 2]}',
        '{"a": "say "hi" now"}',
        '{"a": 1}{"a": 2}',
        '{"a": 1} {"b": 2}',
        '{"a": 1}}',
        '[{"a": 1}',
        'text {"a": 1}',
        '```json\n{"a": 1}\n``` and ```json\n{"b": 1}\n```',
        '[see] ```json\n{"a": 1}\n```',
        '```json\n[1]\n```',
        '```json\n{"a": 1\n```',
        '```{"a": 1}',
        '{"a": 1,,}',
        '{,}',
        '{"a": ,}',
        '{"a": [,]}',
        '{"a": 0x10}',
        '{"a": 1_000}',
        '{"a": .5}',
        '{"a": 5.}',
        '{"a": +1}',
        '{"a": 1/3}',
        '{"a": (1, 2)}',
        "{'a', 'b'}",
        '{1: "a"}',
        '{"a": "\\d+"}',  # which escape was meant, and of its neighbours?
        "{'a': '\\x41'}",
        '{"a": "\x00"}',
        '{"a": undefined}',
        '{"a": tRue}',
        '{"a": 1 # one\n}',
        '{"a": 1 // one }',
        '{"a": 1 /* one }',
        "{'a': 1, 'a': 2}",
        "{“a”: 1}",
        "True",
        "Null",
        '"[1]"',
        '"\\"{\\\\\\"a\\\\\\": 1}\\""',
    ],
)  # fmt: skip
def test_what_has_to_be_guessed_is_not(raw: str) -> None:
    call = read(raw)
    assert call.arguments is None
    assert call.flaw is not None
    assert call.flaw.code is Code.UNPARSEABLE


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (
            '{"path": "a.txt", "limit": 1',
            "it ends too early, before the object is closed, at character 28 of 28, near "
            '`…, "limit": 1`',
        ),
        ('{"a": 1} {"b": 2}', "there is more after the first value, at character 9 of 17, near"),
        ('{"a": 1 "b": 2}',
         "a comma or a closing bracket is missing, at character 8 of 15, near `{\"a\": 1 "),
    ],
)  # fmt: skip
def test_text_that_is_not_json_says_where_it_broke(raw: str, said: str) -> None:
    """R25."""
    text = said_of(read(raw))
    assert f"The arguments are not valid JSON: {said}" in text
    assert len(text) < 240


def test_a_call_that_was_cut_off_is_never_repaired() -> None:
    """R17."""
    for raw in ("{'a': 1}", '{"a": 1,}', '```json\n{"a": 1}\n```', '{"a": 1', "", " ", None):
        flaw = CUT_OFF.call(0, id="c", name="look", raw=raw, is_last=True).flaw
        assert flaw is not None
        assert flaw.code is Code.TRUNCATED
    whole = CUT_OFF.call(0, id="c", name="look", raw='{"a": 1}', is_last=True)
    assert whole.arguments == {"a": 1}
    assert CUT_OFF.call(0, id="c", name="look", raw="{'a': 1}").arguments == {"a": 1}


def test_text_that_ends_inside_a_string_broke_off_where_no_stop_reason_says_otherwise() -> None:
    """R17, R46: the advice is that of a call that was cut off, not to add quotes."""
    raw = '{"path": "a.tx'
    assert said_of(read(raw)) == (
        "The tool call broke off before its end. It was not run. Send it again, shorter, or in "
        "several smaller calls."
    )
    ended = Reader("turn", 2**20, ending=Ending(Handling.RUN, "tool_calls"))
    assert "a string is never closed, at character 9 of 14, near `" + raw in said_of(
        ended.call(0, id="c", name="look", raw=raw)
    )


def scalars(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *(s for inner in value.values() for s in scalars(inner))]
    return [s for inner in value for s in scalars(inner)] if isinstance(value, list) else [value]


def test_every_recorded_malformed_text_is_read_or_refused(shared_data: Path) -> None:
    """R15, R16: none crashes, none is guessed: nothing in a repaired object is not in the text."""
    lines = (shared_data / "malformed_arguments.jsonl").read_text().splitlines()
    repaired = refused = 0
    for line in lines:
        raw = json.loads(line)["arguments"]
        call = read(raw)
        if call.flaw is not None:
            refused += 1
            assert call.arguments is None
            assert call.flaw.code in (Code.UNPARSEABLE, Code.TRUNCATED)
            assert re.search(
                r"at character \d+ of \d+, near `|must be one JSON object, not|broke off before",
                said_of(call),
            )
        elif call.note is None:
            assert call.arguments == json.loads(raw if raw.strip() else "{}")
        else:
            repaired += 1
            held = raw.replace("\\", "")
            for scalar in scalars(call.arguments):
                text = scalar if isinstance(scalar, str) else json.dumps(scalar)
                assert text.lower().replace("\\", "") in held.lower()
            assert held.count("{") >= 1
    assert repaired + refused >= 190
    assert repaired >= 20


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=8,
)  # fmt: skip
OBJECTS = st.dictionaries(st.text(max_size=6), JSON_VALUES, max_size=4)


@given(OBJECTS)
def test_strict_json_is_taken_as_it_is(values: dict[str, Any]) -> None:
    text = json.dumps(values, ensure_ascii=True)
    call = read(text)
    assert (call.arguments, call.note) == (values, None)
    assert json.dumps(call.arguments) == text if "e+" not in text else True


@given(OBJECTS, st.sampled_from(["fence", "python", "comma", "twice", "breaks"]))
def test_a_repaired_object_is_the_one_that_was_meant(values: dict[str, Any], slip: str) -> None:
    strict = json.dumps(values)
    text = {
        "fence": f"```json\n{strict}\n```",
        "python": repr(values),
        "comma": strict[:-1] + ",}" if values else strict,
        "twice": json.dumps(strict),
        "breaks": json.dumps(values, ensure_ascii=False).replace("\\n", "\n"),
    }[slip]
    call = read(text)
    if call.flaw is not None:
        # Python writes some characters in escapes that JSON does not have; control characters too.
        assert slip in ("python", "breaks")
        assert "\\" in text or not text.isprintable()
    else:
        assert call.arguments == values


@given(st.text(alphabet="{}[]\",:'` \\/*\na1", max_size=40))
def test_no_text_crashes_and_nothing_is_read_that_another_reading_denies(text: str) -> None:
    call = read(text)
    assert (call.arguments is None) is (call.flaw is not None)
    try:
        strict = json.loads(text)
    except ValueError:
        return
    if isinstance(strict, dict) and call.flaw is None:
        assert call.arguments == strict


@pytest.mark.parametrize(
    "text",
    ["`" * 1_000_000, "``` " * 250_000, "```" + " " * 1_000_000, '{"a": "' + "\\" * 1_000_000,
     "{'" * 400_000, "/*" * 500_000, "{'a': " + "[" * 500_000, "{a" * 300_000, '{\\"' * 300_000,
     "{" + "1," * 100_000],
)  # fmt: skip
def test_hostile_text_is_refused_in_linear_time(text: str) -> None:
    """One step of the interpreter for each character, and not as many as there are characters."""
    call, spent = cost(lambda: read(text[: 2**20]), most=LIMIT)
    assert call.flaw is not None
    assert spent < LIMIT


def test_doubled_keys_of_a_response_are_found_in_its_arguments() -> None:
    value, doubled = arguments.load('{"x": [{"a": 1, "a": 2}], "y": {"b": 1}}')
    assert doubled
    assert arguments.doubled_key(value) == "a"
    assert arguments.doubled_key(value["y"]) is None

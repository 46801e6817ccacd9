"""Whatever a host hands in: the calls in it, or one clear refusal (R13-R18, R40)."""

import copy
import json
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import Message, ToolUseBlock
from google.genai.types import GenerateContentResponse
from hypothesis import given, strategies as st
from openai.types.chat import ChatCompletion
from openai.types.responses import Response as OpenAIResponse

from toolpool import Dispatcher, InvalidResponse, tool
from toolpool.contract import encoding
from toolpool.contract.outcome import Code
from toolpool.dispatcher.formats import FORMATS, Response, response_reader
from toolpool.dispatcher.messages.wording import Wording
from toolpool.dispatcher.turn_result import TurnResult

SDK_MODELS: dict[str, Any] = {
    "anthropic": Message,
    "openai_chat": ChatCompletion,
    "openai_responses": OpenAIResponse,
    "gemini": GenerateContentResponse,
}


def read(response: Any, **options: Any) -> Response:
    return response_reader.read(response, max_bytes=2**20, **options)


@cache
def recorded(shared_data: Path) -> list[dict[str, Any]]:
    lines = (shared_data / "provider_responses.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def _nested(depth: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(depth):
        nested = [nested]
    return nested


@pytest.mark.parametrize("depth", [300, 700, 5_000])
async def test_what_is_nested_without_end_is_answered_and_not_raised(depth: int) -> None:
    message = {"role": "assistant", "content": _nested(depth)}
    circular: list[Any] = []
    circular.append(circular)

    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    async with Dispatcher.in_memory([look]) as dispatcher:
        for response in ("[" * depth + "]" * depth, _nested(depth), message, circular):
            turn = await dispatcher.dispatch(response)
            assert not any(result.ok for result in turn)
        assert await dispatcher.resume([message], session="s") == [message]


def test_every_recorded_response_is_known_by_its_shape(shared_data: Path) -> None:
    """R40: and is the same as data, as text, as bytes, and with its format named."""
    formats: Counter[str] = Counter()
    stops: Counter[str | None] = Counter()
    calls = 0
    for row in recorded(shared_data):
        assert response_reader.detect(row["response"]) == row["format"]
        found = read(row["response"])
        text = json.dumps(row["response"])
        assert read(text) == read(text.encode()) == found
        assert read(row["response"], format=row["format"]) == found
        assert [call.index for call in found.calls] == list(range(len(found.calls)))
        assert not any(call.note for call in found.calls)
        refused = {call.flaw.reason for call in found.calls if call.flaw}
        assert refused == ({"malformed_call"} if found.stop else set())
        stops[found.stop] += bool(found.stop)
        formats[found.format] += 1
        calls += len(found.calls)
    assert sum(formats.values()) == 294
    assert set(formats) == {*SDK_MODELS, "bedrock"}
    assert calls > 294
    assert +stops == {"UNEXPECTED_TOOL_CALL": 3}


def test_a_recorded_response_s_id_and_model_are_found(shared_data: Path) -> None:
    """R18, R43: where the provider says them."""
    for row in recorded(shared_data):
        found = read(row["response"])
        model = row["response"].get("model") or row["response"].get("modelVersion")
        assert found.model == model
        given = row["response"].get("id") or row["response"].get("responseId")
        request = row["response"].get("ResponseMetadata", {}).get("RequestId")
        assert found.id == (given or request)


def test_recorded_responses_are_the_same_as_the_sdk_s_objects(shared_data: Path) -> None:
    taken = 0
    for row in recorded(shared_data):
        model = SDK_MODELS.get(row["format"])
        if model is None:
            continue
        try:
            response = model.model_validate(row["response"])
        except ValueError:  # recorded with an older release of the SDK
            continue
        found, plain = read(response), read(row["response"])
        assert found.format == plain.format
        assert [(c.name, c.arguments) for c in found.calls] == [
            (c.name, c.arguments) for c in plain.calls
        ]
        taken += 1
    assert taken > 150


@pytest.mark.parametrize(
    ("response", "format"),
    [
        ({"type": "message", "content": []}, "anthropic"),
        ({"role": "assistant", "content": [{"type": "text", "text": "x"}]}, "anthropic"),
        ({"choices": []}, "openai_chat"),
        ({"object": "chat.completion"}, "openai_chat"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "openai_chat"),
        ({"object": "response", "output": []}, "openai_responses"),
        ({"output": []}, "openai_responses"),
        ({"output": {"message": {"content": []}}}, "bedrock"),
        ({"role": "assistant", "content": [{"toolUse": {}}]}, "bedrock"),
        ({"candidates": []}, "gemini"),
        ({"prompt_feedback": {}}, "gemini"),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {}}, "mcp"),
        ([{"method": "tools/call"}, {"method": "tools/call"}], "mcp"),
        ([{"method": "tools/call"}, {"name": "a", "input": {}}], "bare"),
        ({"id": "c", "name": "a", "input": {}}, "bare"),
        ({"name": "a", "arguments": "{}"}, "bare"),
        ({"name": "a"}, "bare"),
        ([], "bare"),
        ({}, None),
        ({"content": "text"}, None),
        ({"name": "a", "version": 2}, None),
        ({"method": "tools/list"}, None),
        ({"error": {"message": "overloaded"}}, None),
        (None, None),
        (7, None),
        (True, None),
    ],
)
def test_a_format_is_known_by_its_shape(response: Any, format: str | None) -> None:
    assert response_reader.detect(response) == format


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ("null", "the response is of no known provider's form"),
        ('"{}"', "the response is of no known provider's form"),
        ({}, "the response is of no known provider's form"),
        ("", "the response is not JSON"),
        ("I cannot do that.", "the response is not JSON"),
        ('{"type": "message"', "the response is not JSON"),
        (b"\xff\xfe{}", "the response is not JSON"),
        ("[" * 100_000, "the response is not JSON"),
        ("9" * 5_000, "the response is not JSON"),
    ],
)
def test_what_is_no_response_is_one_refusal(response: Any, reason: str) -> None:
    """R14."""
    with pytest.raises(response_reader.UnreadableResponse) as caught:
        read(response)
    assert caught.value.format == "bare"
    assert str(caught.value) == (
        f"Please try again with valid format. The last response could not be read: {reason}."
    )
    with pytest.raises(response_reader.UnreadableResponse, match="请使用有效格式重试"):
        read(response, wording=Wording(locale="zh"))


@pytest.mark.parametrize("format", [name for name in FORMATS if not FORMATS[name].TAKES_LISTS])
@pytest.mark.parametrize("response", [[], [1], "null", "3", '"text"'])
def test_a_named_format_takes_no_other_kind_of_value(format: str, response: Any) -> None:
    with pytest.raises(response_reader.UnreadableResponse) as caught:
        read(response, format=format)
    assert caught.value.format == format


def test_a_format_that_does_not_exist_is_the_caller_s_mistake() -> None:
    with pytest.raises(ValueError, match="unknown format 'antropic': use one of .*bedrock"):
        read([], format="antropic")
    assert read({"name": "a"}, format="auto").format == "bare"


def test_a_list_of_sdk_objects_is_a_list_of_bare_calls() -> None:
    blocks = [ToolUseBlock(type="tool_use", id=f"t{n}", name="a", input={"n": n}) for n in (1, 2)]
    found = read(blocks)
    assert [(call.id, call.arguments) for call in found.calls] == [
        ("t1", {"n": 1}),
        ("t2", {"n": 2}),
    ]


@pytest.mark.parametrize("id", ["\ud800", "x" * 300])
def test_an_id_that_cannot_go_on_the_wire_has_one_stand_for_it(id: str) -> None:
    """R18: the same for the same id, so that the call can be asked again."""
    response = {"type": "message", "id": id, "content": []}
    first, second = read(response), read(copy.deepcopy(response))
    assert first.id == second.id is not None
    assert read({**response, "id": id + "y"}).id != first.id
    encoding.encode(first.id)


@pytest.mark.parametrize("id", ["", 7, ["r"], None])
def test_what_is_no_id_names_no_turn(id: Any) -> None:
    """R15, R18: the calls' own ids are made of something stable instead."""
    response = {"type": "message", "id": id, "content": [{"type": "tool_use", "name": "a"}]}
    first, second = read(response), read(copy.deepcopy(response))
    assert first.id is None
    assert first.calls[0].id == second.calls[0].id
    encoding.encode(first.calls[0].id)


def test_why_a_gemini_candidate_has_no_parts_is_said_of_the_sdk_s_object_too() -> None:
    response = {"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL"}]}
    for form in (response, GenerateContentResponse.model_validate(response)):
        with pytest.raises(
            response_reader.UnreadableResponse, match=r"malformed \(MALFORMED_FUNCTION_CALL\)"
        ):
            read(form)


def test_a_turn_that_the_caller_names_comes_first() -> None:
    response = {"type": "message", "id": "msg", "content": [{"type": "tool_use", "name": "a"}]}
    found = read(response, turn="mine")
    assert (found.id, found.calls[0].id) == ("mine", "mine-0")


def test_a_doubled_key_spoils_the_arguments_it_is_in_and_no_others() -> None:
    """R16: in text; plain data cannot have one."""
    text = (
        '{"type": "message", "id": "a", "id": "b", "content": ['
        '{"type": "tool_use", "id": "t1", "name": "x", "input": {"a": 1, "a": 2}},'
        '{"type": "tool_use", "id": "t2", "name": "x", "input": {"a": 1}}]}'
    )
    first, second = read(text).calls
    assert first.flaw is not None
    assert first.flaw.code is Code.UNPARSEABLE
    assert second.arguments == {"a": 1}


def test_numbers_that_are_no_json_spoil_their_call_only() -> None:
    """R16: Python reads them in a response's text."""
    text = (
        '[{"name": "x", "input": {"a": NaN}}, {"name": "x", "input": {"a": 1e999}}, {"name": "y"}]'
    )
    first, second, third = read(text).calls
    assert first.flaw is not None
    assert second.flaw is not None
    assert third.arguments == {}


@pytest.mark.parametrize("odd", ["\ud800", object(), float("inf"), float("nan")])
def test_what_an_sdk_object_cannot_say_in_json_costs_its_call_only(odd: Any) -> None:
    """R16: the SDK's own parser takes Infinity for a number."""
    block: dict[str, Any] = {"type": "tool_use", "name": "a"}
    message = Message.model_construct(
        type="message",
        content=[
            ToolUseBlock.model_construct(**block, id="1", input={"a": odd}),
            ToolUseBlock.model_construct(**block, id="2", input={"a": "b"}),
        ],
    )
    broken, good = read(message).calls
    assert broken.flaw is not None
    assert good.arguments == {"a": "b"}


GONE = object()
JUNK = [
    None, True, -1, 1e400, float("nan"), 10**30, "", "x", "\ud800", "{}", '{"a":', "null", [], {},
    [None], [[[]]], b"x", {"type": "tool_use"}, {"toolUse": {}}, {"functionCall": []}, GONE,
]  # fmt: skip


def spots(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place below a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, below in inner:
        yield (*path, key)
        if isinstance(below, (dict, list)):
            yield from spots(below, (*path, key))


def spoil(response: dict[str, Any], pick: int, junk: Any) -> None:
    """Put junk into one place of a response, or take away what is there."""
    places = list(spots(response))
    if not places:
        return
    *above, last = places[pick % len(places)]
    holder: Any = response
    for step in above:
        holder = holder[step]
    if junk is GONE:
        del holder[last]
    else:
        holder[last] = copy.deepcopy(junk)


def whether_sound(response: Any, format: str | None = None) -> bool:
    """Whether it is read; where it is, all of it can be put on the wire."""
    try:
        found = read(response, format=format)
    except response_reader.UnreadableResponse:
        return False
    for index, call in enumerate(found.calls):
        assert call.index == index
        assert (call.arguments is None) is (call.flaw is not None)
        encoding.encode([call.id, call.name, call.arguments, call.note])
        assert call.id
        assert call.name or call.flaw
    return True


@pytest.mark.long
def test_a_response_that_is_spoilt_anywhere_is_read_or_refused(shared_data: Path) -> None:
    """R14, R16: every kind of junk in every kind of place that a recorded response has."""
    seen = set()
    read_all = refused = 0
    for row in recorded(shared_data):
        for pick, path in enumerate(spots(row["response"])):
            place = (row["format"], *("*" if isinstance(step, int) else step for step in path))
            if place in seen:
                continue
            seen.add(place)
            for junk in JUNK:
                response = copy.deepcopy(row["response"])
                spoil(response, pick, junk)
                sound = whether_sound(response)
                read_all += sound
                refused += not sound
    assert len(seen) > 300
    assert read_all > refused > 100


@given(
    st.integers(0, 293),
    st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from(JUNK)), min_size=1, max_size=4),
    st.sampled_from([None, *FORMATS]),
)
def test_a_response_spoilt_in_many_places_is_read_or_refused(
    shared_data: Path, which: int, slips: list[tuple[int, Any]], format: str | None
) -> None:
    response = copy.deepcopy(recorded(shared_data)[which]["response"])
    for pick, junk in slips:
        spoil(response, pick, junk)
    whether_sound(response, format)


def test_an_sdk_s_object_is_read_without_its_warnings() -> None:
    """It may hold what the SDK's own types do not know, which is for nobody here to act on."""
    block = ToolUseBlock.model_construct(type="tool_use", id="t", name="a", input={}, caller=3)
    message = Message.model_construct(type="message", content=[block], stop_reason="tool_use")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [call] = read(message).calls
        assert TurnResult([], format="anthropic", response=message).assistant()
    assert call.name == "a"


@dataclass
class Turn:
    """A host's own."""

    kind: str = "turn"
    content: str = ""


@pytest.mark.parametrize("response", [Turn(), Turn], ids=["an object", "a class"])
def test_a_dataclass_of_the_host_is_the_host_s_mistake(response: Any) -> None:
    with pytest.raises(InvalidResponse):
        response_reader.read(response, max_bytes=2**20)


def test_a_stored_response_of_pydantic_ai_has_the_name_that_the_object_had() -> None:
    part = {"part_kind": "tool-call", "tool_call_id": "c", "tool_name": "look", "args": {"a": 1}}
    names = {
        response_reader.read(
            {"kind": "response", "parts": [part], "timestamp": at}, max_bytes=2**20
        ).id
        for at in ("2026-11-27T10:00:00Z", "2026-11-27T10:00:00+00:00")
    }
    assert len(names) == 1

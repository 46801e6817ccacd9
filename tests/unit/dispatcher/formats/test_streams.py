"""The events of a stream, collected, are the response that they make up (R49)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import RawMessageStreamEvent
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk
from pydantic import TypeAdapter

from tests.sdk_types import hold
from toolpool.contract.outcome import Code
from toolpool.dispatcher.formats import Response, response_reader, response_wrappers
from toolpool.dispatcher.turn_result import TurnResult

Events = list[dict[str, Any]]


def read(response: Any) -> Response:
    return response_reader.read(response, max_bytes=2**20)


def pieces(text: str) -> Iterator[str]:
    """As tokens come: of odd lengths, and an empty one first."""
    yield ""
    for start in range(0, len(text), 7):
        yield text[start : start + 7]


def anthropic_events(message: dict[str, Any]) -> Events:
    head = {**message, "content": [], "stop_reason": None, "stop_sequence": None}
    events: Events = [{"type": "message_start", "message": head}, {"type": "ping"}]
    for index, block in enumerate(message["content"]):
        empty = {"tool_use": {"input": {}}, "text": {"text": ""}}.get(block["type"], {})
        start = {**block, **empty}
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        deltas: Events = []
        if block["type"] == "tool_use":
            said = json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": p} for p in pieces(said)]
        elif block["type"] == "text":
            deltas = [{"type": "text_delta", "text": p} for p in pieces(block["text"])]
        events += [{"type": "content_block_delta", "index": index, "delta": d} for d in deltas]
        events.append({"type": "content_block_stop", "index": index})
    stop = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    usage = message.get("usage", {"output_tokens": 1})
    events.append({"type": "message_delta", "delta": stop, "usage": usage})
    return [*events, {"type": "message_stop"}]


def chat_chunks(completion: dict[str, Any]) -> Events:
    [choice, *_] = completion["choices"]
    message = choice["message"]
    deltas: Events = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in pieces(message.get("content") or "")]
    for index, call in enumerate(message.get("tool_calls") or []):
        name = {"name": call["function"]["name"], "arguments": ""}
        deltas.append({"tool_calls": [{"index": index, "id": call["id"], "type": "function",
                                       "function": name}]})  # fmt: skip
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            for piece in pieces(call["function"]["arguments"])
        ]
    chunk = {"id": completion.get("id") or "x", "object": "chat.completion.chunk", "created": 1,
             "model": completion.get("model") or "m"}  # fmt: skip
    parts = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    parts.append({"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]})
    return [{**chunk, "choices": [part]} for part in parts] + [{**chunk, "choices": []}]


def responses_events(response: dict[str, Any]) -> Events:
    begun = {**response, "output": [], "status": "in_progress"}
    events: Events = [{"type": "response.created", "response": begun}]
    for index, item in enumerate(response["output"]):
        place = {"output_index": index}
        events.append({"type": "response.output_item.added", **place, "item": item})
        if item["type"] == "function_call":
            events += [
                {"type": "response.function_call_arguments.delta", **place, "delta": piece}
                for piece in pieces(item["arguments"])
            ]
        events.append({"type": "response.output_item.done", **place, "item": item})
    return [*events, {"type": "response.completed", "response": response}]


MAKE = {
    "anthropic": anthropic_events,
    "openai_chat": chat_chunks,
    "openai_responses": responses_events,
}


@pytest.fixture(scope="module")
def recorded(shared_data: Path) -> list[tuple[str, dict[str, Any]]]:
    lines = (shared_data / "provider_responses.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [
        (row["format"], row["response"])
        for row in rows
        if row["format"] in MAKE and (row["format"] != "openai_chat" or _is_named(row["response"]))
    ]


def _is_named(completion: dict[str, Any]) -> bool:
    """Whether it says why it ended, as the last chunk of a stream does."""
    return bool(completion["choices"][0]["finish_reason"])


def test_a_collected_stream_is_the_response(recorded: list[tuple[str, dict[str, Any]]]) -> None:
    for form, response in recorded:
        events = MAKE[form](response)
        found, whole = read(events), read(response)
        assert (found.format, found.stop) == (form, None)
        assert [(c.id, c.name, c.arguments) for c in found.calls] == [
            (c.id, c.name, c.arguments) for c in whole.calls
        ]
        assert found.model == whole.model
        assert read(json.dumps(events)) == found
    assert len(recorded) > 150


def test_a_stream_that_ended_early_runs_nothing(
    recorded: list[tuple[str, dict[str, Any]]],
) -> None:
    """Wherever it was cut; what was whole by then is told that it was not run."""
    cuts = 0
    for form, response in recorded[::3]:
        events = MAKE[form](response)
        last = len(events) - (2 if form == "openai_chat" else 1)  # usage comes after the end
        for end in range(1, last):
            for call in read(events[:end]).calls:
                assert call.arguments is None
                assert call.flaw is not None
                assert call.flaw.code is Code.TRUNCATED
            cuts += 1
    assert cuts > 300


def test_the_sdk_s_own_accumulators_make_the_same(
    recorded: list[tuple[str, dict[str, Any]]],
) -> None:
    event_type: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    seen = set()
    for form, response in recorded[::5]:
        events = MAKE[form](response)
        if form == "anthropic":
            snapshot: Any = None
            buffers: dict[int, bytes] = {}
            for event in events:
                if event["type"] != "ping":
                    snapshot = accumulate_event(
                        event=event_type.validate_python(event),
                        current_snapshot=snapshot,
                        json_bufs=buffers,
                    )
            theirs = read(snapshot)
        elif form == "openai_chat":
            state: Any = ChatCompletionStreamState()
            for event in events:
                state.handle_chunk(ChatCompletionChunk.model_validate(event))
            theirs = read(state.current_completion_snapshot)
        else:
            continue
        assert [(c.id, c.name, c.arguments) for c in theirs.calls] == [
            (c.id, c.name, c.arguments) for c in read(events).calls
        ]
        seen.add(form)
    assert seen == {"anthropic", "openai_chat"}


def test_events_of_the_sdk_are_taken_as_they_come() -> None:
    block = {"type": "tool_use", "id": "t", "name": "a", "input": {"x": 1}}
    message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [block],
               "stop_reason": "tool_use", "stop_sequence": None,
               "usage": {"input_tokens": 1, "output_tokens": 1}}  # fmt: skip
    event_type: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    events = [
        event_type.validate_python(e) for e in anthropic_events(message) if e["type"] != "ping"
    ]
    [call] = read(events).calls
    assert (call.id, call.name, call.arguments) == ("t", "a", {"x": 1})


def test_interleaved_pieces_go_to_their_own_calls() -> None:
    """Parallel calls of Chat come in any order."""
    deltas = [
        {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "two", "arguments": '{"n":'}},
                        {"index": 0, "id": "a", "function": {"name": "one", "arguments": '{"n"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": " 2}"}}]},
    ]  # fmt: skip
    chunks = [
        {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}
        for delta in deltas
    ]
    chunks[-1]["choices"][0]["finish_reason"] = "tool_calls"  # type: ignore[index]
    assert [(c.id, c.name, c.arguments) for c in read(chunks).calls] == [
        ("a", "one", {"n": 1}), ("b", "two", {"n": 2}),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "odd",
    [
        [{"type": "message_start"}, {"type": "message_stop"}],
        [{"type": "message_start", "message": 3}, {"type": "content_block_delta", "delta": {}}],
        [{"type": "message_start"}, {"type": "content_block_start", "content_block": None}],
        [{"object": "chat.completion.chunk", "choices": [3, {"delta": {"tool_calls": [1]}}]}],
        [{"type": "response.created"}, {"type": "response.completed", "response": None}],
        [{"type": "response.created", "response": {"id": 1}}],
        [{"type": "message_start"}, {"type": "content_block_start", "index": "x"}],
        [{"type": "message_start"}, {"type": "content_block_delta", "index": [1], "delta": {}}],
        [
            {
                "object": "chat.completion.chunk",
                "choices": [{"index": {}, "delta": {"tool_calls": [{"index": "one"}]}}],
            }
        ],
    ],
)
def test_odd_events_hold_no_calls_to_run(odd: Events) -> None:
    found = read(odd)
    assert all(call.flaw is not None for call in found.calls)


def test_other_lists_are_no_streams() -> None:
    for other in ([], [{"name": "a", "input": {}}], [{"type": "odd"}], [{"method": "tools/call"}]):
        assert response_wrappers.opened(other) == other


def whole_anthropic() -> Events:
    block = {"type": "tool_use", "id": "t", "name": "a", "input": {"x": 1}}
    return anthropic_events(
        {"type": "message", "id": "m", "content": [block], "stop_reason": "tool_use"}
    )


@pytest.mark.parametrize(
    "spoil",
    [
        lambda events: events[1:],
        lambda events: events[:-1],
        lambda events: [e for e in events if e["type"] != "content_block_stop"],
        lambda events: [*events[:-1], {"type": "error", "error": {}}, events[-1]],
    ],
    ids=["no beginning", "no end", "an open block", "an error"],
)
def test_an_anthropic_stream_that_is_not_whole_runs_nothing(spoil: Any) -> None:
    [call] = read(spoil(whole_anthropic())).calls
    assert call.arguments is None


def test_strange_events_are_passed_over() -> None:
    strange = {"type": "something_new", "index": 0}
    [call] = read([strange, *whole_anthropic(), strange]).calls
    assert call.arguments == {"x": 1}
    response = {"object": "response", "id": "r", "status": "completed", "output": [
        {"type": "function_call", "call_id": "c", "name": "a", "arguments": "{}"}]}  # fmt: skip
    events = [{"type": "keepalive"}, *responses_events(response)]
    assert len(read(events).calls) == 1
    events[-1] = {"type": "response.completed", "response": {**response, "output": []}}
    assert len(read(events).calls) == 1, "what was done is there, though the end does not say so"


def pieces_of(*deltas: dict[str, Any], **more: Any) -> Events:
    made: Events = [{"object": "", "choices": []}]
    made += [{"choices": [{"index": 0, "delta": {"tool_calls": [delta]}}]} for delta in deltas]
    return [*made, {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}, more]


def test_calls_that_servers_give_one_index_or_none_are_told_apart_by_their_ids() -> None:
    for index in ({}, {"index": 0}):
        one = {**index, "id": "a", "function": {"name": "look", "arguments": '{"n"'}}
        more = {**index, "function": {"name": "look", "arguments": ": 1}"}}
        two = {**index, "id": "b", "function": {"name": "pay", "arguments": '{"n": 2}'}}
        calls = read(pieces_of(one, more, two)).calls
        assert [(c.id, c.name, c.arguments) for c in calls] == [
            ("a", "look", {"n": 1}), ("b", "pay", {"n": 2}),
        ]  # fmt: skip


def test_a_chat_stream_with_an_error_runs_nothing() -> None:
    piece = {"index": 0, "id": "a", "function": {"name": "look", "arguments": "{}"}}
    [call] = read(pieces_of(piece, error={"message": "overloaded"})).calls
    assert call.flaw is not None
    assert call.flaw.code is Code.TRUNCATED


def test_a_stream_goes_back_as_its_message() -> None:
    turn = TurnResult([], format="anthropic", response=whole_anthropic())
    [message] = turn.assistant()
    assert message["content"][0]["input"] == {"x": 1}
    hold("anthropic assistant", message)


def test_gemini_s_chunks_are_one_response() -> None:
    part = {"functionCall": {"name": "a", "args": {"x": 1}}}
    chunks: Events = [
        {"responseId": "r", "candidates": [{"content": {"parts": [{"text": "so"}]}}]},
        {"responseId": "r", "candidates": [{"content": {"parts": [part]}}]},
        {"responseId": "r", "candidates": [{"content": {"parts": []}, "finishReason": "STOP"}]},
    ]
    found = read(chunks)
    assert (found.format, found.id, found.stop) == ("gemini", "r", None)
    assert [call.arguments for call in found.calls] == [{"x": 1}]
    [call] = read(chunks[:-1]).calls
    assert call.arguments is None

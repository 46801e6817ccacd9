"""Every form reads every form's response, as dict, SDK object and text: no call is lost."""

import asyncio
import json
from typing import Any

import pytest
from anthropic.types import Message
from anthropic.types.beta.sessions import BetaManagedAgentsAgentCustomToolUseEvent
from google.genai.types import GenerateContentResponse, LiveServerMessage
from mcp.types import CallToolRequest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response as OpenAIResponse

from toolpool import Dispatcher, InvalidResponse, ToolpoolError, tool
from toolpool.dispatcher.formats import FORMATS, response_reader

ARGUMENTS = {"place": "Rome"}
TEXT = json.dumps(ARGUMENTS)
FUNCTION = {"name": "look", "arguments": TEXT}
CHAT_MESSAGE: dict[str, Any] = {
    "role": "assistant", "content": None,
    "tool_calls": [{"id": "c", "type": "function", "function": FUNCTION}],
}  # fmt: skip
ITEM = {"type": "function_call", "id": "i", "call_id": "c", "name": "look", "arguments": TEXT}
RESPONSE: dict[str, Any] = {
    "id": "resp_1", "object": "response", "status": "completed", "output": [ITEM],
}  # fmt: skip
PARTS = [{"functionCall": {"id": "c", "name": "look", "args": ARGUMENTS}}]
TOOL_USE = {"type": "tool_use", "id": "c", "name": "look", "input": ARGUMENTS}
BEDROCK_MESSAGE = {
    "role": "assistant",
    "content": [{"toolUse": {"toolUseId": "c", "name": "look", "input": ARGUMENTS}}],
}
LANGCHAIN_CALL = {"type": "tool_call", "id": "c", "name": "look", "args": ARGUMENTS}

RESPONSES: dict[str, list[Any]] = {
    "anthropic": [
        {"type": "message", "id": "m", "role": "assistant", "model": "x", "content": [TOOL_USE],
         "stop_reason": "tool_use"},
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}, TOOL_USE]},
        [TOOL_USE],
    ],
    "openai_chat": [
        {"id": "x", "object": "chat.completion", "created": 1, "model": "x",
         "choices": [{"index": 0, "finish_reason": "tool_calls", "message": CHAT_MESSAGE}]},
        CHAT_MESSAGE,
        {"role": "assistant", "content": None, "function_call": FUNCTION},
    ],
    "openai_responses": [RESPONSE, [ITEM]],
    "openai_realtime": [
        {"type": "response.done", "response": {**RESPONSE, "object": "realtime.response"}},
    ],
    "openai_agents": [
        {"object": "agent.session", "status": "requires_action", "required_actions": [
            {"type": "function_call", "call_id": "c", "turn_id": "t", "name": "look",
             "arguments": ARGUMENTS}]},
    ],
    "anthropic_agents": [
        {"type": "agent.custom_tool_use", "id": "c", "name": "look", "input": ARGUMENTS,
         "processed_at": "2026-11-01T10:00:00Z"},
    ],
    "gemini": [
        {"candidates": [{"content": {"role": "model", "parts": PARTS}, "finishReason": "STOP"}]},
    ],
    "gemini_interactions": [
        {"id": "i", "status": "requires_action", "steps": [
            {"type": "function_call", "id": "c", "name": "look", "arguments": ARGUMENTS}]},
    ],
    "gemini_live": [{"toolCall": {"functionCalls": [PARTS[0]["functionCall"]]}}],
    "bedrock": [
        {"output": {"message": BEDROCK_MESSAGE}, "stopReason": "tool_use"},
        BEDROCK_MESSAGE,
    ],
    "cohere": [
        {"id": "x", "finish_reason": "TOOL_CALL", "message": {**CHAT_MESSAGE, "tool_plan": "p"}},
    ],
    "ollama": [
        {"model": "m", "done": True, "done_reason": "stop", "message": {
            "role": "assistant", "content": "",
            "tool_calls": [{"function": {"name": "look", "arguments": ARGUMENTS}}]}},
    ],
    "langchain": [
        {"type": "ai", "id": "m", "content": "", "tool_calls": [LANGCHAIN_CALL]},
        {"content": "", "tool_calls": [LANGCHAIN_CALL], "invalid_tool_calls": []},
    ],
    "pydantic_ai": [
        {"kind": "response", "parts": [
            {"part_kind": "tool-call", "tool_call_id": "c", "tool_name": "look",
             "args": ARGUMENTS}]},
    ],
    "mcp": [
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call",
         "params": {"name": "look", "arguments": ARGUMENTS}},
    ],
    "bare": [
        {"id": "c", "name": "look", "input": ARGUMENTS},
        [{"id": "c", "name": "look", "input": ARGUMENTS}],
    ],
}  # fmt: skip
"""Responses with one call, by their form."""

SDK_OBJECTS: dict[str, Any] = {
    "anthropic": Message.model_validate(
        RESPONSES["anthropic"][0] | {"usage": {"input_tokens": 1, "output_tokens": 1}}
    ),
    "openai_chat": ChatCompletion.model_validate(RESPONSES["openai_chat"][0]),
    "openai_responses": OpenAIResponse.model_construct(**RESPONSE),
    "gemini": GenerateContentResponse.model_validate(RESPONSES["gemini"][0]),
    "gemini_live": LiveServerMessage.model_validate(RESPONSES["gemini_live"][0]),
    "mcp": CallToolRequest.model_validate(RESPONSES["mcp"][0]),
    "anthropic_agents": BetaManagedAgentsAgentCustomToolUseEvent.model_validate(
        RESPONSES["anthropic_agents"][0]
    ),
}

CASES = [
    pytest.param(own, response, id=f"{own}-{kind}{number}")
    for own, responses in RESPONSES.items()
    for number, plain in enumerate(responses)
    for kind, response in (("dict", plain), ("text", json.dumps(plain)))
] + [pytest.param(own, response, id=f"{own}-sdk") for own, response in SDK_OBJECTS.items()]

BARE_MESSAGE = ("openai_chat", CHAT_MESSAGE, "cohere")
"""The one response that two forms share: a chat message by itself."""


@pytest.mark.parametrize(("own", "response"), CASES)
def test_a_response_is_read_by_its_own_form(own: str, response: Any) -> None:
    for format in (None, "auto", own):
        found = response_reader.read(response, format=format, max_bytes=2**20)
        assert found.format == own
        assert [(call.name, call.arguments) for call in found.calls] == [("look", ARGUMENTS)]


@pytest.mark.parametrize(("own", "response"), CASES)
def test_a_response_read_as_another_form_is_an_error_that_names_both(
    own: str, response: Any
) -> None:
    plain = json.loads(response) if isinstance(response, str) else response
    for read_as in FORMATS.keys() - {own}:
        if (own, plain, read_as) == BARE_MESSAGE:
            [call] = response_reader.read(response, format=read_as, max_bytes=2**20).calls
            assert (call.name, call.arguments) == ("look", ARGUMENTS)
            continue
        with pytest.raises(response_reader.UnreadableResponse) as caught:
            response_reader.read(response, format=read_as, max_bytes=2**20)
        assert f"'{own}'" in str(caught.value)
        assert f"'{read_as}'" in str(caught.value)
        assert caught.value.format == own


@pytest.mark.parametrize("format", FORMATS)
def test_what_a_model_writes_in_its_text_or_arguments_is_no_form(format: str) -> None:
    quoted = json.dumps(RESPONSES[format][0])
    said = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": quoted}]}
    assert response_reader.read(said, max_bytes=2**20).calls == ()
    [call] = response_reader.read(
        {**said, "content": [{**TOOL_USE, "input": RESPONSES[format][0]}]}
        if isinstance(RESPONSES[format][0], dict)
        else {**said, "content": [TOOL_USE]},
        max_bytes=2**20,
    ).calls
    assert call.name == "look"


BLOCKS: dict[str, dict[str, Any]] = {
    "anthropic": TOOL_USE,
    "bedrock": BEDROCK_MESSAGE["content"][0],  # type: ignore[dict-item, index]
    "gemini": PARTS[0],
    "openai_responses": ITEM,
    "openai_chat": CHAT_MESSAGE["tool_calls"][0],
}
"""A call as one block, by the form that has it."""


def with_block(form: str, block: dict[str, Any]) -> Any:
    """A response of a form that holds text and this block where it has its own blocks."""
    text = {"type": "text", "text": "I look."}
    chat = {"role": "assistant", "content": [text, block]}
    return {
        "anthropic": {"type": "message", "role": "assistant", "content": [text, block]},
        "bedrock": {"output": {"message": {**chat, "content": [{"text": "I look."}, block]}}},
        "gemini": {"candidates": [{"content": {"role": "model", "parts": [block]}}]},
        "openai_chat": {"choices": [{"index": 0, "finish_reason": "stop", "message": chat}]},
        "openai_responses": {
            "object": "response",
            "output": [{"type": "message", "role": "assistant", "content": [block]}],
        },
        "cohere": {"finish_reason": "COMPLETE", "message": chat},
        "ollama": {"done": True, "message": chat},
    }[form]


@pytest.mark.parametrize("form", ["anthropic", "bedrock", "gemini", "openai_chat",
                                  "openai_responses", "cohere", "ollama"])  # fmt: skip
@pytest.mark.parametrize("foreign", BLOCKS)
def test_a_call_of_another_provider_inside_a_response_is_an_error_that_names_both(
    form: str, foreign: str
) -> None:
    if form == foreign or (foreign == "openai_chat" and form in ("cohere", "ollama")):
        return  # its own
    for format in (None, form):
        with pytest.raises(response_reader.UnreadableResponse) as caught:
            response_reader.read(with_block(form, BLOCKS[foreign]), format=format, max_bytes=2**20)
        assert f"'{foreign}'" in str(caught.value)


@pytest.mark.parametrize(
    ("response", "named"),
    [
        ([RESPONSES["anthropic"][0]], "anthropic"),
        ([json.dumps(RESPONSES["anthropic"][0])], None),
        ({**RESPONSES["anthropic"][0], "tool_calls": CHAT_MESSAGE["tool_calls"]}, "openai_chat"),
        ({**RESPONSES["openai_chat"][0], "output": [ITEM]}, "openai_responses"),
    ],
)
def test_no_part_of_a_response_of_two_forms_is_lost(response: Any, named: str | None) -> None:
    try:
        found = response_reader.read(response, max_bytes=2**20)
    except response_reader.UnreadableResponse as error:
        assert named is None or f"'{named}'" in str(error)  # noqa: PT017
    else:
        assert named is None
        assert all(call.flaw is not None for call in found.calls)
        assert found.calls


async def forgotten() -> None:
    """Was never awaited."""


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: None, "None"),
        (forgotten, "await"),
        (lambda: ValueError("refused"), "ValueError"),
        (lambda: 7, "int"),
        (lambda: 0.5, "float"),
        (lambda: True, "bool"),
        (lambda: forgotten, "function"),
        (lambda: asyncio, "module"),
        (lambda: object(), "object"),
        (lambda: {1, 2}, "set"),
    ],
)
async def test_what_no_model_can_have_sent_raises_at_once_and_says_what_it_was(
    make: Any, named: str
) -> None:
    @tool
    async def look(place: str) -> str:
        """Look."""
        return place

    response = make()
    async with Dispatcher.in_memory([look]) as dispatcher:
        with pytest.raises(InvalidResponse, match=named) as caught:
            await dispatcher.dispatch(response)
        with pytest.raises(InvalidResponse):
            dispatcher.check(response)
    assert isinstance(caught.value, ToolpoolError)
    assert isinstance(caught.value, ValueError)
    assert "refused" not in str(caught.value)
    if asyncio.iscoroutine(response):
        response.close()


@pytest.mark.parametrize("text", ["null", "7", '"a"', "not JSON", "[1", "{}"])
async def test_broken_text_is_answered_in_the_form_of_the_conversation(text: str) -> None:
    @tool
    async def look(place: str) -> str:
        """Look."""
        return place

    async with Dispatcher.in_memory([look]) as dispatcher:
        turn = await dispatcher.dispatch(text, format="anthropic")
        assert turn.error
        [message] = turn.messages()
        assert message["role"] == "user"
        assert message["content"][0]["type"] == "text"

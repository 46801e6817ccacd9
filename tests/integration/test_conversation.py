"""The self-correction helper with the SDKs' own clients, over HTTP to a local stand-in (R31)."""

import json
from typing import Any

import anthropic
import openai
import pytest

from tests.sdk_types import hold
from tests.standin import provider
from toolpool import Dispatcher, tool
from toolpool.contract.outcome import Code
from toolpool.conversation import (
    CorrectionFailed,
    anthropic_model,
    converse,
    openai_model,
    openai_responses_model,
)

KEYS = {"api_key": "none", "max_retries": 0, "timeout": 10.0}


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def message(*content: dict[str, Any], stop: str = "tool_use") -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": list(content),
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def use(id: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "add", "input": given}


def completion(arguments: str | None, id: str = "c1") -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": None if arguments else "5"}
    if arguments is not None:
        function = {"name": "add", "arguments": arguments}
        said["tool_calls"] = [{"id": id, "type": "function", "function": function}]
    choice = {"index": 0, "message": said, "finish_reason": "tool_calls" if arguments else "stop"}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt",
        "choices": [choice],
    }


def response(*output: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "gpt",
        "output": list(output),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "status": "completed",
    }


@pytest.mark.parametrize("client_class", [anthropic.Anthropic, anthropic.AsyncAnthropic])
async def test_the_anthropic_client(client_class: Any) -> None:
    script = [
        message({"type": "text", "text": "Let me add.", "citations": None}, use("t1", a=2)),
        message(use("t2", a=2, b=3)),
        message({"type": "text", "text": "5"}, stop="end_turn"),
    ]
    with provider(*script) as stand_in:
        client = client_class(base_url=stand_in.url, **KEYS)
        async with Dispatcher.in_memory([add]) as dispatcher:
            conversation = await converse(
                anthropic_model(client, model="claude", max_tokens=64),
                dispatcher,
                [{"role": "user", "content": "2 + 3?"}],
            )
        assert isinstance(conversation.response, anthropic.types.Message)
    assert [turn[0].code for turn in conversation.turns] == [Code.INVALID_ARGUMENTS, None]
    paths, bodies = zip(*stand_in.asked, strict=True)
    assert set(paths) == {"/v1/messages"}
    hold("anthropic tool", bodies[0]["tools"][0])
    [rejection] = bodies[1]["messages"][-1]["content"]
    hold("anthropic block", rejection)
    assert rejection["tool_use_id"] == "t1"
    assert "b: Required" in json.loads(rejection["content"])["error"]
    assert bodies[1]["messages"][1]["content"] == [
        {"type": "text", "text": "Let me add."},
        use("t1", a=2),
    ]
    [result] = bodies[2]["messages"][-1]["content"]
    assert (result["content"], result["is_error"]) == ("5", False)


@pytest.mark.parametrize("client_class", [openai.OpenAI, openai.AsyncOpenAI])
async def test_the_openai_client(client_class: Any) -> None:
    script = [completion('{"a": 2'), completion('{"a": 2, "b": 3}', "c2"), completion(None)]
    with provider(*script) as stand_in:
        client = client_class(base_url=stand_in.url, **KEYS)
        async with Dispatcher.in_memory([add]) as dispatcher:
            conversation = await converse(
                openai_model(client, model="gpt"), dispatcher, [{"role": "user", "content": "?"}]
            )
    assert [turn[0].code for turn in conversation.turns] == [Code.UNPARSEABLE, None]
    bodies = [body for _, body in stand_in.asked]
    hold("openai_chat tool", bodies[0]["tools"][0])
    hold("openai_chat", bodies[1]["messages"][-1])
    assert bodies[1]["messages"][-1]["tool_call_id"] == "c1"
    assert bodies[2]["messages"][-1]["content"] == "5"


@pytest.mark.parametrize("client_class", [openai.OpenAI, openai.AsyncOpenAI])
async def test_the_openai_responses_client(client_class: Any) -> None:
    call = {
        "type": "function_call",
        "id": "fc",
        "call_id": "c1",
        "name": "add",
        "status": "completed",
    }
    said = {
        "type": "message",
        "id": "m",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "5", "annotations": []}],
    }
    script = [
        response({**call, "arguments": '{"a": 2}'}),
        response({**call, "call_id": "c2", "arguments": '{"a": 2, "b": 3}'}),
        response(said),
    ]
    with provider(*script) as stand_in:
        client = client_class(base_url=stand_in.url, **KEYS)
        async with Dispatcher.in_memory([add]) as dispatcher:
            conversation = await converse(
                openai_responses_model(client, model="gpt"),
                dispatcher,
                [{"role": "user", "content": "?"}],
            )
    assert [turn[0].code for turn in conversation.turns] == [Code.INVALID_ARGUMENTS, None]
    bodies = [body for _, body in stand_in.asked]
    hold("openai_responses tool", bodies[0]["tools"][0])
    hold("openai_responses", bodies[1]["input"][-1])
    assert bodies[1]["input"][-2]["call_id"] == bodies[1]["input"][-1]["call_id"] == "c1"
    assert bodies[2]["input"][-1]["output"] == "5"


async def test_three_rejections_in_a_row_keep_the_messages() -> None:
    with provider(*[message(use(f"t{n}", a="x")) for n in range(3)]) as stand_in:
        client = anthropic.AsyncAnthropic(base_url=stand_in.url, **KEYS)
        async with Dispatcher.in_memory([add]) as dispatcher:
            with pytest.raises(CorrectionFailed, match="Failed after 3 attempts") as caught:
                await converse(
                    anthropic_model(client, model="claude", max_tokens=64),
                    dispatcher,
                    [{"role": "user", "content": "2 + 3?"}],
                )
    assert len(stand_in.asked) == 3
    assert len(caught.value.messages) == 7

"""What is answered, the SDKs' own runners and clients take and send in a second turn (R49)."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from anthropic import AsyncAnthropic
from google import genai
from openai import AsyncOpenAI

from toolpool import Dispatcher, tool
from toolpool.dispatcher.dispatch import Dispatcher as Connected

PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
ARGUMENTS = {"place": "Rome"}
TEXT = json.dumps(ARGUMENTS)
ASK: Any = {"role": "user", "content": "Where?"}


@tool
async def look(place: str) -> dict[str, str]:
    """Look at a place."""
    return {"seen": place}


@tool
async def picture() -> list[dict[str, str]]:
    """Take a picture."""
    return [{"type": "image", "data": PICTURE, "mimeType": "image/png"}]


class Api:
    """Stands in for a provider: says what it is told to, and keeps what it was sent."""

    def __init__(self, *said: dict[str, Any]) -> None:
        self._said = list(said)
        self.sent: list[Any] = []

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        """One response after the other."""
        self.sent.append(json.loads(request.content))
        return httpx2.Response(200, json=self._said[len(self.sent) - 1])

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx2.AsyncClient]:
        """What an SDK sends its requests with."""
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(self.answer)) as client:
            yield client


@pytest.fixture
async def dispatcher() -> AsyncIterator[Connected]:
    async with Dispatcher.in_memory([look, picture]) as made:
        yield made


def anthropic(*blocks: dict[str, Any], stop: str = "tool_use") -> dict[str, Any]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "usage": usage,
            "content": list(blocks), "stop_reason": stop, "stop_sequence": None}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Tool '.*' not found in tool runner")
async def test_anthropic_s_tool_runner_goes_on_with_the_answers(dispatcher: Connected) -> None:
    blocks: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "tool_use", "id": "a", "name": "look", "input": ARGUMENTS},
        {"type": "tool_use", "id": "b", "name": "picture", "input": {}},
        {"type": "tool_use", "id": "c", "name": "look", "input": {}},
    ]
    last = anthropic({"type": "text", "text": "In Rome."}, stop="end_turn")
    api = Api(anthropic(*blocks), last)
    async with api.client() as http:
        client = AsyncAnthropic(api_key="k", http_client=http)
        runner = client.beta.messages.tool_runner(model="m", max_tokens=9, messages=[ASK], tools=[])
        said = []
        async for message in runner:
            said.append(message)
            turn = await dispatcher.dispatch(message, session="s")
            if len(turn):
                runner.append_messages(*turn.assistant(), *turn.messages())
    assert [message.stop_reason for message in said] == ["tool_use", "end_turn"]
    # What the response goes back as is what the API said, so that it need not be sent again.
    assert api.sent[1]["thread"] == {"type": "continue", "previous_message_id": "msg_1"}
    [answered] = api.sent[1]["messages"]
    results = answered["content"]
    assert [(each["tool_use_id"], each["is_error"]) for each in results] == [
        ("a", False),
        ("b", False),
        ("c", True),
    ]
    assert results[1]["content"][0]["source"]["data"] == PICTURE


async def test_openai_s_chat_client_sends_the_answers(dispatcher: Connected) -> None:
    function = {"name": "look", "arguments": TEXT}
    calls = [{"id": "a", "type": "function", "function": function}]

    def completion(reason: str, **said: Any) -> dict[str, Any]:
        message = {"role": "assistant", "content": None, "refusal": None, **said}
        choice = {"index": 0, "finish_reason": reason, "message": message, "logprobs": None}
        return {"id": "x", "object": "chat.completion", "created": 1, "model": "m",
                "choices": [choice]}  # fmt: skip

    api = Api(completion("tool_calls", tool_calls=calls), completion("stop", content="In Rome."))
    async with api.client() as http:
        client = AsyncOpenAI(api_key="k", http_client=http)
        messages: list[Any] = [ASK]
        first = await client.chat.completions.parse(model="m", messages=messages)
        turn = await dispatcher.dispatch(first, session="s")
        messages += [*turn.assistant(), *turn.messages()]
        second = await client.chat.completions.parse(model="m", messages=messages)
    assert second.choices[0].message.content == "In Rome."
    assert api.sent[1]["messages"] == [
        ASK,
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": '{"seen":"Rome"}'},
    ]


@pytest.mark.parametrize("keeps", ["host", "provider"])
async def test_openai_s_responses_client_sends_the_answers(
    dispatcher: Connected, keeps: str
) -> None:
    shell = {"type": "shell_call", "id": "sh", "call_id": "b", "status": "completed",
             "action": {"commands": ["ls"], "timeout_ms": None, "max_output_length": 10},
             "environment": {"type": "local"}}  # fmt: skip
    call = {"type": "function_call", "id": "fc", "call_id": "a", "name": "look",
            "arguments": TEXT, "status": "completed"}  # fmt: skip
    thought = {"type": "reasoning", "id": "rs", "summary": []}
    base = {"object": "response", "created_at": 1, "model": "m", "status": "completed",
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}  # fmt: skip
    api = Api({**base, "id": "r1", "output": [thought, call, shell]},
              {**base, "id": "r2", "output": []})  # fmt: skip
    async with api.client() as http:
        client = AsyncOpenAI(api_key="k", http_client=http)
        first = await client.responses.parse(model="m", input="Where?")
        turn = await dispatcher.dispatch(first, session="s")
        if keeps == "host":
            items = [ASK, *turn.assistant(), *turn.messages()]
            second = await client.responses.parse(model="m", input=items)
        else:
            second = await client.responses.parse(
                model="m", input=turn.messages(), previous_response_id=first.id
            )
    assert second.id == "r2"
    *before, looked, shelled = api.sent[1]["input"]
    assert looked == {
        "type": "function_call_output", "call_id": "a", "output": '{"seen":"Rome"}',
    }  # fmt: skip
    assert (shelled["type"], shelled["call_id"]) == ("shell_call_output", "b")
    assert shelled["output"][0]["outcome"] == {"type": "exit", "exit_code": 1}
    assert [item.get("type") for item in before] == (
        [None, "reasoning", "function_call", "shell_call"] if keeps == "host" else []
    )


def gemini(*parts: dict[str, Any]) -> dict[str, Any]:
    content = {"role": "model", "parts": list(parts)}
    return {"responseId": "r", "candidates": [{"content": content, "finishReason": "STOP"}]}


async def _by_contents(client: Any, ask: dict[str, Any], turn: Any) -> Any:
    contents = [ask, *turn.assistant(), *turn.messages()]
    return await client.models.generate_content(model="m", contents=contents)


async def _by_chat(client: Any, ask: dict[str, Any], turn: Any) -> Any:
    chat = client.chats.create(model="m", history=[ask, *turn.assistant()])
    parts = turn.messages()[0]["parts"]  # of dicts it takes none in camelCase
    return await chat.send_message([genai.types.Part.model_validate(part) for part in parts])


@pytest.mark.parametrize("send_held", [_by_contents, _by_chat])
async def test_google_s_client_and_its_chat_send_the_answers(
    dispatcher: Connected, send_held: Callable[..., Any]
) -> None:
    call = {"functionCall": {"name": "look", "args": ARGUMENTS}, "thoughtSignature": "c2ln"}
    api = Api(gemini(call), gemini({"text": "In Rome."}))
    ask = {"role": "user", "parts": [{"text": "Where?"}]}
    async with api.client() as http:
        options = genai.types.HttpOptions(httpx_async_client=http)
        client = genai.Client(api_key="k", http_options=options).aio
        first = await client.models.generate_content(model="m", contents=ask)
        turn = await dispatcher.dispatch(first, session="s")
        second = await send_held(client, ask, turn)
    assert second.text == "In Rome."
    assert api.sent[1]["contents"] == [
        ask,
        {"role": "model", "parts": [call]},
        {"role": "user", "parts": [
            {"functionResponse": {"name": "look", "response": {"output": {"seen": "Rome"}}}}]},
    ]  # fmt: skip

"""The self-correction helper, with any async callable (R31)."""

import json
from typing import Any

import pytest

from toolpool import Dispatcher, tool
from toolpool.contract.outcome import Code
from toolpool.conversation import Conversation, CorrectionFailed, converse


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


counted: list[int] = []


@tool
async def count() -> int:
    """Count the calls."""
    counted.append(1)
    return len(counted)


def asks(name: str, arguments: Any, id: str = "t1") -> dict[str, Any]:
    block = {"type": "tool_use", "id": id, "name": name, "input": arguments}
    return {"type": "message", "role": "assistant", "content": [block], "stop_reason": "tool_use"}


def says(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "text", "text": text}]}


class Script:
    """A model that says what it is told to."""

    def __init__(self, *responses: Any) -> None:
        self.responses = list(responses)
        self.heard: list[list[dict[str, Any]]] = []
        self.offered: list[dict[str, Any]] = []

    async def __call__(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
        self.heard.append(list(messages))
        self.offered = tools
        return self.responses[len(self.heard) - 1]


START = [{"role": "user", "content": "What is 2 and 3?"}]


async def run(*responses: Any, **options: Any) -> tuple[Conversation, Script]:
    script = Script(*responses)
    async with Dispatcher.in_memory([add]) as dispatcher:
        return await converse(script, dispatcher, START, **options), script


async def test_a_rejected_call_is_corrected() -> None:
    conversation, script = await run(
        asks("add", {"a": 2}), asks("add", {"a": 2, "b": 3}, "t2"), says("5")
    )
    assert [turn[0].code for turn in conversation.turns] == [Code.INVALID_ARGUMENTS, None]
    assert conversation.turns[1][0].data == 5
    assert script.offered[0]["name"] == "add"
    [block] = script.heard[1][-1]["content"]
    assert block["is_error"]
    assert "b: Required" in json.loads(block["content"])["error"]
    assert [message["role"] for message in conversation.messages] == [
        "user", "assistant", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
    assert conversation.response == says("5")
    assert START == [{"role": "user", "content": "What is 2 and 3?"}]


async def test_three_rejections_in_a_row_end_it() -> None:
    wrong = asks("add", {"a": 2})
    with pytest.raises(CorrectionFailed, match="^Failed after 3 attempts$") as caught:
        await run(wrong, asks("sub", {}), {"type": "message"}, says("never"))
    messages = caught.value.messages
    assert messages[0] == START[0]
    assert "Please try again with valid format" in messages[-1]["content"][0]["text"]


async def test_only_rejections_in_a_row_count() -> None:
    wrong, right = asks("add", {"a": 2}), asks("add", {"a": 2, "b": 3})
    conversation, _ = await run(wrong, wrong, right, wrong, wrong, right, says("5"))
    assert len(conversation.turns) == 6
    with pytest.raises(CorrectionFailed, match="Failed after 1 attempts"):
        await run(wrong, attempts=1)


async def test_a_conversation_without_end_is_ended() -> None:
    right = asks("add", {"a": 2, "b": 3})
    with pytest.raises(CorrectionFailed, match="No end after 4 model calls") as caught:
        await run(*[right] * 9, model_calls=4)
    assert len(caught.value.messages) == 9


async def test_equal_responses_of_one_session_are_separate_turns() -> None:
    """R18: a response without an id, said twice, is run twice."""
    counted.clear()
    script = Script(asks("count", {}), asks("count", {}), says("2"))
    async with Dispatcher.in_memory([count]) as dispatcher:
        conversation = await converse(script, dispatcher, START, session="s")
    assert [turn[0].data for turn in conversation.turns] == [1, 2]


async def test_tools_that_are_not_offered_are_unknown() -> None:
    conversation, script = await run(
        asks("add", {"a": 1, "b": 1}), says("I have no tools"), only=[]
    )
    assert conversation.turns[0][0].code is Code.UNKNOWN_TOOL
    assert script.offered == []


async def test_a_paused_turn_goes_on() -> None:
    """R46: it goes back as it is, and the model is asked again."""
    paused = {"type": "message", "id": "p", "stop_reason": "pause_turn", "content": [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}]}  # fmt: skip
    conversation, _ = await run(paused, asks("add", {"a": 1, "b": 1}), says("2"))
    assert conversation.turns[0][0].ok
    assert conversation.messages[1]["content"] == paused["content"]
    assert conversation.messages[2]["role"] == "assistant"

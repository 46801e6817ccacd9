"""What a history, or what is noted of it, says of how a response ended holds as it is resumed."""

from typing import Any

import pytest

from toolpool import Dispatcher, tool

ran: list[str] = []
OWN = "call_8Zk3Qw7Lx2VbPq5Rt9Yn4W"
"""How an id begins that no provider gives twice."""


@tool(effects="read")
async def look(at: str) -> str:
    """Look at something."""
    ran.append(at)
    return f"saw {at}"


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


def anthropic(stop: str | None, *, id: str = OWN) -> dict[str, Any]:
    blocks = [
        {"type": "tool_use", "id": id + at, "name": "look", "input": {"at": at}} for at in "ab"
    ]
    return {
        "type": "message",
        "role": "assistant",
        "id": "m",
        "content": blocks,
        "stop_reason": stop,
    }


def langchain(stop: str | None) -> dict[str, Any]:
    calls = [
        {"type": "tool_call", "id": OWN + at, "name": "look", "args": {"at": at}} for at in "ab"
    ]
    said = {"response_metadata": {"finish_reason": stop}}
    return {"type": "ai", "id": "m", "content": "", "tool_calls": calls, **said}


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(
    ("message", "kept"),
    [
        (langchain("content_filter"), []),
        (langchain("length"), ["a"]),
        (anthropic("refusal"), []),
        (anthropic("max_tokens"), ["a"]),
        (anthropic("tool_use"), ["a", "b"]),
    ],
)
async def test_a_history_that_says_how_a_response_ended_is_believed(
    message: dict[str, Any], kept: list[str], *, is_known: bool
) -> None:
    async with Dispatcher.in_memory([look]) as dispatcher:
        expected = (await dispatcher.dispatch(message)).messages()
        ran.clear()
        if is_known:
            await dispatcher.dispatch(message, session="s")
        assert await dispatcher.resume([message], session="s") == [message, *expected]
    assert ran == kept


async def test_a_message_that_is_not_at_its_end_is_left_alone() -> None:
    message = anthropic("pause_turn")
    async with Dispatcher.in_memory([look]) as dispatcher:
        assert await dispatcher.resume([message], session="s") == [message]
    assert not ran


async def test_a_message_without_a_reason_is_not_taken_for_a_broken_off_one() -> None:
    """Whoever keeps a history may keep its form and not that."""
    async with Dispatcher.in_memory([look]) as dispatcher:
        await dispatcher.resume([anthropic(None)], session="s")
    assert ran == ["a", "b"]


def counted(form: str, stop: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A response with a call that others may be like, and how a history keeps it."""
    if form == "gemini":
        content = {
            "role": "model",
            "parts": [{"functionCall": {"name": "look", "args": {"at": "a"}}}],
        }
        return {
            "responseId": "r",
            "candidates": [{"content": content, "finishReason": stop}],
        }, content
    function = {"name": "look", "arguments": '{"at":"a"}'}
    call = {"id": "call_0", "type": "function", "function": function}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {"id": "r", "choices": [{"message": message, "finish_reason": stop}]}, message


@pytest.mark.parametrize(
    ("form", "stop", "whole"), [("gemini", "SAFETY", "STOP"), ("chat", "content_filter", "stop")]
)
async def test_equal_responses_none_of_which_was_run_need_not_be_told_apart(
    form: str, stop: str, whole: str
) -> None:
    """Its host has had the answer, and died before it kept that."""
    response, message = counted(form, stop)
    async with Dispatcher.in_memory([look]) as dispatcher:
        turn = await dispatcher.dispatch(response, session="s")
        assert await dispatcher.resume([message], session="s") == [message, *turn.messages()]
        assert not ran
        answered = [message, *turn.messages(), message]
        assert len(await dispatcher.resume(answered, session="s")) == 4
        assert ran == ["a"], "the second was never dispatched"
        await dispatcher.dispatch(counted(form, whole)[0], session="s", turn="other")
        await dispatcher.resume([message], session="s")
    assert ran == ["a"] * 3, "it may be either"

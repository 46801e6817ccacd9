"""One line in, one line out."""

import json
from typing import Any

import pytest

from tests.unit.cli.conftest import FakeDispatcher
from toolpool.cli.running.answer import answer_line
from toolpool.cli.running.lines import Line


async def answered(text: bytes | str, **asked: Any) -> list[dict[str, Any]]:
    raw = text.encode() if isinstance(text, str) else text
    answer = await answer_line(FakeDispatcher(), Line(1, raw, 0), **asked)  # type: ignore[arg-type]
    assert answer.text.endswith(b"]\n")
    assert answer.text.count(b"\n") == 1
    messages: list[dict[str, Any]] = json.loads(answer.text)
    return messages


async def test_an_anthropic_message_is_answered_by_one_user_message() -> None:
    block = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}
    messages = await answered(json.dumps({"type": "message", "content": [block]}))
    assert messages == [
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": '{"a":1}',
                    "is_error": False,
                }
            ],
        }
    ]


async def test_an_openai_completion_is_answered_by_a_message_a_call() -> None:
    calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        for i in range(2)
    ]
    messages = await answered(json.dumps({"choices": [{"message": {"tool_calls": calls}}]}))
    assert [message["tool_call_id"] for message in messages] == ["c0", "c1"]


async def test_a_bare_call_is_answered_by_its_payload() -> None:
    messages = await answered('{"id": "x", "name": "add", "input": {"a": 1}}')
    assert messages == [{"id": "x", "name": "add", "ok": True, "data": {"a": 1}}]


async def test_a_response_without_calls_needs_no_answer() -> None:
    assert await answered('{"type": "message", "content": [{"type": "text", "text": "hi"}]}') == []


@pytest.mark.parametrize("text", ["", "{", "null", "7", b"\xff\xfe{}", "{}", "[" * 100_000])
async def test_a_line_that_is_no_response_is_answered_by_asking_for_one(text: str | bytes) -> None:
    [message] = await answered(text)
    assert "Please try again" in message["error"]


async def test_a_broken_line_of_a_known_format_is_answered_in_it() -> None:
    [message] = await answered('{"nothing": 1}', format="anthropic")
    assert message["role"] == "user"


async def test_a_line_that_was_too_long_says_so() -> None:
    line = Line(3, b"", 0, too_long=True)
    answer = await answer_line(FakeDispatcher(), line)  # type: ignore[arg-type]
    assert answer.broken == "it is longer than 16 MiB"


async def test_half_of_a_surrogate_pair_is_still_json() -> None:
    [message] = await answered('{"id": "\\ud800", "name": "add", "input": {}}')
    assert message["id"]


async def test_a_session_makes_the_line_number_the_turn() -> None:
    fake = FakeDispatcher()
    for session in (None, "s"):
        line = Line(7, b'{"name": "add"}', 0)
        await answer_line(fake, line, session=session)  # type: ignore[arg-type]
    assert [asked["turn"] for asked in fake.asked] == [None, "line-7"]

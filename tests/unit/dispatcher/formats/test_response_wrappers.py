"""What a response may come in: a batch's line, a choice, or its parts alone (R49)."""

import json
from typing import Any

import pytest

from tests.sdk_types import hold
from toolpool import Dispatcher, tool
from toolpool.contract.outcome import Code
from toolpool.dispatcher.formats import response_reader
from toolpool.dispatcher.turn_result import TurnResult

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
ran: list[str] = []


@tool
async def look(place: str) -> Any:
    """Look at a place."""
    ran.append(place)
    return {"seen": place}


@tool
async def picture() -> Any:
    """Take a picture."""
    return [
        {"type": "text", "text": "here"},
        {"type": "image", "data": PNG, "mimeType": "image/png"},
    ]


async def turn_of(response: Any, **options: Any) -> TurnResult:
    ran.clear()
    async with Dispatcher.in_memory([look, picture]) as dispatcher:
        return await dispatcher.dispatch(response, **options)


BODY = {
    "object": "chat.completion", "id": "x", "choices": [{"finish_reason": "tool_calls", "message": {
        "role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {
            "name": "look", "arguments": '{"place": "Rome"}'}}]}}],
}  # fmt: skip
MESSAGE = {
    "type": "message", "id": "m", "stop_reason": "tool_use",
    "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {"place": "Rome"}}],
}  # fmt: skip
RESPONSE = {
    "object": "response", "id": "r", "status": "completed",
    "output": [{"type": "function_call", "call_id": "c", "name": "look",
                "arguments": '{"place": "Rome"}', "status": "completed"}],
}  # fmt: skip


BLOCK: Any = MESSAGE["content"][0]  # type: ignore[index]
ITEM: Any = RESPONSE["output"][0]  # type: ignore[index]
CHAT: Any = BODY["choices"][0]["message"]["tool_calls"][0]  # type: ignore[index]


class TestBatches:
    @pytest.mark.parametrize(
        ("line", "format"),
        [
            ({"custom_id": "1", "result": {"type": "succeeded", "message": MESSAGE}}, "anthropic"),
            ({"id": "b", "custom_id": "1", "error": None,
              "response": {"status_code": 200, "request_id": "r", "body": BODY}}, "openai_chat"),
            ({"custom_id": "1", "response": {"status_code": 200, "body": RESPONSE}},
             "openai_responses"),
        ],
    )  # fmt: skip
    async def test_a_line_is_the_response_in_it(self, line: dict[str, Any], format: str) -> None:
        for given in (line, json.dumps(line)):
            turn = await turn_of(given)
            assert (turn.format, ran, turn.ok) == (format, ["Rome"], True)
            assert len(turn.messages()) == 1
            assert turn.assistant()

    @pytest.mark.parametrize(
        ("line", "why"),
        [
            ({"custom_id": "1", "result": {"type": "errored", "error": {}}}, "errored"),
            ({"custom_id": "1", "result": {"type": "expired"}}, "expired"),
            ({"custom_id": "1", "response": None, "error": {"code": "batch_expired"}}, "error"),
            ({"custom_id": "1", "response": {"status_code": 400, "body": {"error": {}}}},
             "status 400"),
        ],
    )  # fmt: skip
    async def test_a_line_that_failed_asks_the_model_for_nothing(
        self, line: dict[str, Any], why: str
    ) -> None:
        turn = await turn_of(line)
        assert (list(turn), turn.error, turn.messages(), turn.stop) == ([], None, [], why)
        assert turn.assistant() == []


class TestParts:
    @pytest.mark.parametrize("whole", [BODY, MESSAGE, RESPONSE])
    async def test_the_calls_of_a_response_are_read_without_it(self, whole: dict[str, Any]) -> None:
        parts = (
            whole["content"] if "content" in whole
            else whole["output"] if "output" in whole
            else whole["choices"][0]["message"]["tool_calls"]
        )  # fmt: skip
        for given in (parts, parts[0], json.dumps(parts)):
            turn = await turn_of(given)
            assert (turn.format, ran) == (response_reader.detect(whole), ["Rome"])
            for message in turn.messages():
                hold(turn.format, message)

    async def test_a_response_of_parts_without_calls_has_none(self) -> None:
        for parts in (
            [{"type": "text", "text": "hi"}],
            [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": ""},
            ],
            [{"type": "reasoning", "summary": []}, {"type": "message", "content": []}],
            {"role": "assistant", "content": "hi"},
        ):
            turn = await turn_of(parts)
            assert (list(turn), turn.error) == ([], None)

    @pytest.mark.parametrize(
        ("mixed", "named"),
        [
            ([BLOCK, ITEM], "function_call beside tool_use"),
            ([BLOCK, CHAT], "function beside tool_use"),
            ([ITEM, CHAT], "function beside function_call"),
        ],
    )
    async def test_parts_of_several_providers_are_refused_by_name(
        self, mixed: list[Any], named: str
    ) -> None:
        """There is no conversation that they could be answered in; none is left out in silence."""
        for given in (mixed, mixed[::-1]):
            turn = await turn_of(given)
            assert ran == []
            assert f"of the type '{named}' is not known" in str(turn.error)
            assert turn.assistant() == []

    async def test_a_choice_alone_is_a_completion_of_it(self) -> None:
        choice = {"index": 0, **BODY["choices"][0]}  # type: ignore[dict-item]
        turn = await turn_of(choice)
        assert (turn.format, ran) == ("openai_chat", ["Rome"])

    @pytest.mark.parametrize(
        ("stop", "kept"), [("STOP", ["Rome"]), ("SAFETY", []), (None, ["Rome"])]
    )
    async def test_a_candidate_or_its_content_alone_is_a_response_of_it(
        self, stop: str | None, kept: list[str]
    ) -> None:
        part = {"functionCall": {"name": "look", "args": {"place": "Rome"}}}
        content = {"role": "model", "parts": [part]}
        given = content if stop is None else {"content": content, "finishReason": stop}
        for response in (given, json.dumps(given)):
            turn = await turn_of(response)
            assert (turn.format, ran, len(turn)) == ("gemini", kept, 1)
            assert turn.assistant() == [content]

    async def test_what_the_user_said_is_no_response_of_gemini_s(self) -> None:
        part = {"functionCall": {"name": "look", "args": {"place": "Rome"}}}
        await turn_of({"role": "user", "parts": [part]})
        assert ran == []

    @pytest.mark.parametrize("field", ["input", "arguments", "args", "parameters"])
    async def test_a_bare_call_s_arguments_have_several_names(self, field: str) -> None:
        await turn_of([{"name": "look", field: {"place": "Rome"}}])
        assert ran == ["Rome"]

    async def test_arguments_that_stand_elsewhere_are_not_taken_for_none(self) -> None:
        turn = await turn_of([{"name": "picture", "payload": {"x": 1}}])
        assert turn[0].code is Code.UNPARSEABLE
        partial = {"name": "look", "args": {"place": "Rome"}, "will_continue": True}
        turn = await turn_of([partial])
        assert (ran, turn[0].code) == ([], Code.TRUNCATED)

    async def test_a_call_of_an_unknown_type_is_not_run(self) -> None:
        call = {"id": "c", "type": "odd", "function": {
            "name": "look", "arguments": '{"place": "Rome"}'}}  # fmt: skip
        turn = await turn_of({"choices": [{"message": {"tool_calls": [call]}}]})
        assert ran == []
        assert "of the type 'odd'" in (turn[0].error or "")

    @pytest.mark.parametrize("kind", ["image", "tool_result", "server_tool_use", "mcp_tool_use"])
    async def test_an_object_of_another_type_is_no_bare_call(self, kind: str) -> None:
        block = {"type": kind, "id": "c", "name": "look", "input": {"place": "Rome"}}
        turn = await turn_of(block)
        assert ran == []
        assert f"an object of the type '{kind}' is not known here" in (turn.error or "")
        turn = await turn_of([block, {"name": "look", "input": {"place": "Oslo"}}])
        assert ran == ["Oslo"]
        assert f"An object of the type '{kind}' is not a tool call" in (turn[0].error or "")


def test_what_is_of_no_form_is_refused_whole() -> None:
    with pytest.raises(response_reader.UnreadableResponse, match="of no known provider's form"):
        response_reader.read({"nothing": 1}, max_bytes=100)

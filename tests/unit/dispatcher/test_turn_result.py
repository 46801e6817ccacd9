"""A turn's results as messages, and the response as it goes back before them."""

from typing import Any

import pytest
from anthropic.types import Message
from openai.types.chat import ChatCompletionMessageFunctionToolCall

from tests.sdk_types import hold
from toolpool import Dispatcher, tool
from toolpool.contract.outcome import Code
from toolpool.dispatcher.turn_result import TurnResult


@tool
async def add(a: int = 0, b: int = 0) -> int:
    """Add two numbers."""
    return a + b


async def turn_of(response: Any) -> TurnResult:
    async with Dispatcher.in_memory([add]) as dispatcher:
        return await dispatcher.dispatch(response)


FUNCTION = {"name": "add", "arguments": "{}"}


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (
            {"choices": [{"message": {"role": "assistant", "content": None, "annotations": [],
                                      "tool_calls": [{"id": "c", "function": FUNCTION}]}}]},
            [{"role": "assistant", "content": None,
              "tool_calls": [{"id": "c", "function": FUNCTION}]}],
        ),
        (
            {"object": "response", "output": [{"type": "reasoning"}, {"type": "message"}]},
            [{"type": "reasoning"}, {"type": "message"}],
        ),
        (
            {"candidates": [{"content": {"role": "model", "parts": []}}]},
            [{"role": "model", "parts": []}],
        ),
        ({"candidates": [{"finishReason": "SAFETY"}]}, []),
        (
            {"output": {"message": {"role": "assistant", "content": []}}},
            [{"role": "assistant", "content": []}],
        ),
        ({"nothing": 1}, []),
        ([{"name": "add"}], []),
        ("not json", []),
        ('{"choices": [{"message": {"content": "hello"}}]}',
         [{"role": "assistant", "content": "hello"}]),
    ],
)  # fmt: skip
async def test_what_the_model_said_goes_back_in_its_own_form(response: Any, expected: Any) -> None:
    assert (await turn_of(response)).assistant() == expected


ANSWERED = {
    "anthropic": (
        {"type": "message", "content": [{"type": "text", "text": "so"}, {
            "type": "tool_use", "name": "add", "input": {}}]},
        lambda said, told: said["content"][1]["id"] == told["content"][0]["tool_use_id"],
    ),
    "openai_chat": (
        {"choices": [{"message": {"role": "assistant", "tool_calls": [
            {"type": "function", "function": FUNCTION}]}}]},
        lambda said, told: said["tool_calls"][0]["id"] == told["tool_call_id"],
    ),
    "openai_responses": (
        {"object": "response", "output": [{
            "type": "function_call", "name": "add", "arguments": "{}"}]},
        lambda said, told: said["call_id"] == told["call_id"],
    ),
    "bedrock": (
        {"output": {"message": {"role": "assistant", "content": [
            {"toolUse": {"name": "add", "input": {}}}]}}},
        lambda said, told: said["content"][0]["toolUse"]["toolUseId"]
        == told["content"][0]["toolResult"]["toolUseId"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", ANSWERED)
async def test_a_call_without_an_id_goes_back_with_the_one_its_answer_names(form: str) -> None:
    """R15: or the provider finds no call for the answer."""
    response, agree = ANSWERED[form]
    turn = await turn_of(response)
    [said], [told] = turn.assistant(), turn.messages()
    assert turn.format == form
    assert agree(said, told)
    if form in ("anthropic", "bedrock"):
        hold("anthropic assistant" if form == "anthropic" else form, said)
        hold(form, told)
    if form == "openai_chat":
        hold("openai_chat assistant", said)


async def test_an_sdk_s_message_goes_back_without_what_the_sdk_filled_in() -> None:
    block = {
        "type": "tool_use", "id": "t", "name": "add", "input": {"a": 1},
        "caller": {"type": "code_execution_20250825", "tool_id": "srv"},
    }  # fmt: skip
    message = {
        "id": "m", "type": "message", "role": "assistant", "model": "m", "content": [block],
        "stop_reason": "tool_use", "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }  # fmt: skip
    turn = await turn_of(Message.model_validate(message))
    assert turn.assistant() == [{"role": "assistant", "content": [block]}]
    hold("anthropic assistant", turn.assistant()[0])


async def test_a_program_s_call_is_answered_with_the_bare_value_and_its_toolset() -> None:
    """R48."""
    uses: list[dict[str, Any]] = [
        {"type": "tool_use", "id": "a", "name": "add", "input": {},
         "caller": {"type": "code_execution_20260120", "tool_id": "srv"}},
        {"type": "tool_use", "id": "b", "name": "left_click", "input": {},
         "toolset_name": "computer"},
    ]  # fmt: skip
    turn = await turn_of({"type": "message", "content": uses})
    assert [result.name for result in turn] == ["add", "computer.left_click"]
    [message] = turn.messages()
    bare, other = message["content"]
    assert bare == {"type": "tool_result", "tool_use_id": "a", "content": "0", "is_error": False}
    assert other["toolset_name"] == "computer"
    hold("anthropic", message)


async def test_only_the_first_choice_s_calls_are_run() -> None:
    """R47: more choices are alternatives; each of their calls still has an answer."""
    choices = [
        {"message": {"tool_calls": [{"id": id, "type": "function", "function": FUNCTION}]}}
        for id in ("first", "second")
    ]
    turn = await turn_of({"choices": choices})
    assert [result.code for result in turn] == [None, Code.DENIED]
    assert [message["tool_call_id"] for message in turn.messages()] == ["first"]
    [other] = turn.messages(choice=1)
    assert other["tool_call_id"] == "second"
    assert "Only the calls of the response's first choice are run" in other["content"]
    candidates = [
        {"content": {"parts": [{"functionCall": {"name": "add", "args": {"a": a}}}]}}
        for a in (1, 2)
    ]
    turn = await turn_of({"candidates": candidates})
    assert [result.data for result in turn] == [1, None]
    assert turn.messages()[0]["parts"][0]["functionResponse"]["response"] == {"output": 1}


async def test_the_function_call_of_old_has_its_own_answer() -> None:
    """R47."""
    message = {"role": "assistant", "content": None, "function_call": FUNCTION}
    choice = {"message": message, "finish_reason": "function_call"}
    for response in ({"choices": [choice]}, message):
        turn = await turn_of(response)
        [answer] = turn.messages()
        assert answer == {"role": "function", "name": "add", "content": "0"}
        hold("openai_chat function", answer)
        [said] = turn.assistant()
        assert said["function_call"] == FUNCTION
        hold("openai_chat assistant", said)


async def test_what_an_api_refuses_does_not_go_back_to_it() -> None:
    """Nulls, and names that only an SDK has; what the model gave stays as it is."""
    item = {
        "type": "function_call", "call_id": "c", "name": "add", "arguments": "{}", "id": "f",
        "status": None, "caller": None, "async_": True, "parsed_arguments": None,
    }  # fmt: skip
    turn = await turn_of({"object": "response", "status": "completed", "output": [item]})
    [said] = turn.assistant()
    assert said == {
        "type": "function_call", "call_id": "c", "name": "add", "arguments": "{}", "id": "f",
        "async": True,
    }  # fmt: skip
    use = {"type": "tool_use", "id": "t", "name": "add", "input": {"a": None}, "caller": None}
    turn = await turn_of({"type": "message", "content": [use]})
    [message] = turn.assistant()
    assert message["content"] == [
        {"type": "tool_use", "id": "t", "name": "add", "input": {"a": None}}
    ]


async def test_an_sdk_s_object_inside_of_plain_data_is_read() -> None:
    call = ChatCompletionMessageFunctionToolCall.model_validate(
        {"id": "c", "type": "function", "function": FUNCTION}
    )
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    for response in (message, {"choices": [{"message": message}]}):
        turn = await turn_of(response)
        assert turn.ok
        assert turn[0].call_id == "c"
        assert turn.assistant()[0]["tool_calls"][0]["id"] == "c"


async def test_an_id_that_is_no_unicode_does_not_raise() -> None:
    use = {"type": "tool_use", "id": "\ud800", "name": "add", "input": {}}
    async with Dispatcher.in_memory([add]) as dispatcher:
        turn = await dispatcher.dispatch(
            {"type": "message", "id": "m", "content": [use]}, session="s"
        )
    assert turn.ok


@pytest.mark.parametrize(
    "odd",
    [
        {"candidates": [1]}, {"candidates": {}}, {"candidates": "x"}, {"choices": {"a": 1}},
        {"choices": [1]}, {"choices": 3}, {"output": 3}, {"output": {"message": 3}},
        {"type": "message", "content": 3}, {"message": 3, "done": True}, {"steps": 3},
    ],
)  # fmt: skip
async def test_what_is_no_response_says_nothing(odd: Any) -> None:
    turn = await turn_of(odd)
    assert turn.assistant() == []


async def test_what_holds_itself_says_nothing() -> None:
    cyclic: dict[str, Any] = {"type": "message", "content": []}
    cyclic["self"] = cyclic
    assert TurnResult([], format="anthropic", response=cyclic).assistant() == []


@pytest.mark.parametrize("huge", [10**5000, [10**5000]], ids=["number", "list"])
async def test_a_huge_number_where_a_word_should_be_does_not_raise(huge: Any) -> None:
    for response in (
        {"type": "message", "content": [], "stop_reason": huge},
        {"choices": [{"message": {"tool_calls": [{"type": huge, "function": FUNCTION}]}}]},
        [{"type": huge, "name": "add", "input": {}}],
        {"custom_id": "1", "result": {"type": huge}},
    ):
        assert len(await turn_of(response)) in (0, 1)


async def test_a_choice_that_is_odd_costs_the_first_one_nothing() -> None:
    call = {"id": "c", "type": "function", "function": FUNCTION}
    first = {"index": 0, "message": {"role": "assistant", "tool_calls": [call]}}
    for odd in ({"index": 1, "message": {"tool_calls": 3}}, {"index": 1}):
        for choices in ([first, odd], [odd, first]):
            turn = await turn_of({"choices": choices})
            assert [result.call_id for result in turn] == ["c"]
            assert turn.ok


async def test_a_message_of_text_parts_has_its_calls() -> None:
    call = {"id": "c", "type": "function", "function": FUNCTION}
    content = [{"type": "text", "text": "so"}]
    turn = await turn_of({"role": "assistant", "content": content, "tool_calls": [call]})
    assert (turn.format, len(turn), turn.ok) == ("openai_chat", 1, True)


@pytest.mark.parametrize("kind", ["foo", "error", "human"])
async def test_an_object_of_an_unknown_type_runs_nothing(kind: str) -> None:
    call = {"id": "c", "type": "function", "function": FUNCTION}
    for holder in (
        {"tool_calls": [call]},
        {"output": [{"type": "function_call", "call_id": "c", **FUNCTION}]},
        {"content": [{"toolUse": {"toolUseId": "c", "name": "add", "input": {}}}]},
        {"method": "tools/call", "params": {"name": "add"}},
    ):
        turn = await turn_of({"type": kind, **holder})
        assert len(turn) == 0
        assert f"an object of the type '{kind}' is not known here" in (turn.error or "")


@pytest.mark.parametrize("status", ["cancelled", "failed", "odd", 3])
async def test_an_item_of_an_unknown_state_is_not_run(status: Any) -> None:
    item = {"type": "function_call", "call_id": "c", "status": status, **FUNCTION}
    turn = await turn_of({"object": "response", "status": "completed", "output": [item]})
    assert turn[0].code is Code.TRUNCATED

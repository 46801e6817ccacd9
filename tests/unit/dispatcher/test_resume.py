"""A history whose last calls have no answers is resumed: each is answered once (R50)."""

import copy
from typing import Any

import pytest
from anthropic.types import ToolUseBlock

from tests.sdk_types import hold, hold_item
from toolpool import Dispatcher, tool
from toolpool.contract.outcome import Code, Executed

ran: list[str] = []


@tool(effects="write")
async def send(to: str) -> str:
    """Send a mail."""
    ran.append(to)
    return f"sent to {to}"


@tool(effects="read")
async def look(at: str) -> str:
    """Look at something."""
    ran.append(at)
    return f"saw {at}"


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


ID = "call_8Zk3Qw7Lx2VbPq5Rt9Yn4W"
"""Of the kind that no provider gives twice."""
USER = {"role": "user", "content": "go"}


def anthropic(*names: str) -> tuple[Any, list[Any]]:
    blocks = [
        {"type": "tool_use", "id": f"{ID}{n}", "name": "send", "input": {"to": name}}
        for n, name in enumerate(names)
    ]
    response = {"type": "message", "id": "msg_1", "content": blocks, "stop_reason": "tool_use"}
    return response, [USER, {"role": "assistant", "content": blocks}]


def chat(*names: str) -> tuple[Any, list[Any]]:
    calls = [
        {"id": f"{ID}{n}", "type": "function",
         "function": {"name": "send", "arguments": f'{{"to": "{name}"}}'}}
        for n, name in enumerate(names)
    ]  # fmt: skip
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    choice = {"message": message, "finish_reason": "tool_calls"}
    return {"id": "x", "choices": [choice]}, [USER, message]


def responses(*names: str) -> tuple[Any, list[Any]]:
    output = [
        {"type": "reasoning", "id": "rs", "summary": []},
        *(
            {"type": "function_call", "call_id": f"{ID}{n}", "name": "send",
             "arguments": f'{{"to": "{name}"}}', "status": "completed"}
            for n, name in enumerate(names)
        ),
    ]  # fmt: skip
    response = {"object": "response", "id": "r", "status": "completed", "output": output}
    return response, [USER, *output]


def gemini(*names: str) -> tuple[Any, list[Any]]:
    parts = [
        {"functionCall": {"name": "send", "args": {"to": name}}, "thoughtSignature": f"c2ln{n:04}"}
        for n, name in enumerate(names)
    ]
    content = {"role": "model", "parts": parts}
    response = {"responseId": "r", "candidates": [{"content": content, "finishReason": "STOP"}]}
    return response, [{"role": "user", "parts": [{"text": "go"}]}, content]


def bedrock(*names: str) -> tuple[Any, list[Any]]:
    content = [
        {"toolUse": {"toolUseId": f"{ID}{n}", "name": "send", "input": {"to": name}}}
        for n, name in enumerate(names)
    ]
    message = {"role": "assistant", "content": content}
    response = {"output": {"message": message}, "stopReason": "tool_use",
                "ResponseMetadata": {"RequestId": "q"}}  # fmt: skip
    return response, [{"role": "user", "content": [{"text": "go"}]}, message]


def ollama(*names: str) -> tuple[Any, list[Any]]:
    calls = [
        {"id": f"{ID}{n}", "function": {"name": "send", "arguments": {"to": name}}}
        for n, name in enumerate(names)
    ]
    message = {"role": "assistant", "content": "", "tool_calls": calls}
    return {"message": message, "done": True, "done_reason": "stop"}, [USER, message]


def cohere(*names: str) -> tuple[Any, list[Any]]:
    _, [user, message] = chat(*names)
    message = {**message, "tool_plan": "I send."}
    return {"id": "c", "finish_reason": "TOOL_CALL", "message": message}, [user, message]


def langchain(*names: str) -> tuple[Any, list[Any]]:
    calls = [
        {"type": "tool_call", "id": f"{ID}{n}", "name": "send", "args": {"to": name}}
        for n, name in enumerate(names)
    ]
    message = {"type": "ai", "id": "run-1", "content": "", "tool_calls": calls}
    return message, [{"type": "human", "content": "go"}, message]


def pydantic_ai(*names: str) -> tuple[Any, list[Any]]:
    calls = [
        {
            "part_kind": "tool-call", "tool_call_id": f"{ID}{n}", "tool_name": "send",
            "args": {"to": name},
        }
        for n, name in enumerate(names)
    ]  # fmt: skip
    message = {
        "kind": "response", "provider_response_id": "resp-1", "finish_reason": "tool_call",
        "parts": [{"part_kind": "text", "content": "I send."}, *calls],
    }  # fmt: skip
    user = {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "go"}]}
    return message, [user, message]


FORMS = {
    "pydantic_ai": pydantic_ai,
    "anthropic": anthropic, "openai_chat": chat, "openai_responses": responses, "gemini": gemini,
    "bedrock": bedrock, "ollama": ollama, "cohere": cohere, "langchain": langchain,
}  # fmt: skip


def turn_of(form: str) -> str | None:
    """Ollama's responses have no id, so that a host names the turn."""
    return "turn-1" if form == "ollama" else None


@pytest.mark.parametrize("form", FORMS)
async def test_calls_that_were_dispatched_are_asked_for_again_and_not_run_twice(form: str) -> None:
    response, history = FORMS[form]("a", "b")
    before = copy.deepcopy(history)
    async with Dispatcher.in_memory([send]) as dispatcher:
        turn = await dispatcher.dispatch(response, session="s", turn=turn_of(form))
        resumed = await dispatcher.resume(history, session="s")
        again = await dispatcher.resume(resumed, session="s")
    assert turn.ok, turn[0]
    assert resumed == [*before, *turn.messages()]
    assert again == resumed, "a history that is complete stays as it is"
    assert history == before, "what is given is not changed"
    assert ran == ["a", "b"]


@tool(effects="write")
async def pay(amounts: list[float]) -> str:
    """Pay amounts."""
    ran.append(str(amounts))
    return f"paid {amounts}"


@pytest.mark.parametrize(
    ("sent", "stored"), [(25.0, 25), (25, 25.0), (-0.0, 0), (9007199254740991.0, 9007199254740991)]
)
async def test_a_whole_number_is_the_same_with_and_without_its_point(
    sent: float, stored: float
) -> None:
    """JavaScript stores 25.0 as 25, a protobuf `Struct` 25 as 25.0."""
    use = {"type": "tool_use", "id": f"{ID}0", "name": "pay"}
    asked, kept = ({**use, "input": {"amounts": [number, 0.5]}} for number in (sent, stored))
    response = {"type": "message", "id": "msg_1", "content": [asked], "stop_reason": "tool_use"}
    async with Dispatcher.in_memory([pay]) as dispatcher:
        turn = await dispatcher.dispatch(response, session="s")
        history = [USER, {"role": "assistant", "content": [kept]}]
        resumed = await dispatcher.resume(history, session="s")
    assert turn.ok
    assert len(ran) == 1
    assert resumed == [*history, *turn.messages()]


@pytest.mark.parametrize("form", FORMS)
async def test_only_what_has_no_answer_is_answered(form: str) -> None:
    response, history = FORMS[form]("a", "b", "c")
    async with Dispatcher.in_memory([send]) as dispatcher:
        turn = await dispatcher.dispatch(response, session="s", turn=turn_of(form))
        whole = turn.messages()
        if len(whole) == 1:  # blocks of one message
            [field] = [name for name in ("content", "parts") if name in whole[0]]
            some = [{**whole[0], field: whole[0][field][:1]}]
        else:
            some = whole[:1]
        resumed = await dispatcher.resume([*history, *some], session="s")
    assert ran == ["a", "b", "c"]
    told = str(resumed)
    assert [told.count(f"sent to {name}") for name in "abc"] == [1, 1, 1]
    if form == "anthropic":
        hold("anthropic", resumed[-1])
    if form == "openai_responses":
        for item in resumed[-3:]:
            hold_item(item)


@pytest.mark.parametrize("form", FORMS)
async def test_a_call_that_nothing_is_known_of_is_not_run_where_that_may_do_harm(form: str) -> None:
    _, history = FORMS[form]("a")
    async with Dispatcher.in_memory([send]) as dispatcher:
        resumed = await dispatcher.resume(history, session="s")
    assert ran == []
    assert '"executed":"unknown"' in str(resumed).replace("'", '"').replace(" ", "")


async def test_a_read_that_nothing_is_known_of_is_run() -> None:
    use = {"type": "tool_use", "id": "t", "name": "look", "input": {"at": "it"}}
    async with Dispatcher.in_memory([look]) as dispatcher:
        resumed = await dispatcher.resume([{"role": "assistant", "content": [use]}], session="s")
    assert ran == ["it"]
    assert "saw it" in str(resumed[-1])


async def test_answers_go_before_what_the_user_said_next() -> None:
    """Anthropic wants them at the head of the next message."""
    response, history = anthropic("a")
    async with Dispatcher.in_memory([send]) as dispatcher:
        await dispatcher.dispatch(response, session="s")
        said = {"role": "user", "content": "are you there?"}
        resumed = await dispatcher.resume([*history, said], session="s")
    assert len(resumed) == 3
    assert [block["type"] for block in resumed[2]["content"]] == ["tool_result", "text"]
    hold("anthropic assistant", resumed[2])


async def test_every_response_in_a_history_is_looked_at_in_order() -> None:
    first, said = anthropic("a")
    second, [_, later] = anthropic("b")
    second["id"] = "msg_2"
    async with Dispatcher.in_memory([send]) as dispatcher:
        for response in (first, second):
            await dispatcher.dispatch(response, session="s")
        between = {"role": "user", "content": [{"type": "text", "text": "and then"}]}
        resumed = await dispatcher.resume([*said, between, later], session="s")
    assert [m["role"] for m in resumed] == ["user", "assistant", "user", "assistant", "user"]
    assert "sent to a" in str(resumed[2])
    assert "sent to b" in str(resumed[4])
    assert ran == ["a", "b"]


async def test_the_same_call_of_two_turns_is_the_newer_one_s() -> None:
    """R18: ids repeat; the older turn has its answer in the history."""
    first, said = anthropic("a")
    async with Dispatcher.in_memory([send]) as dispatcher:
        for id in ("msg_1", "msg_2"):
            turn = await dispatcher.dispatch({**first, "id": id}, session="s")
        resumed = await dispatcher.resume([*said, *turn.messages(), said[1]], session="s")
    assert ran == ["a", "a"]
    assert str(resumed).count("sent to a") == 2


async def test_a_rejected_call_is_rejected_again() -> None:
    history = [USER, {"role": "assistant", "content": [
        {"type": "tool_use", "id": "t", "name": "send", "input": {}}]}]  # fmt: skip
    async with Dispatcher.in_memory([send]) as dispatcher:
        resumed = await dispatcher.resume(history, session="s")
    assert Code.INVALID_ARGUMENTS.value in str(resumed[-1])


async def test_a_history_without_calls_comes_back_as_it_is() -> None:
    async with Dispatcher.in_memory([send]) as dispatcher:
        for history in ([], [USER], [USER, {"role": "assistant", "content": "hello"}], ["odd", 3]):
            assert await dispatcher.resume(history, session="s") == history


async def test_what_cannot_be_resumed_is_the_host_s_mistake() -> None:
    async with Dispatcher.in_memory([send]) as dispatcher:
        with pytest.raises(ValueError, match="its provider keeps them"):
            await dispatcher.resume([USER], session="s", format="openai_agents")
        with pytest.raises(ValueError, match="unknown format"):
            await dispatcher.resume([USER], session="s", format="gpt")
        with pytest.raises(ValueError, match="session must not be empty"):
            await dispatcher.resume([USER], session="")


async def test_a_response_that_was_never_dispatched_has_no_other_s_results() -> None:
    """Equal calls in two responses of a conversation: only the first one was dispatched."""
    for form in ("gemini", "openai_chat", "bedrock"):
        ran.clear()
        response, history = FORMS[form]("a")
        async with Dispatcher.in_memory([send]) as dispatcher:
            turn = await dispatcher.dispatch(response, session="s")
            again = [*history, *turn.messages(), history[-1]]
            resumed = await dispatcher.resume(again, session="s")
        assert ran == ["a"]
        assert str(resumed[-1]).count("sent to a") == 0, resumed[-1]
        assert "unknown" in str(resumed[-1])


async def test_equal_responses_that_the_host_has_the_answers_of_are_not_known_again() -> None:
    """A history may have lost the first of three, of which the last was never dispatched."""
    calls = [{"id": "call_0", "type": "function",
              "function": {"name": "send", "arguments": '{"to": "a"}'}}]  # fmt: skip
    said = {"role": "assistant", "tool_calls": calls}
    async with Dispatcher.in_memory([send]) as dispatcher:
        for id in ("r1", "r2"):
            await dispatcher.dispatch({"id": id, "choices": [{"message": said}]}, session="s")
        for history in ([said], [said, said], [said, said, said]):
            resumed = await dispatcher.resume(history, session="s")
            assert all("unknown" in message["content"] for message in resumed[1::2])
    assert ran == ["a", "a"]


async def test_a_call_without_id_and_signature_is_not_known_again() -> None:
    """An equal one may have been cut from the history."""
    part = {"functionCall": {"name": "send", "args": {"to": "a"}}}
    content = {"role": "model", "parts": [part]}
    candidates = [{"content": content, "finishReason": "STOP"}]
    async with Dispatcher.in_memory([send]) as dispatcher:
        await dispatcher.dispatch({"responseId": "r", "candidates": candidates}, session="s")
        resumed = await dispatcher.resume([content], session="s")
    assert "unknown" in str(resumed[-1])
    assert ran == ["a"]


@pytest.mark.parametrize(
    "response",
    [
        {"promptFeedback": {"blockReason": "SAFETY"}, "responseId": "r"},
        {"object": "response", "id": "r", "status": "queued"},
        {"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL"}], "responseId": "r"},
        {"choices": [{"finish_reason": "content_filter"}], "id": "r"},
    ],
)
async def test_a_response_without_calls_is_noted_by_nothing(response: Any) -> None:
    async with Dispatcher.in_memory([send]) as dispatcher:
        turn = await dispatcher.dispatch(response, session="s")
    assert list(turn) == []


async def test_only_the_first_choice_s_calls_are_in_a_history() -> None:
    response, history = chat("a")
    other = copy.deepcopy(response["choices"][0])
    other["message"]["tool_calls"][0]["id"] = "other"
    response["choices"].append(other)
    async with Dispatcher.in_memory([send]) as dispatcher:
        turn = await dispatcher.dispatch(response, session="s")
        assert turn.ok
        assert await dispatcher.resume(history, session="s") == [*history, *turn.messages()]
    assert ran == ["a"]


@pytest.mark.parametrize(
    ("stop", "kept"),
    [
        ("refusal", []),
        ("invented", []),
        (None, []),
        ("max_tokens", ["a"]),
        ("tool_use", ["a", "b"]),
    ],
)
async def test_what_was_not_run_for_how_the_response_ended_is_not_run_now(
    stop: str | None, kept: list[str]
) -> None:
    """R46: the history does not say how it ended."""
    blocks = [
        {"type": "tool_use", "id": ID + at, "name": "look", "input": {"at": at}} for at in "ab"
    ]
    response = {"type": "message", "id": "m", "content": blocks, "stop_reason": stop}
    async with Dispatcher.in_memory([look]) as dispatcher:
        turn = await dispatcher.dispatch(response, session="s")
        resumed = await dispatcher.resume(turn.assistant(), session="s")
        assert resumed == [*turn.assistant(), *turn.messages()]
    assert ran == kept


async def test_answers_without_ids_stand_in_the_order_of_their_calls() -> None:
    _, history = gemini("a", "b")
    second = {"functionResponse": {"name": "send", "response": {"output": "mine"}}}
    async with Dispatcher.in_memory([send]) as dispatcher:
        resumed = await dispatcher.resume(
            [*history, {"role": "user", "parts": [second]}], session="s"
        )
    first, other = resumed[-1]["parts"]
    assert first["functionResponse"]["response"] == {"output": "mine"}
    assert "error" in other["functionResponse"]["response"]


async def test_sdk_objects_in_a_history_are_read_and_left_as_they_are() -> None:
    """As hosts append them: whole messages, or content blocks in a dict of their own."""
    block = ToolUseBlock(type="tool_use", id=ID, name="send", input={"to": "a"})
    message = {"role": "assistant", "content": [block]}
    async with Dispatcher.in_memory([send]) as dispatcher:
        turn = await dispatcher.dispatch({**message, "id": "m"}, session="s")
        assert turn.ok, turn
        resumed = await dispatcher.resume((USER, message), session="s")
    assert resumed == [USER, message, *turn.messages()]
    assert ran == ["a"]


async def test_a_call_that_is_not_allowed_now_is_not_said_never_to_have_run() -> None:
    response, history = anthropic("a")
    async with Dispatcher.in_memory([send, look]) as dispatcher:
        await dispatcher.dispatch(response, session="s")
        resumed = await dispatcher.resume(history, session="s", only=["look"])
        lost = await dispatcher.resume(anthropic("c")[1], session="s", only=["look"])
        [never] = await dispatcher.dispatch(anthropic("b")[0], session="s", only=["look"])
    assert '"executed":"unknown"' in str(lost[-1]), "of it nothing is known"
    assert '"executed":"unknown"' in str(resumed[-1])
    assert never.executed is Executed.NO
    assert ran == ["a"]


@pytest.mark.parametrize("messages", ["text", b"text", {"role": "user"}, 3])
async def test_messages_are_a_list(messages: Any) -> None:
    async with Dispatcher.in_memory([send]) as dispatcher:
        with pytest.raises(ValueError, match="messages must be a list"):
            await dispatcher.resume(messages, session="s")
        with pytest.raises(ValueError, match="resume needs the session"):
            await dispatcher.resume([], session=None)  # type: ignore[arg-type]

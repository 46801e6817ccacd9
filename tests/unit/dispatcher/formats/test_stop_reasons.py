"""Why a response ended decides what becomes of its calls; an unknown reason runs nothing (R46)."""

import logging
from collections.abc import Iterable, Iterator
from typing import Any, get_args

import botocore.session
import pytest
from anthropic.types import StopReason
from anthropic.types.beta import BetaStopReason
from google.genai._gaos.types.interactions.interaction import InteractionStatus
from google.genai.types import BlockedReason, FinishReason, GenerateContentResponse
from openai.types.beta import AgentSession
from openai.types.chat.chat_completion import Choice
from openai.types.realtime import RealtimeResponse
from openai.types.responses import ResponseStatus
from openai.types.responses.response import IncompleteDetails

from toolpool import Dispatcher, tool
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.result import ToolResult
from toolpool.dispatcher.formats import Response, response_reader
from toolpool.dispatcher.formats.stop_reasons import STOPS, Handling

ran: list[str] = []


@tool
async def note(text: str) -> str:
    """Note a text."""
    ran.append(text)
    return text


def anthropic(stop: str) -> dict[str, Any]:
    calls = [
        {"type": "tool_use", "id": text, "name": "note", "input": {"text": text}} for text in "ab"
    ]
    reason = None if stop == "null" else stop
    return {"type": "message", "content": calls, "stop_reason": reason}


def bedrock(stop: str) -> dict[str, Any]:
    uses = [{"toolUseId": text, "name": "note", "input": {"text": text}} for text in "ab"]
    content = [{"toolUse": use} for use in uses]
    return {"output": {"message": {"role": "assistant", "content": content}}, "stopReason": stop}


def openai_chat(stop: str) -> dict[str, Any]:
    blocks = [
        {"id": text, "type": "function", "function": {"name": "note", "arguments": arguments}}
        for text, arguments in (("a", '{"text": "a"}'), ("b", '{"text": "'))
    ]
    message = {"role": "assistant", "tool_calls": blocks}
    return {"object": "chat.completion", "choices": [{"message": message, "finish_reason": stop}]}


def openai_responses(stop: str) -> dict[str, Any]:
    status, _, reason = stop.partition(": ")
    output = [
        {"type": "function_call", "call_id": text, "name": "note", "arguments": arguments}
        for text, arguments in (("a", '{"text": "a"}'), ("b", '{"text": "'))
    ]
    details = {"reason": reason} if reason else None
    return {
        "object": "response",
        "output": output,
        "status": status,
        "incomplete_details": details,
    }


def gemini(stop: str) -> dict[str, Any]:
    parts = [{"functionCall": {"id": t, "name": "note", "args": {"text": t}}} for t in "ab"]
    return {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": stop}]}


def gemini_interactions(stop: str) -> dict[str, Any]:
    steps = [
        {"type": "function_call", "id": text, "name": "note", "arguments": {"text": text}}
        for text in "ab"
    ]
    return {"id": "i", "status": stop, "steps": steps}


def openai_realtime(stop: str) -> dict[str, Any]:
    status, _, reason = stop.partition(": ")
    inner = openai_responses(stop)
    details = {"type": status, **({"reason": reason} if reason else {})}
    response = {"object": "realtime.response", "status": status, "status_details": details}
    return {"type": "response.done", "response": {**response, "output": inner["output"]}}


def openai_agents(stop: str) -> dict[str, Any]:
    actions = [
        {"type": "function_call", "call_id": text, "turn_id": "t", "name": "note",
         "arguments": {"text": text}}
        for text in "ab"
    ]  # fmt: skip
    return {"object": "agent.session", "status": stop, "required_actions": actions}


def ollama(stop: str) -> dict[str, Any]:
    calls = [{"id": t, "function": {"name": "note", "arguments": {"text": t}}} for t in "ab"]
    done = stop != "not done"
    message = {"role": "assistant", "content": "", "tool_calls": calls}
    return {"message": message, "done": done, "done_reason": stop if done else None}


def cohere(stop: str) -> dict[str, Any]:
    [choice] = openai_chat(stop)["choices"]
    return {"id": "c", "finish_reason": stop, "message": choice["message"]}


def langchain(stop: str) -> dict[str, Any]:
    calls = [
        {"type": "tool_call", "id": text, "name": "note", "args": {"text": text}} for text in "ab"
    ]
    return {"type": "ai", "tool_calls": calls, "response_metadata": {"stop_reason": stop}}


def pydantic_ai(stop: str) -> dict[str, Any]:
    parts = [
        {"part_kind": "tool-call", "tool_call_id": text, "tool_name": "note",
         "args": {"text": text}}
        for text in "ab"
    ]  # fmt: skip
    return {"kind": "response", "parts": parts, "finish_reason": stop}


RESPONSES = {
    "pydantic_ai": pydantic_ai,
    "gemini_interactions": gemini_interactions,
    "openai_realtime": openai_realtime,
    "openai_agents": openai_agents,
    "ollama": ollama,
    "cohere": cohere,
    "langchain": langchain,
    "anthropic": anthropic,
    "bedrock": bedrock,
    "openai_chat": openai_chat,
    "openai_responses": openai_responses,
    "gemini": gemini,
}

TEXTS = ("openai_chat", "openai_responses", "openai_realtime", "cohere")
"""Their arguments are text, which shows by itself that the second one is not whole."""

CASES = [(form, stop, verdict) for form, stops in STOPS.items() for stop, verdict in stops.items()]


AS_ASKED = {
    "anthropic": {
        "model_context_window_exceeded": Handling.CUT_OFF, "max_tokens": Handling.CUT_OFF,
        "refusal": Handling.REFUSE, "pause_turn": Handling.LEAVE, "null": Handling.BROKEN_OFF,
    },
    "bedrock": {
        "model_context_window_exceeded": Handling.CUT_OFF, "max_tokens": Handling.CUT_OFF,
        "malformed_tool_use": Handling.MALFORMED, "guardrail_intervened": Handling.REFUSE,
        "content_filtered": Handling.REFUSE,
    },
    "gemini": {
        "MAX_TOKENS": Handling.CUT_OFF, "MALFORMED_FUNCTION_CALL": Handling.MALFORMED,
        "UNEXPECTED_TOOL_CALL": Handling.MALFORMED, "TOO_MANY_TOOL_CALLS": Handling.MALFORMED,
        "CONTINUATION": Handling.LEAVE, "SAFETY": Handling.REFUSE, "BLOCKLIST": Handling.REFUSE,
        "PROHIBITED_CONTENT": Handling.REFUSE, "SPII": Handling.REFUSE,
        "RECITATION": Handling.REFUSE, "OTHER": Handling.REFUSE,
    },
    "openai_chat": {"length": Handling.CUT_OFF, "content_filter": Handling.REFUSE},
    "openai_responses": {
        "in_progress": Handling.LEAVE, "queued": Handling.LEAVE, "cancelled": Handling.REFUSE,
        "failed": Handling.BROKEN_OFF, "incomplete": Handling.BROKEN_OFF,
        "incomplete: max_output_tokens": Handling.CUT_OFF,
        "incomplete: content_filter": Handling.REFUSE, "incomplete: steered": Handling.REFUSE,
        "incomplete: max_messages": Handling.REFUSE,
    },
    "openai_realtime": {"cancelled": Handling.REFUSE, "failed": Handling.BROKEN_OFF},
    "cohere": {"ERROR": Handling.BROKEN_OFF, "TIMEOUT": Handling.BROKEN_OFF},
    "ollama": {"length": Handling.CUT_OFF, "not done": Handling.LEAVE},
}  # fmt: skip


@pytest.mark.parametrize("form", AS_ASKED)
def test_the_table_says_what_was_asked_of_it(form: str) -> None:
    assert {word: STOPS[form][word] for word in AS_ASKED[form]} == AS_ASKED[form]


def test_only_these_words_run_calls() -> None:
    """A new one is to be thought about."""
    runs = {word for stops in STOPS.values() for word, v in stops.items() if v is Handling.RUN}
    assert runs == {
        "tool_use", "end_turn", "stop_sequence", "tool_calls", "function_call", "stop", "eos",
        "eos_token", "completed", "STOP", "requires_action", "idle", "COMPLETE", "STOP_SEQUENCE",
        "TOOL_CALL", "tool_call",
    }  # fmt: skip


async def dispatched(response: Any) -> tuple[list[ToolResult], list[str], Any]:
    ran.clear()
    async with Dispatcher.in_memory([note]) as dispatcher:
        turn = await dispatcher.dispatch(response)
        return list(turn), sorted(ran), turn


@pytest.mark.parametrize(("form", "stop", "verdict"), CASES)
async def test_every_stop_reason_has_its_verdict(form: str, stop: str, verdict: Handling) -> None:
    response = RESPONSES[form](stop)
    results, started, turn = await dispatched(response)
    codes = [result.code for result in results]
    has_text = form in TEXTS
    if verdict is Handling.RUN:
        assert started == (["a"] if has_text else ["a", "b"])
        assert turn.stop is None
        return
    assert turn.stop == stop
    assert started == (["a"] if verdict is Handling.CUT_OFF else [])
    expected = {
        Handling.CUT_OFF: [None, Code.TRUNCATED],
        Handling.BROKEN_OFF: [Code.TRUNCATED, Code.TRUNCATED],
        Handling.MALFORMED: [Code.UNPARSEABLE, Code.UNPARSEABLE],
        Handling.REFUSE: [Code.DENIED, Code.DENIED],
        Handling.LEAVE: [],
    }
    assert codes == expected[verdict]
    assert all(result.executed is Executed.NO for result in results if not result.ok)
    answered = turn.messages()
    assert len(str(answered).split("'b'")) > 1 if results else answered == []


def values_of(kind: Any) -> Iterator[str]:
    for value in get_args(kind):
        yield from (
            values_of(value) if get_args(value) else [value] if isinstance(value, str) else []
        )


def bedrock_reasons() -> Iterable[str]:
    model = botocore.session.get_session().get_service_model("bedrock-runtime")
    reasons: list[str] = model.shape_for("StopReason").enum
    return reasons


UNSPECIFIED = {"FINISH_REASON_UNSPECIFIED", "BLOCKED_REASON_UNSPECIFIED"}
SDK_REASONS = {
    "anthropic": {*values_of(StopReason), *values_of(BetaStopReason)},
    "bedrock": set(bedrock_reasons()),
    "openai_chat": set(values_of(Choice.model_fields["finish_reason"].annotation)),
    "openai_responses": {
        *values_of(ResponseStatus),
        *(
            f"incomplete: {reason}"
            for reason in values_of(IncompleteDetails.model_fields["reason"].annotation)
        ),
    },
    "gemini": {reason.value for reason in [*FinishReason, *BlockedReason]} - UNSPECIFIED,
    "gemini_interactions": set(get_args(get_args(InteractionStatus)[0])),
    "openai_realtime": set(values_of(RealtimeResponse.model_fields["status"].annotation)),
    "openai_agents": set(values_of(AgentSession.model_fields["status"].annotation)),
}


@pytest.mark.parametrize("form", SDK_REASONS)
def test_every_reason_that_the_sdk_knows_is_in_the_table(form: str) -> None:
    assert SDK_REASONS[form] - STOPS[form].keys() == set()


@pytest.mark.parametrize("form", STOPS)
@pytest.mark.parametrize("stop", ["invented", "x" * 300, "STOP_\ud800"])
async def test_an_unknown_reason_runs_nothing_and_says_so(
    form: str, stop: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "toolpool.formats"):
        results, started, turn = await dispatched(RESPONSES[form](stop))
    assert started == []
    assert [result.code for result in results] == [Code.DENIED, Code.DENIED]
    assert f"ended with '{turn.stop}'" in (results[0].error or "")
    assert len(turn.stop) <= 60
    assert f"unknown_stop_reason format={form}" in caplog.text


@pytest.mark.parametrize("reason", [{"a": 1}, ["x"], 3, True])
async def test_a_reason_that_is_no_text_runs_nothing(reason: Any) -> None:
    _, started, turn = await dispatched({**anthropic("x"), "stop_reason": reason})
    assert (started, turn.ok) == ([], False)


@pytest.mark.parametrize("form", RESPONSES)
async def test_a_response_that_says_no_reason_is_judged_by_its_calls(form: str) -> None:
    """As hosts put them together: the text that is whole runs, the other was cut off."""
    response = RESPONSES[form]("x")
    for name in ("stop_reason", "stopReason", "status", "response_metadata", "done_reason"):
        response.pop(name, None)
        response.get("response", {}).pop(name, None)
    response["finish_reason"] = None
    for choice in [*response.get("choices", []), *response.get("candidates", [])]:
        choice.pop("finish_reason", None)
        choice.pop("finishReason", None)
    results, started, turn = await dispatched(response)
    assert turn.stop is None
    if form in TEXTS:
        assert started == ["a"]
        assert results[1].code is Code.TRUNCATED
    else:
        assert started == ["a", "b"]


@pytest.mark.parametrize("stop", ["SAFETY", "BLOCKLIST", "PROHIBITED_CONTENT"])
async def test_a_safety_stop_asks_the_model_for_nothing(stop: str) -> None:
    for response in (
        {"candidates": [{"finishReason": stop}]},
        {"promptFeedback": {"blockReason": stop}},
        GenerateContentResponse.model_validate({"candidates": [{"finishReason": stop}]}),
    ):
        results, _, turn = await dispatched(response)
        assert (results, turn.error, turn.messages(), turn.stop) == ([], None, [], stop)


async def test_a_call_that_the_provider_could_not_read_is_asked_for_again() -> None:
    """What the provider says about it is for the model."""
    said = "Malformed function call: print(note(text='a'"
    candidate = {"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": said}
    _, _, turn = await dispatched({"candidates": [candidate]})
    assert turn.error == (
        "Please try again with valid format. The last response could not be read: its tool call is "
        f"malformed (MALFORMED_FUNCTION_CALL: {said})."
    )
    assert turn.messages() == [{"role": "user", "parts": [{"text": turn.error}]}]


async def test_a_gemini_call_that_is_still_streamed_is_not_run() -> None:
    for partial in ({"willContinue": True}, {"partialArgs": [{"jsonPath": "$.text"}]}):
        call = {"name": "note", "args": {"text": "a"}, **partial}
        parts = [{"functionCall": call}]
        results, started, _ = await dispatched({"candidates": [{"content": {"parts": parts}}]})
        assert (started, results[0].code) == ([], Code.TRUNCATED)


async def test_parts_after_a_call_do_not_make_it_whole_at_gemini_s_limit() -> None:
    for after in ({"text": ""}, {"text": "and then"}, {"thoughtSignature": "c2ln"}):
        response = gemini("MAX_TOKENS")
        response["candidates"][0]["content"]["parts"].append(after)
        results, started, _ = await dispatched(response)
        assert (started, results[1].code) == (["a"], Code.TRUNCATED)


@pytest.mark.parametrize("form", ["anthropic", "bedrock"])
async def test_an_empty_text_after_a_call_does_not_make_it_whole(form: str) -> None:
    response = RESPONSES[form]("max_tokens")
    content = (
        response["content"] if form == "anthropic" else response["output"]["message"]["content"]
    )
    content.append({"type": "text", "text": ""})
    results, started, _ = await dispatched(response)
    assert (started, results[1].code) == (["a"], Code.TRUNCATED)
    content[-1]["text"] = "and so on"
    results, started, _ = await dispatched(response)
    assert started == ["a", "b"]


@pytest.mark.parametrize("status", ["in_progress", "incomplete"])
async def test_an_item_that_is_not_complete_is_not_run(status: str) -> None:
    """Whatever its text is: what came of it so far may be valid by chance."""
    for arguments in ('{"text": "b"}', "", "{}"):
        response = openai_responses("completed")
        response["output"][1] |= {"status": status, "arguments": arguments}
        results, started, _ = await dispatched(response)
        assert (started, results[1].code) == (["a"], Code.TRUNCATED)


async def test_blank_arguments_at_the_limit_are_not_an_empty_object() -> None:
    response = openai_chat("length")
    response["choices"][0]["message"]["tool_calls"][1]["function"]["arguments"] = ""
    results, started, _ = await dispatched(response)
    assert (started, results[1].code) == (["a"], Code.TRUNCATED)


def test_what_is_left_alone_is_not_read() -> None:
    found: Response = response_reader.read(anthropic("pause_turn"), max_bytes=2**20)
    assert (found.calls, found.stop) == ((), "pause_turn")

"""Forms beyond the first six: the SDK's own objects in, answers that its types take out (R49)."""

import json
import threading
from typing import Any

import pytest
from anthropic.types.beta.sessions import (
    BetaManagedAgentsAgentCustomToolUseEvent,
    BetaManagedAgentsAgentToolUseEvent,
    BetaManagedAgentsSessionStatusIdleEvent,
    event_send_params,
)
from google.genai._gaos.types.interactions.interaction import Interaction
from google.genai.types import FunctionResponse, LiveServerMessage
from openai.types.beta import AgentSession, AgentSessionRequiresActionEvent
from openai.types.beta.agent_session_input_param import AgentSessionInputParam
from openai.types.realtime import ConversationItemCreateEventParam, ResponseDoneEvent
from pydantic import TypeAdapter

from tests.sdk_types import hold_item, taken_by
from toolpool import Dispatcher, tool
from toolpool.contract.outcome import Code
from toolpool.dispatcher.turn_result import TurnResult

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
AT = "2026-11-01T10:00:00Z"
STEPS: list[dict[str, Any]] = [
    {"type": "thought", "signature": "c2ln"},
    {"type": "function_call", "id": "a", "name": "look", "arguments": {"place": "Rome"}},
    {"type": "google_search_call", "id": "s", "arguments": {"queries": ["x"]}},
    {"type": "function_call", "id": "b", "name": "picture", "arguments": {}},
    {"type": "function_call", "id": "old", "name": "look", "arguments": {"place": "Paris"}},
    {"type": "function_result", "call_id": "old", "result": "seen"},
]
ACTION: dict[str, Any] = {
    "type": "function_call", "call_id": "c", "turn_id": "turn_1", "name": "look",
    "arguments": {"place": "Rome"},
}  # fmt: skip
READ = {"name": "look", "args": {"place": "Rome"}, "id": "c", "type": "tool_call"}
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


class TestGeminiInteractions:
    async def test_its_function_calls_are_answered_by_results(self) -> None:
        plain = {"id": "i-1", "status": "requires_action", "model": "m", "steps": STEPS}
        for response in (plain, Interaction.model_validate(plain)):
            turn = await turn_of(response)
            assert (turn.format, ran) == ("gemini_interactions", ["Rome"])
            assert turn.messages() == [
                {"type": "function_result", "call_id": "a", "name": "look",
                 "result": '{"seen":"Rome"}', "is_error": False},
                {"type": "function_result", "call_id": "b", "name": "picture", "is_error": False,
                 "result": [{"type": "text", "text": "here"},
                            {"type": "image", "mime_type": "image/png", "data": PNG}]},
            ]  # fmt: skip
            for message in turn.messages():
                taken_by("gemini_interactions", message)

    async def test_a_failure_says_that_it_is_one(self) -> None:
        [call] = STEPS[1:2]
        turn = await turn_of({"status": "requires_action", "steps": [{**call, "arguments": {}}]})
        [message] = turn.messages()
        assert message["is_error"] is True
        assert json.loads(message["result"])["code"] == "validation.arguments"


class TestAnthropicAgents:
    @staticmethod
    def use(kind: str, id: str, name: str = "look", **more: Any) -> dict[str, Any]:
        event = {"type": kind, "id": id, "name": name, "input": {"place": id}, "processed_at": AT}
        return {**event, **more}

    @staticmethod
    def idle(*ids: str) -> dict[str, Any]:
        reason = {"type": "requires_action", "event_ids": list(ids)}
        return {"type": "session.status_idle", "id": "e", "processed_at": AT, "stop_reason": reason}

    async def test_a_custom_tool_s_use_is_answered_by_its_result(self) -> None:
        plain = self.use("agent.custom_tool_use", "sevt_1")
        for response in (plain, [plain], BetaManagedAgentsAgentCustomToolUseEvent(**plain)):
            turn = await turn_of(response)
            assert (turn.format, ran) == ("anthropic_agents", ["sevt_1"])
            assert turn.messages() == [
                {
                    "type": "user.custom_tool_result",
                    "custom_tool_use_id": "sevt_1",
                    "content": [{"type": "text", "text": '{"seen":"sevt_1"}'}],
                    "is_error": False,
                }
            ]
            held(event_send_params.BetaManagedAgentsEventParams, turn)

    @pytest.mark.parametrize("kind", ["agent.tool_use", "agent.mcp_tool_use"])
    async def test_what_asks_for_permission_is_not_run(self, kind: str) -> None:
        event = self.use(kind, "e1", evaluated_permission="ask", mcp_server_name="s")
        turn = await turn_of([event, self.idle("e1")])
        assert (ran, turn[0].code) == ([], Code.DENIED)
        assert turn.messages() == [
            {
                "type": "user.tool_confirmation",
                "tool_use_id": "e1",
                "result": "deny",
                "deny_message": "Nobody here can approve calls. It was not run.",
            }
        ]
        held(event_send_params.BetaManagedAgentsEventParams, turn)

    async def test_what_is_denied_or_run_by_the_server_is_left_alone(self) -> None:
        denied = self.use("agent.tool_use", "e1", evaluated_permission="deny")
        allowed = self.use("agent.tool_use", "e2", evaluated_permission="allow")
        for events in ([denied, allowed], [denied, allowed, self.idle()]):
            turn = await turn_of(events)
            assert (ran, list(turn)) == ([], [])

    async def test_what_the_session_is_blocked_on_is_run_here(self) -> None:
        """As in an environment of the host's own."""
        plain = self.use("agent.tool_use", "e1", evaluated_permission="allow")
        idle = BetaManagedAgentsSessionStatusIdleEvent(**self.idle("e1"))
        turn = await turn_of([BetaManagedAgentsAgentToolUseEvent(**plain), idle])
        assert ran == ["e1"]
        assert turn.messages()[0]["type"] == "user.tool_result"
        held(event_send_params.BetaManagedAgentsEventParams, turn)

    async def test_what_was_answered_or_is_not_waited_for_is_passed_over(self) -> None:
        events = [self.use("agent.custom_tool_use", id) for id in ("a", "b", "c")]
        events.append({"type": "user.custom_tool_result", "custom_tool_use_id": "a"})
        turn = await turn_of([*events, self.idle("b")])
        assert ran == ["b"]
        assert len(turn) == 1

    @pytest.mark.parametrize(
        "kind", ["session.status_terminated", "session.deleted", "session.error", "user.interrupt"]
    )
    async def test_what_a_session_that_is_over_waited_for_is_not_run(self, kind: str) -> None:
        turn = await turn_of([self.use("agent.custom_tool_use", "a"), {"type": kind, "id": "x"}])
        assert (ran, list(turn)) == ([], [])

    async def test_a_call_that_is_still_waited_for_later_is_the_same_call(self) -> None:
        """Its place among what waits changes as others are answered."""
        uses = [self.use("agent.custom_tool_use", id) for id in ("a", "b")]
        told = {"type": "user.custom_tool_result", "custom_tool_use_id": "a"}
        ran.clear()
        async with Dispatcher.in_memory([look]) as dispatcher:
            await dispatcher.dispatch([*uses, self.idle("a", "b")], session="s")
            turn = await dispatcher.dispatch([*uses, told, self.idle("b")], session="s")
        assert ran == ["a", "b"]
        assert [result.call_id for result in turn] == ["b"]

    async def test_an_event_that_comes_twice_is_one_call(self) -> None:
        use = self.use("agent.custom_tool_use", "a")
        await turn_of([use, use])
        assert ran == ["a"]

    async def test_a_use_that_a_person_allowed_is_run_where_the_session_waits_for_it(self) -> None:
        ask = self.use("agent.tool_use", "e1", evaluated_permission="ask")
        allow = {"type": "user.tool_confirmation", "tool_use_id": "e1", "result": "allow"}
        await turn_of([ask, self.idle("e1"), allow, self.idle("e1")])
        assert ran == ["e1"]


class TestOpenAIAgents:
    def session(self, *actions: dict[str, Any]) -> dict[str, Any]:
        agent = {"id": "a", "model": "gpt"}
        return {"id": "s", "object": "agent.session", "status": "requires_action", "agent": agent,
                "required_actions": list(actions)}  # fmt: skip

    async def test_what_a_session_requires_is_answered(self) -> None:
        session = self.session(ACTION, {"type": "environment_connection"})
        event = {"type": "agent.session.requires_action", "event_id": "e", "session": session}
        built = AgentSessionRequiresActionEvent.construct(
            **{**event, "session": AgentSession.construct(**session)}
        )
        for response in (session, event, [event], built):
            turn = await turn_of(response)
            assert (turn.format, ran) == ("openai_agents", ["Rome"])
            assert turn.messages() == [
                {"type": "agent.session.input.tool_result", "call_id": "c", "turn_id": "turn_1",
                 "success": True, "output": '{"seen":"Rome"}'}
            ]  # fmt: skip
            held(AgentSessionInputParam, turn)

    async def test_what_is_still_required_later_is_the_same_call(self) -> None:
        other = {**ACTION, "call_id": "d", "arguments": {"place": "Oslo"}}
        ran.clear()
        async with Dispatcher.in_memory([look]) as dispatcher:
            await dispatcher.dispatch(self.session(ACTION, other), session="s")
            await dispatcher.dispatch(self.session(other), session="s")
        assert sorted(ran) == ["Oslo", "Rome"]

    async def test_an_item_that_is_done_is_answered(self) -> None:
        for status, runs in (("completed", ["Rome"]), ("incomplete", []), ("in_progress", [])):
            event = {"type": "agent.session.turn.item.done", "event_id": "e", "session_id": "s",
                     "item": {**ACTION, "status": status}}  # fmt: skip
            turn = await turn_of(event)
            assert ran == runs
            held(AgentSessionInputParam, turn)

    async def test_a_picture_and_a_failure(self) -> None:
        calls = [{**ACTION, "name": "picture", "arguments": {}}, {**ACTION, "name": "none"}]
        turn = await turn_of(self.session(*calls))
        shown, failed = turn.messages()
        assert shown["output"][1]["image_url"].startswith("data:image/png")
        assert failed["success"] is False
        assert "not found" in failed["error"]
        held(AgentSessionInputParam, turn)

    async def test_what_a_person_would_have_to_approve_is_denied(self) -> None:
        asked = [
            ("mcp_approval_request", {"type": "mcp_tool_call", "name": "drop"}),
            ("computer_use_approval_request", {"type": "browser_authentication"}),
            ("computer_use_approval_request", {"type": "browser_origin_access"}),
        ]
        actions = [
            {"type": kind, "request_id": f"r{n}", "turn_id": "t", "request": request}
            for n, (kind, request) in enumerate(asked)
        ]
        turn = await turn_of(self.session(*actions))
        assert {result.code for result in turn} == {Code.DENIED}
        assert [message["response"].get("decision") for message in turn.messages()] == [
            "deny", None, "deny",
        ]  # fmt: skip
        held(AgentSessionInputParam, turn)

    async def test_the_same_action_asked_again_is_the_same_call(self) -> None:
        async with Dispatcher.in_memory([look]) as dispatcher:
            ran.clear()
            for _ in range(2):
                await dispatcher.dispatch(self.session(ACTION), session="s")
        assert ran == ["Rome"]


class TestOpenAIRealtime:
    async def test_a_response_that_is_done_is_answered_by_events(self) -> None:
        output = [
            {"type": "function_call", "id": "i", "call_id": "c", "name": "look",
             "arguments": '{"place": "Rome"}', "status": "completed"},
            {"type": "function_call", "id": "j", "call_id": "d", "name": "picture",
             "arguments": "{}", "status": "completed"},
            {"type": "mcp_approval_request", "id": "r", "name": "drop", "arguments": "{}",
             "server_label": "db"},
        ]  # fmt: skip
        response = {"object": "realtime.response", "id": "resp", "status": "completed",
                    "output": output}  # fmt: skip
        event = {"type": "response.done", "event_id": "e", "response": response}
        for given in (event, response, ResponseDoneEvent.model_validate(event)):
            turn = await turn_of(given)
            assert (turn.format, ran) == ("openai_realtime", ["Rome"])
            first, second, denied = turn.messages()
            assert first == {
                "type": "conversation.item.create",
                "item": {"type": "function_call_output", "call_id": "c",
                         "output": '{"seen":"Rome"}'},
            }  # fmt: skip
            assert "[image, image/png" in second["item"]["output"]
            assert denied["item"]["approve"] is False
            held(ConversationItemCreateEventParam, turn)


class TestGeminiLive:
    async def test_a_tool_call_is_answered_by_function_responses(self) -> None:
        calls = [{"id": "f1", "name": "look", "args": {"place": "Rome"}}]
        plain = {"toolCall": {"functionCalls": calls}}
        for response in (plain, plain["toolCall"], LiveServerMessage.model_validate(plain)):
            turn = await turn_of(response)
            assert (turn.format, ran) == ("gemini_live", ["Rome"])
            answer = {"id": "f1", "name": "look", "response": {"output": {"seen": "Rome"}}}
            assert turn.messages() == [answer]
            held(FunctionResponse, turn)

    async def test_what_goes_on_in_the_background_is_answered_again_at_its_end(self) -> None:
        """R51: first that it goes on, which makes the model say nothing, then its result."""
        slow = threading.Event()

        @tool(run_in="thread", background=True)
        def report() -> str:
            """Write a report."""
            slow.wait(20)
            return "written"

        call = {"toolCall": {"functionCalls": [{"id": "f1", "name": "report", "args": {}}]}}
        async with Dispatcher.in_memory([report]) as dispatcher:
            [declared] = dispatcher.tools("gemini_live", only=["report"])[0]["functionDeclarations"]
            assert declared["behavior"] == "NON_BLOCKING"
            turn = await dispatcher.dispatch(call, session="s", wait=0.01)
            [first] = turn.messages()
            assert (first["willContinue"], first["scheduling"]) == (True, "SILENT")
            held(FunctionResponse, turn)
            slow.set()
            result = await dispatcher.task_result(turn[0].handle or "", session="s", wait=20)
            assert result is not None
            last = TurnResult([result], format=turn.format)
            assert last.messages() == [
                {"id": "f1", "name": "report", "response": {"output": "written"}}
            ]
            held(FunctionResponse, last)

    async def test_a_late_answer_has_the_form_and_the_id_of_its_call(self) -> None:
        """Also asked for twice, and where the id is too long for the wire."""
        slow = threading.Event()

        @tool(run_in="thread", background=True, input="text")
        def report(text: str) -> str:
            """Write a report."""
            slow.wait(20)
            return text

        item = {"type": "custom_tool_call", "call_id": "c" * 400, "name": "report", "input": "x"}
        response = {"object": "response", "id": "r", "status": "completed", "output": [item]}
        async with Dispatcher.in_memory([report]) as dispatcher:
            turn = await dispatcher.dispatch(response, session="s", wait=0.01)
            slow.set()
            for _ in range(2):
                result = await dispatcher.task_result(turn[0].handle or "", session="s", wait=20)
                assert result is not None
                [last] = TurnResult([result], format=turn.format).messages()
                assert last["type"] == "custom_tool_call_output"
                assert last["call_id"] == "c" * 400
                assert last["output"] == "x"

    async def test_an_openai_call_that_is_not_waited_for_says_how_far_it_is(self) -> None:
        """R51."""
        slow = threading.Event()

        @tool(run_in="thread", background=True)
        def report() -> str:
            """Write a report."""
            slow.wait(20)
            return "written"

        item = {"type": "function_call", "call_id": "c", "name": "report", "arguments": "{}",
                "async": True}  # fmt: skip
        response = {"object": "response", "id": "r", "status": "completed", "output": [item]}
        async with Dispatcher.in_memory([report]) as dispatcher:
            turn = await dispatcher.dispatch(response, session="s", wait=0.01)
            [first] = turn.messages()
            assert first["status"] == "in_progress"
            hold_item(first)
            slow.set()
            result = await dispatcher.task_result(turn[0].handle or "", session="s", wait=20)
            assert result is not None
            [last] = TurnResult([result], format=turn.format).messages()
            assert (last["status"], last["output"], last["call_id"]) == (
                "completed",
                "written",
                "c",
            )
            hold_item(last)


class TestOllama:
    async def test_calls_without_ids_are_answered_by_name(self) -> None:
        calls = [{"function": {"name": "look", "arguments": {"place": "Rome"}}},
                 {"function": {"name": "picture", "arguments": {}}}]  # fmt: skip
        message = {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": calls}
        response = {"model": "m", "message": message, "done": True, "done_reason": "stop"}
        turn = await turn_of(response)
        assert (turn.format, ran) == ("ollama", ["Rome"])
        first, second = turn.messages()
        assert first == {"role": "tool", "tool_name": "look", "content": '{"seen":"Rome"}'}
        assert second["images"] == [PNG]
        assert turn.assistant() == [message]
        assert turn[0].note is None


class TestCohere:
    async def test_its_message_is_answered(self) -> None:
        call = {"id": "c", "type": "function",
                "function": {"name": "look", "arguments": '{"place": "Rome"}'}}  # fmt: skip
        message = {"role": "assistant", "tool_plan": "I look.", "tool_calls": [call]}
        response = {"id": "r", "finish_reason": "TOOL_CALL", "message": message}
        for given in (response, message):
            turn = await turn_of(given)
            assert (turn.format, ran) == ("cohere", ["Rome"])
            assert turn.messages() == [
                {"role": "tool", "tool_call_id": "c",
                 "content": [{"type": "text", "text": '{"seen":"Rome"}'}]}
            ]  # fmt: skip
            assert turn.assistant() == [message]


class TestLangChain:
    async def test_an_ai_message_is_answered_by_tool_messages(self) -> None:
        message = {"content": "", "tool_calls": [READ], "invalid_tool_calls": []}
        for given in (message, {**message, "type": "ai"}, {"tool_calls": [READ]}):
            turn = await turn_of(given)
            assert (turn.format, ran) == ("langchain", ["Rome"])
            assert turn.messages() == [
                {"type": "tool", "tool_call_id": "c", "name": "look", "status": "success",
                 "content": '{"seen":"Rome"}'}
            ]  # fmt: skip

    async def test_a_message_is_read_as_langchain_stores_it(self) -> None:
        """As `message_to_dict` makes it."""
        message = {"content": "", "tool_calls": [READ], "type": "ai", "id": None}
        turn = await turn_of({"type": "ai", "data": message})
        assert (turn.format, ran) == ("langchain", ["Rome"])
        assert turn.assistant() == [message]
        turn = await turn_of({"type": "human", "data": message})
        assert ran == []

    async def test_some_chunks_of_a_stream_are_not_run(self) -> None:
        """What was added up so far may be valid by chance."""
        chunk = {
            "type": "AIMessageChunk", "tool_calls": [READ],
            "tool_call_chunks": [{"id": "c", "index": 0, "name": "look", "args": '{"place": "Ro'}],
        }  # fmt: skip
        turn = await turn_of(chunk)
        assert (ran, turn[0].code) == ([], Code.TRUNCATED)
        for whole in (
            {"chunk_position": "last"},
            {"response_metadata": {"stop_reason": "end_turn"}},
        ):
            await turn_of({**chunk, **whole})
            assert ran == ["Rome"]

    async def test_a_message_of_somebody_else_has_no_calls(self) -> None:
        turn = await turn_of({"type": "human", "tool_calls": [READ]})
        assert ran == []
        assert not turn.ok

    async def test_calls_that_langchain_could_not_read_are_answered(self) -> None:
        bad = {"name": "look", "args": '{"place": "Ro', "id": "d", "error": "no JSON",
               "type": "invalid_tool_call"}  # fmt: skip
        fixable = {**bad, "args": "{'place': 'Oslo'}", "id": "e"}
        turn = await turn_of({"type": "ai", "invalid_tool_calls": [bad, fixable]})
        assert [result.code for result in turn] == [Code.TRUNCATED, None]
        assert ran == ["Oslo"]
        assert [message["status"] for message in turn.messages()] == ["error", "success"]


def held(kind: Any, turn: TurnResult) -> None:
    """Every message satisfies the SDK's type, and none of its parts is dropped."""
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    for message in turn.messages():
        taken_by(adapter, message)

"""Runs in an environment of its own: what other SDKs say and take, as JSON.

`objects` prints the responses that their own classes make; `take` reads messages and prints what
their classes make of them; `send` prints what their clients send of them, in a second turn.
"""

import json
import sys
from typing import Any

import httpx
from cohere import ClientV2, ToolMessageV2, V2ChatResponse
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    convert_to_messages,
    message_to_dict,
    messages_from_dict,
)
from ollama import ChatResponse, Client, Message

ARGUMENTS = {"place": "Rome"}


def objects() -> dict[str, Any]:
    read = {"name": "look", "args": ARGUMENTS, "id": "c", "type": "tool_call"}
    ai = AIMessage(content="", tool_calls=[read], response_metadata={"finish_reason": "stop"})
    ollama = ChatResponse.model_validate(
        {
            "model": "m",
            "done": True,
            "done_reason": "stop",
            "message": {
                "role": "assistant",
                "tool_calls": [{"function": {"name": "look", "arguments": ARGUMENTS}}],
            },
        }
    )
    function = {"name": "look", "arguments": json.dumps(ARGUMENTS)}
    calls = [{"id": "c", "type": "function", "function": function}]
    cohere = V2ChatResponse.model_validate(
        {
            "id": "r",
            "finish_reason": "TOOL_CALL",
            "message": {"role": "assistant", "tool_calls": calls},
        }
    )
    return {
        "langchain": [
            message_to_dict(ai),
            ai.model_dump(),
            ai.model_dump(exclude_unset=True),
        ],
        "ollama": [ollama.model_dump(), ollama.model_dump(exclude_unset=True)],
        "cohere": [cohere.model_dump(), cohere.model_dump(exclude_unset=True)],
    }


def take(messages: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """LangChain's are given with the message before them, as LangGraph would hold them."""
    *_, told = convert_to_messages(messages["langchain"])
    cohere = ToolMessageV2.model_validate(messages["cohere"][-1])
    return {
        "langchain": [type(told).__name__, told.tool_call_id, told.content, told.status],
        "ollama": Message.model_validate(messages["ollama"][-1]).model_dump(exclude_none=True),
        "cohere": [type(each).__name__ for each in cohere.content],
    }


class Recording(FakeListChatModel):
    """A model that says what it is given, and keeps what it was asked."""

    asked: list[BaseMessage] | None = None

    def _call(self, messages: list[BaseMessage], *rest: Any, **options: Any) -> str:
        self.asked = messages
        return super()._call(messages, *rest, **options)


def send(messages: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """`stored` is a history of LangChain's as `messages_to_dict` made it, answered."""
    sent: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        message = {"role": "assistant", "content": "In Rome."}
        if "cohere" in request.url.host:
            content = [{"type": "text", "text": "In Rome."}]
            said = {
                "id": "r",
                "finish_reason": "COMPLETE",
                "message": {**message, "content": content},
            }
        else:
            said = {"model": "m", "done": True, "message": message}
        return httpx.Response(200, json=said)

    transport = httpx.MockTransport(answer)
    Client(transport=transport).chat(model="m", messages=messages["ollama"])
    http = httpx.Client(transport=transport)
    ClientV2(api_key="k", httpx_client=http).chat(model="m", messages=messages["cohere"])
    model = Recording(responses=["In Rome."])
    asked = []
    for given in (messages["langchain"], messages_from_dict(messages["stored"])):
        assert model.invoke(given).content == "In Rome."
        asked.append([[each.type, each.content] for each in model.asked or ()])
    return {"ollama": sent[0]["messages"], "cohere": sent[1]["messages"], "langchain": asked}


if __name__ == "__main__":
    if sys.argv[1] == "objects":
        made = objects()
    else:
        made = {"take": take, "send": send}[sys.argv[1]](json.load(sys.stdin))
    json.dump(made, sys.stdout)

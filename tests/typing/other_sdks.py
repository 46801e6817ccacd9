"""Runs in an environment of its own: what other SDKs say and take, as JSON.

`objects` prints the responses that their own classes make; `take` reads messages and prints what
their classes make of them.
"""

import json
import sys
from typing import Any

from cohere import ToolMessageV2, V2ChatResponse
from langchain_core.messages import AIMessage, convert_to_messages
from ollama import ChatResponse, Message

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
        "langchain": [ai.model_dump(), ai.model_dump(exclude_unset=True)],
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


if __name__ == "__main__":
    made = objects() if sys.argv[1] == "objects" else take(json.load(sys.stdin))
    json.dump(made, sys.stdout)

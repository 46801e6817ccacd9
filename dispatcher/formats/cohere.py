"""Cohere's chat API, version 2: `tool_calls` in, one `tool` message per call out."""

from collections.abc import Mapping
from typing import Any

from toolpool.contract.call import ToolCall
from toolpool.contract.result import ToolResult
from toolpool.dispatcher.formats import openai_chat
from toolpool.dispatcher.formats.call_blocks import Reader
from toolpool.dispatcher.formats.history import Messages
from toolpool.dispatcher.formats.result_text import as_text
from toolpool.dispatcher.formats.tool_names import PLAIN

NAME = "cohere"
ALIASES = ()
TOOL_NAMES = PLAIN
TAKES_LISTS = False

_SENT_BACK = ("content", "tool_calls", "tool_plan", "citations")

offer = openai_chat.offer_functions
render_refusal = openai_chat.render_refusal


def recognises(response: Any) -> bool:
    """Whether it has a message and a finish reason, without choices, or a tool plan."""
    if not isinstance(response, dict) or "choices" in response or "index" in response:
        return False
    message = response.get("message")
    return (isinstance(message, dict) and "finish_reason" in response) or "tool_plan" in response


def identity(response: dict[str, Any]) -> tuple[Any, Any]:
    """The response's id; it does not name its model."""
    return response.get("id"), None


def stopped(response: dict[str, Any]) -> tuple[Any, Any]:
    """Its finish reason."""
    return response.get("finish_reason"), None


def parse(response: Any, reader: Reader) -> list[ToolCall]:
    """The calls of its message."""
    return openai_chat.calls_of(_message(response), reader, 0, 0)


def _message(response: dict[str, Any]) -> dict[str, Any]:
    message = response.get("message")
    return message if isinstance(message, dict) else response


def assistant_messages(response: dict[str, Any], ids: Mapping[int, str]) -> list[dict[str, Any]]:
    """Its message, with the ids of calls that came without one."""
    message = openai_chat.with_ids(_message(response), ids)
    return [{"role": "assistant", **{key: message[key] for key in _SENT_BACK if key in message}}]


def render(results: list[ToolResult]) -> list[dict[str, Any]]:
    """One message per result."""
    return [
        {
            "role": "tool",
            "tool_call_id": result.call_id,
            "content": [{"type": "text", "text": as_text(result)}],
        }
        for result in results
    ]


def _calling(message: dict[str, Any]) -> dict[str, Any] | None:
    return message if message.get("tool_calls") and "tool_plan" in message else None


HISTORY = Messages(to_response=_calling, answer=openai_chat.answer_in)

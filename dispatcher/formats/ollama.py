"""Ollama's chat API: `tool_calls`, mostly without ids, in; one `tool` message per call out."""

from collections.abc import Mapping
from typing import Any

from toolpool.contract.call import ToolCall
from toolpool.contract.content import blocks_of, media_of
from toolpool.contract.result import ToolResult
from toolpool.dispatcher.formats import openai_chat
from toolpool.dispatcher.formats.call_blocks import NotAResponse, Reader
from toolpool.dispatcher.formats.history import HistoryAnswer, Messages
from toolpool.dispatcher.formats.result_text import as_text
from toolpool.dispatcher.formats.tool_names import PLAIN, alias

NAME = "ollama"
ALIASES = ()
TOOL_NAMES = PLAIN
TAKES_LISTS = False

offer = openai_chat.offer_functions
render_refusal = openai_chat.render_refusal


def recognises(response: Any) -> bool:
    """Whether it is a message with a `done` field."""
    return (
        isinstance(response, dict)
        and isinstance(response.get("message"), dict)
        and "done" in response
    )


def identity(response: dict[str, Any]) -> tuple[Any, Any]:
    """The model's name: a response has no id."""
    return None, response.get("model")


def stopped(response: dict[str, Any]) -> tuple[Any, Any]:
    """Its done reason. A response that is not done is part of a stream."""
    return (response.get("done_reason"), None) if response.get("done") else ("not done", None)


def parse(response: Any, reader: Reader) -> list[ToolCall]:
    """The calls of its message."""
    message = response.get("message")
    if not isinstance(message, dict):
        raise NotAResponse("no_message")
    return openai_chat.calls_of(message, reader, 0, 0, id_is_optional=True)


def assistant_messages(response: dict[str, Any], ids: Mapping[int, str]) -> list[dict[str, Any]]:
    """Its message."""
    message = response.get("message")
    return [{"role": "assistant", **message}] if isinstance(message, dict) else []


def render(results: list[ToolResult]) -> list[dict[str, Any]]:
    """One message per result, with its pictures."""
    return [_message(result) for result in results]


def _message(result: ToolResult) -> dict[str, Any]:
    blocks = (blocks_of(result.data) if result.ok else None) or []
    media = [found for block in blocks if (found := media_of(block)) is not None]
    pictures = [data for mime, data in media if mime.startswith("image/")]
    message: dict[str, Any] = {
        "role": "tool",
        "content": as_text(result),
    }
    message["tool_name"] = alias(result.name, TOOL_NAMES)
    if result.id_given:
        message["tool_call_id"] = result.call_id
    return {**message, "images": pictures} if pictures else message


def _calling(message: dict[str, Any]) -> dict[str, Any] | None:
    """A model's message whose arguments are objects: OpenAI sends text."""
    calls = message.get("tool_calls")
    is_own = isinstance(calls, list) and all(
        isinstance(call, dict)
        and isinstance(call.get("function"), dict)
        and isinstance(call["function"].get("arguments"), dict)
        for call in calls
    )
    return {"message": message, "done": True} if calls and is_own else None


def _answer(message: dict[str, Any]) -> HistoryAnswer | None:
    """An answer that names its tool, in the current or the first form, or names nothing."""
    if message.get("role") != "tool":
        return None
    return HistoryAnswer(message.get("tool_call_id"), message.get("tool_name", message.get("name")))


HISTORY = Messages(
    to_response=_calling,
    answer=_answer,
    has_ids=False,
    tells=lambda message: message.get("role") == "tool" and "tool_name" in message,
)

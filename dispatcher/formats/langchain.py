"""LangChain: the `tool_calls` of an `AIMessage` in, one `ToolMessage` per call out.

Messages are plain dicts, which LangChain and LangGraph accept. Calls whose arguments LangChain
could not read are read here.
"""

from collections.abc import Mapping
from typing import Any

from toolpool.contract.call import ToolCall
from toolpool.contract.result import ToolResult
from toolpool.dispatcher.formats import openai_chat
from toolpool.dispatcher.formats.call_blocks import NotAResponse, Reader
from toolpool.dispatcher.formats.history import HistoryAnswer, Messages
from toolpool.dispatcher.formats.result_text import as_text
from toolpool.dispatcher.formats.tool_names import PLAIN, alias

NAME = "langchain"
ALIASES = ()
TOOL_NAMES = PLAIN
TAKES_LISTS = False

_TYPES = ("ai", "AIMessageChunk")
_REASONS = ("finish_reason", "stop_reason", "stopReason", "done_reason", "status")

offer = openai_chat.offer_functions


def recognises(response: Any) -> bool:
    """Whether it is an AI message, or a message whose calls have `args`."""
    if not isinstance(response, dict) or "choices" in response:
        return False
    kind = response.get("type")
    if kind is not None and kind not in _TYPES:
        return False
    if kind is not None or "invalid_tool_calls" in response:
        return True
    calls = response.get("tool_calls")
    return isinstance(calls, list) and any(
        isinstance(call, dict) and "args" in call and "function" not in call for call in calls
    )


def identity(response: dict[str, Any]) -> tuple[Any, Any]:
    """The message's id, and the model's name if its integration provides it."""
    metadata = _metadata(response)
    return response.get("id"), metadata.get("model_name") or metadata.get("model")


def stopped(response: dict[str, Any]) -> tuple[Any, Any]:
    """The stop reason of the provider behind it, as passed on by its integration."""
    metadata = _metadata(response)
    reason = next((metadata[key] for key in _REASONS if metadata.get(key)), None)
    if reason is None and response.get("tool_call_chunks") and not _is_last(response):
        return "null", None  # only some chunks of a stream
    return reason, None


def _is_last(response: dict[str, Any]) -> bool:
    return response.get("chunk_position") == "last"


def _metadata(response: dict[str, Any]) -> dict[str, Any]:
    metadata = response.get("response_metadata")
    return metadata if isinstance(metadata, dict) else {}


def parse(response: Any, reader: Reader) -> list[ToolCall]:
    """The calls that LangChain could parse, then the invalid calls."""
    read = response.get("tool_calls") or []
    unread = response.get("invalid_tool_calls") or []
    if not isinstance(read, list) or not isinstance(unread, list):
        raise NotAResponse("no_tool_calls")
    blocks = [*read, *unread]
    return [
        reader.call(
            index,
            id=block.get("id"),
            name=block.get("name"),
            raw=block.get("args"),
            is_last=index == len(blocks) - 1,
        )
        if isinstance(block, dict)
        else reader.unreadable(index)
        for index, block in enumerate(blocks)
    ]


def assistant_messages(response: dict[str, Any], ids: Mapping[int, str]) -> list[dict[str, Any]]:
    """The message, with the ids of calls that came without one."""
    message = openai_chat.with_ids(response, ids)
    return [{**message, "type": "ai"}]


def render(results: list[ToolResult]) -> list[dict[str, Any]]:
    """One message per result."""
    return [
        {
            "type": "tool",
            "tool_call_id": result.call_id,
            "name": alias(result.name, TOOL_NAMES),
            "content": as_text(result),
            "status": "success" if result.ok else "error",
        }
        for result in results
    ]


def render_refusal(text: str) -> list[dict[str, Any]]:
    """A user message that asks for a valid response."""
    return [{"type": "human", "content": text}]


def _held(message: dict[str, Any]) -> dict[str, Any]:
    """The message itself; `message_to_dict` puts it under `data`."""
    data = message.get("data")
    return {**data, "type": message.get("type")} if isinstance(data, dict) else message


def _calling(message: dict[str, Any]) -> dict[str, Any] | None:
    message = _held(message)
    has_calls = message.get("tool_calls") or message.get("invalid_tool_calls")
    return message if has_calls and recognises(message) else None


def _answer(message: dict[str, Any]) -> HistoryAnswer | None:
    message = _held(message)
    return HistoryAnswer(message.get("tool_call_id")) if message.get("type") == "tool" else None


def _as_kept(message: dict[str, Any], beside: dict[str, Any]) -> dict[str, Any]:
    """A message in the form of the message beside it: LangChain reads only uniform lists."""
    is_held = isinstance(beside.get("data"), dict)
    return {"type": message["type"], "data": message} if is_held else message


HISTORY = Messages(to_response=_calling, answer=_answer, as_kept=_as_kept)

"""Pydantic AI: a `ModelResponse` in, one `ModelRequest` with a tool return for each call out.

Messages are plain dicts, as `ModelMessagesTypeAdapter` reads and writes them:
https://ai.pydantic.dev/message-history.
"""

from collections.abc import Mapping
from typing import Any

from toolpool.contract import encoding
from toolpool.contract.call import ToolCall
from toolpool.contract.result import ToolResult
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.formats.call_blocks import NotAResponse, Reader, last_block
from toolpool.dispatcher.formats.history import Blocks, HistoryAnswer
from toolpool.dispatcher.formats.result_text import as_text, schema_of
from toolpool.dispatcher.formats.tool_names import PLAIN, alias

NAME = "pydantic_ai"
ALIASES = ()
TOOL_NAMES = PLAIN
TAKES_LISTS = False

_CALL, _RETURN, _RETRY = "tool-call", "tool-return", "retry-prompt"


def recognises(response: Any) -> bool:
    """Whether it is a message of the kind `response`."""
    return isinstance(response, dict) and response.get("kind") == "response"


def identity(response: dict[str, Any]) -> tuple[Any, Any]:
    """The provider's id of the response, and the model's name.

    Without an id, one made of its calls: a stored response spells times and usage in another way
    than the object.
    """
    id = response.get("provider_response_id")
    parts = response.get("parts")
    if not id and isinstance(parts, list):
        fields = ("tool_call_id", "tool_name", "args")
        calls = [[part.get(field) for field in fields] for part in parts if _is_call(part)]
        try:
            id = f"calls_{encoding.stored_digest(calls)}" if calls else None
        except (TypeError, ValueError, RecursionError):  # arguments that are not JSON
            id = None
    return id, response.get("model_name")


def stopped(response: dict[str, Any]) -> tuple[Any, Any]:
    """Its finish reason, which Pydantic AI has translated; None if the provider gave none."""
    return response.get("finish_reason"), None


def parse(response: Any, reader: Reader) -> list[ToolCall]:
    """The tool calls; text, thinking and calls of the provider's own tools are skipped."""
    parts = response.get("parts")
    if not isinstance(parts, list):
        raise NotAResponse("no_content")
    last = last_block(parts)
    calls: list[ToolCall] = []
    for position, part in enumerate(parts):
        if not _is_call(part):
            continue
        calls.append(
            reader.call(
                len(calls),
                id=part.get("tool_call_id"),
                name=part.get("tool_name"),
                raw={} if part.get("args") is None else part["args"],
                is_last=position == last,
            )
        )
    return calls


def assistant_messages(response: dict[str, Any], ids: Mapping[int, str]) -> list[dict[str, Any]]:
    """The response, with the ids of calls that came without one."""
    parts: list[Any] = []
    index = 0
    for part in response.get("parts") or ():
        if _is_call(part):
            part = {**part, "tool_call_id": ids[index]} if index in ids else part
            index += 1
        parts.append(part)
    return [{**response, "parts": parts}]


def render(results: list[ToolResult]) -> list[dict[str, Any]]:
    """One request with one part per result.

    No `outcome` is given: for most providers, Pydantic AI would put the text of a failed one into
    JSON once more.
    """
    parts = [
        {
            "part_kind": _RETURN,
            "tool_name": alias(result.name, TOOL_NAMES),
            "content": as_text(result),
            "tool_call_id": result.call_id,
        }
        for result in results
    ]
    return [{"kind": "request", "parts": parts}] if parts else []


def render_refusal(text: str) -> list[dict[str, Any]]:
    """A prompt that asks for a valid response."""
    return [{"kind": "request", "parts": [{"part_kind": "user-prompt", "content": text}]}]


def offer(specs: list[ToolSpec]) -> list[dict[str, Any]]:
    """The arguments of a `ToolDefinition` each."""
    return [
        {
            "name": alias(spec.name, TOOL_NAMES),
            "description": spec.description,
            "parameters_json_schema": schema_of(spec.input_schema),
        }
        for spec in specs
    ]


def _is_call(part: Any) -> bool:
    return isinstance(part, dict) and part.get("part_kind") == _CALL


def _answer(part: dict[str, Any]) -> HistoryAnswer | None:
    kind = part.get("part_kind")
    is_answer = kind == _RETURN or (kind == _RETRY and part.get("tool_name") is not None)
    return HistoryAnswer(part.get("tool_call_id")) if is_answer else None


HISTORY = Blocks(
    role="response",
    blocks="parts",
    is_call=_is_call,
    to_response=lambda message: message,
    answer=_answer,
    as_block=lambda text: {"part_kind": "user-prompt", "content": text},
    role_field="kind",
    host="request",
)

"""OpenAI Chat Completions: `tool_calls` in, one `tool` message a call out."""

from typing import Any

from toolpool.contract.call import ToolCall
from toolpool.contract.result import ToolResult
from toolpool.contract.schema.strict import OPENAI
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.formats.blocks import NotAResponse, Reader
from toolpool.dispatcher.formats.declared import strict_of
from toolpool.dispatcher.formats.names import PLAIN, alias
from toolpool.dispatcher.formats.text import as_text, schema_of

NAME = "openai_chat"
ALIASES = ("openai",)
TOOL_NAMES = PLAIN
TAKES_LISTS = False


def recognises(response: Any) -> bool:
    """A completion with choices, or a bare assistant message with tool calls."""
    return isinstance(response, dict) and (
        "choices" in response
        or response.get("object") == "chat.completion"
        or isinstance(response.get("tool_calls"), list)
    )


def identity(response: dict[str, Any]) -> tuple[Any, Any]:
    """The completion's id and the model's name."""
    return response.get("id"), response.get("model")


def parse(response: Any, reader: Reader) -> list[ToolCall]:
    """The function calls of the first choice."""
    choices = response.get("choices")
    if choices is None and "tool_calls" in response:
        choices = [{"message": response}]
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise NotAResponse("no_choices")
    message = choices[0].get("message")
    if not isinstance(message, dict):
        raise NotAResponse("no_message")
    blocks = message.get("tool_calls") or []
    if not isinstance(blocks, list):
        raise NotAResponse("no_tool_calls")
    cut_off = choices[0].get("finish_reason") == "length"
    return [
        _call(index, block, reader, cut_off=cut_off and index == len(blocks) - 1)
        for index, block in enumerate(blocks)
    ]


def _call(index: int, block: Any, reader: Reader, *, cut_off: bool) -> ToolCall:
    if not isinstance(block, dict):
        return reader.unreadable(index)
    function = block.get("function")
    if not isinstance(function, dict):
        custom = block.get("custom")
        name = custom.get("name") if isinstance(custom, dict) else None
        return reader.unreadable(index, id=block.get("id"), name=name)
    return reader.call(
        index,
        id=block.get("id"),
        name=function.get("name"),
        raw=function.get("arguments"),
        cut_off=cut_off,
    )


def said(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The response as the model's own message."""
    choices = response.get("choices") or [{"message": response}]
    message = choices[0].get("message") if isinstance(choices[0], dict) else None
    if not isinstance(message, dict):
        return []
    kept = {key: message[key] for key in ("content", "tool_calls") if key in message}
    return [{"role": "assistant", **kept}]


def render(results: list[ToolResult]) -> list[dict[str, Any]]:
    """One message a result."""
    return [
        {"role": "tool", "tool_call_id": result.call_id, "content": as_text(result)}
        for result in results
    ]


def render_refusal(text: str) -> list[dict[str, Any]]:
    """A user message that asks for a valid response."""
    return [{"role": "user", "content": text}]


def offer(specs: list[ToolSpec]) -> list[dict[str, Any]]:
    """The `tools` parameter of the Chat Completions API."""
    return [{"type": "function", "function": _function(spec)} for spec in specs]


def _function(spec: ToolSpec) -> dict[str, Any]:
    strict = strict_of(spec, OPENAI)
    function = {
        "name": alias(spec.name, TOOL_NAMES),
        "description": spec.description,
        "parameters": strict or schema_of(spec.input_schema),
    }
    return function if strict is None else {**function, "strict": True}

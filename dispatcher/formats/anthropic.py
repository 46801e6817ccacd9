"""Anthropic Messages: `tool_use` blocks in, one message of `tool_result` blocks out."""

from typing import Any

from toolpool.contract.call import ToolCall
from toolpool.contract.content import IMAGE_TYPES, blocks_of, media_of, words_for
from toolpool.contract.result import ToolResult
from toolpool.contract.schema.strict import ANTHROPIC
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.formats.blocks import NotAResponse, Reader
from toolpool.dispatcher.formats.declared import callers_of, strict_of, told
from toolpool.dispatcher.formats.names import PLAIN, alias
from toolpool.dispatcher.formats.text import as_text, note_of, schema_of

NAME = "anthropic"
ALIASES = ()
TOOL_NAMES = PLAIN
TAKES_LISTS = False


def recognises(response: Any) -> bool:
    """A message with a content list, or a stop reason where one should be."""
    return isinstance(response, dict) and (
        response.get("type") == "message" or isinstance(response.get("content"), list)
    )


def identity(response: dict[str, Any]) -> tuple[Any, Any]:
    """The message's id and the model's name."""
    return response.get("id"), response.get("model")


def parse(response: Any, reader: Reader) -> list[ToolCall]:
    """The `tool_use` blocks; text, thinking and server-side blocks are passed over."""
    content = response.get("content")
    if not isinstance(content, list):
        raise NotAResponse("no_content")
    cut_off = response.get("stop_reason") == "max_tokens"
    calls: list[ToolCall] = []
    for position, block in enumerate(content):
        if not isinstance(block, dict) or block.get("type") != "tool_use":
            continue
        calls.append(
            reader.call(
                len(calls),
                id=block.get("id"),
                name=block.get("name"),
                raw=block.get("input"),
                cut_off=cut_off and position == len(content) - 1,
            )
        )
    return calls


def said(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The response as the model's own message."""
    content = response.get("content")
    return [{"role": "assistant", "content": content}] if isinstance(content, list) else []


def render(results: list[ToolResult]) -> list[dict[str, Any]]:
    """One user message with a block a result."""
    if not results:
        return []
    return [
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": result.call_id,
                    "content": _content(result),
                    "is_error": not result.ok,
                }
                for result in results
            ],
        }
    ]


def _content(result: ToolResult) -> str | list[dict[str, Any]]:
    blocks = blocks_of(result.data) if result.ok else None
    if blocks is None or not any(media_of(block) for block in blocks):
        return as_text(result)
    shown = [_shown(block) for block in blocks]
    note = note_of(result)
    if note is not None:
        shown.append({"type": "text", "text": note})
    return [block for block in shown if block.get("text") != ""]  # the API refuses empty text


def _shown(block: dict[str, Any]) -> dict[str, Any]:
    media = media_of(block)
    if media is not None:
        mime, data = media
        source = {"type": "base64", "media_type": mime, "data": data}
        if mime in IMAGE_TYPES:
            return {"type": "image", "source": source}
        if mime == "application/pdf":
            return {"type": "document", "source": source}
    return {"type": "text", "text": words_for(block)}


def render_refusal(text: str) -> list[dict[str, Any]]:
    """A user message that asks for a valid response."""
    return [{"role": "user", "content": [{"type": "text", "text": text}]}]


def offer(specs: list[ToolSpec]) -> list[dict[str, Any]]:
    """The `tools` parameter of the Messages API."""
    return [_offered(spec) for spec in specs]


def _offered(spec: ToolSpec) -> dict[str, Any]:
    strict = strict_of(spec, ANTHROPIC)
    tool = {
        "name": alias(spec.name, TOOL_NAMES),
        "description": spec.description,
        "input_schema": strict or schema_of(spec.input_schema),
        **told(spec, "defer_loading", "input_examples"),
        **callers_of(spec, "direct", "code_execution"),
    }
    return tool if strict is None else {**tool, "strict": True}

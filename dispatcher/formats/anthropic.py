"""Anthropic Messages: `tool_use` blocks in, one message of `tool_result` blocks out."""

from collections.abc import Mapping
from typing import Any

from toolpool.contract import encoding
from toolpool.contract.call import ToolCall
from toolpool.contract.content import IMAGE_TYPES, blocks_of, is_anthropic, media_of, words_for
from toolpool.contract.result import ToolResult
from toolpool.contract.schema.strict import ANTHROPIC
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.formats.call_blocks import NotAResponse, Reader, last_block
from toolpool.dispatcher.formats.declared_options import callers_of, options_of, strict_of
from toolpool.dispatcher.formats.history import Blocks, HistoryAnswer
from toolpool.dispatcher.formats.result_text import as_bare, as_text, note_of, schema_of
from toolpool.dispatcher.formats.stop_reasons import Handling
from toolpool.dispatcher.formats.tool_names import PLAIN, alias

NAME = "anthropic"
ALIASES = ()
TOOL_NAMES = PLAIN
TAKES_LISTS = False


def recognises(response: Any) -> bool:
    """A message with a content list, or a stop reason where one should be."""
    if not isinstance(response, dict):
        return False
    kind = response.get("type")
    is_bare = isinstance(response.get("content"), list) and "tool_calls" not in response
    return kind == "message" or (kind is None and is_bare)


def identity(response: dict[str, Any]) -> tuple[Any, Any]:
    """The message's id and the model's name."""
    return response.get("id"), response.get("model")


def stopped(response: dict[str, Any]) -> tuple[Any, Any]:
    """Its stop reason; a message with a null stop reason is still being written."""
    if "stop_reason" not in response:
        return None, None
    reason = response["stop_reason"]
    return "null" if reason is None else reason, None


def parse(response: Any, reader: Reader) -> list[ToolCall]:
    """The `tool_use` blocks; text, thinking and server-side blocks are skipped."""
    content = response.get("content")
    if not isinstance(content, list):
        raise NotAResponse("no_content")
    last = last_block(content) if reader.ending.verdict is Handling.CUT_OFF else -1
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
                namespace=block.get("toolset_name"),
                is_last=position == last,
                origin=_origin(block) if "caller" in block or "toolset_name" in block else None,
            )
        )
    return calls


def _origin(block: dict[str, Any]) -> dict[str, Any] | None:
    """The caller, if it is a program, and the tool's toolset."""
    caller, toolset = block.get("caller"), block.get("toolset_name")
    is_direct = not isinstance(caller, dict) or caller.get("type") == "direct"
    if is_direct and toolset is None:
        return None
    return {"program": not is_direct, "toolset_name": toolset}


def assistant_messages(response: dict[str, Any], ids: Mapping[int, str]) -> list[dict[str, Any]]:
    """The response as the model's message, with the ids of calls that came without one."""
    content = response.get("content")
    if not isinstance(content, list):
        return []
    index = 0
    blocks: list[Any] = []
    for block in content:
        if isinstance(block, dict) and block.get("type") == "tool_use":
            block = {**block, "id": ids[index]} if index in ids else block
            index += 1
        if isinstance(block, dict) and isinstance(block.get("input"), str):
            block = {**block, "input": _object_in(block["input"])}  # in a stream, still text
        blocks.append(block)
    return [{"role": "assistant", "content": blocks}]


def _object_in(text: str) -> dict[str, Any]:
    try:
        value = encoding.decode(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def render(results: list[ToolResult]) -> list[dict[str, Any]]:
    """One user message with one block per result."""
    if not results:
        return []
    return [
        {
            "role": "user",
            "content": [_block(result) for result in results],
        }
    ]


def _block(result: ToolResult) -> dict[str, Any]:
    origin = result.origin or {}
    block = {
        "type": "tool_result",
        "tool_use_id": result.call_id,
        "content": as_bare(result) if origin.get("program") else content_of(result),
        "is_error": not result.ok,
    }
    if origin.get("toolset_name") is not None:
        block["toolset_name"] = origin["toolset_name"]
    return block


def content_of(result: ToolResult) -> str | list[dict[str, Any]]:
    """A result as text, or as blocks if it has media."""
    blocks = blocks_of(result.data) if result.ok else None
    if blocks is None or not any(media_of(block) or is_anthropic(block) for block in blocks):
        return as_text(result)
    shown = [_shown(block) for block in blocks]
    note = note_of(result)
    if note is not None:
        shown.append({"type": "text", "text": note})
    return [block for block in shown if block.get("text") != ""]  # the API refuses empty text


def _shown(block: dict[str, Any]) -> dict[str, Any]:
    if is_anthropic(block):
        return block
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
        **options_of(spec, "defer_loading", "input_examples"),
        **callers_of(spec, "direct", "code_execution"),
    }
    return tool if strict is None else {**tool, "strict": True}


def _answer(block: dict[str, Any]) -> HistoryAnswer | None:
    return HistoryAnswer(block.get("tool_use_id")) if block.get("type") == "tool_result" else None


def _said(message: dict[str, Any]) -> dict[str, Any]:
    """A message of a history as a response, with its stop reason if there is one."""
    reason = message.get("stop_reason")
    ended = {} if reason is None else {"stop_reason": reason}
    return {"type": "message", "content": message["content"], **ended}


HISTORY = Blocks(
    role="assistant",
    blocks="content",
    is_call=lambda block: block.get("type") == "tool_use",
    to_response=_said,
    answer=_answer,
    as_block=lambda text: {"type": "text", "text": text},
)

"""Bedrock Converse: `toolUse` blocks in, one message of `toolResult` blocks out."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from toolpool.contract.call import ToolCall
from toolpool.contract.content import IMAGE_TYPES, blocks_of, media_of, words_for
from toolpool.contract.result import ToolResult
from toolpool.contract.schema.strict import ANTHROPIC
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.formats.call_blocks import NotAResponse, Reader, last_block
from toolpool.dispatcher.formats.declared_options import strict_of
from toolpool.dispatcher.formats.history import Blocks, HistoryAnswer
from toolpool.dispatcher.formats.result_text import note_of, schema_of, text_of
from toolpool.dispatcher.formats.tool_names import PLAIN, alias

NAME = "bedrock"
ALIASES = ()
TOOL_NAMES = PLAIN
TAKES_LISTS = False

_DOCUMENTS = {
    "application/pdf": "pdf",
    "text/csv": "csv",
    "text/html": "html",
    "text/markdown": "md",
    "text/plain": "txt",
}


def recognises(response: Any) -> bool:
    """Whether its output is a message, or whether it is itself a message with a `toolUse` block."""
    if not isinstance(response, dict):
        return False
    if isinstance(response.get("output"), dict):
        return True
    content = response.get("content")
    return isinstance(content, list) and any(
        isinstance(block, dict) and "toolUse" in block for block in content
    )


def identity(response: dict[str, Any]) -> tuple[Any, Any]:
    """The request's id, which boto3 adds; a response does not name its model."""
    metadata = response.get("ResponseMetadata")
    return (metadata.get("RequestId") if isinstance(metadata, dict) else None), None


def stopped(response: dict[str, Any]) -> tuple[Any, Any]:
    """Its stop reason; a bare message has none."""
    return response.get("stopReason"), None


def parse(response: Any, reader: Reader) -> list[ToolCall]:
    """The `toolUse` blocks; text, reasoning and server-side tools are skipped."""
    output = response.get("output")
    message = output.get("message") if isinstance(output, dict) else response
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        raise NotAResponse("no_content")
    last = last_block(content)
    calls: list[ToolCall] = []
    for position, block in enumerate(content):
        use = block.get("toolUse") if isinstance(block, dict) else None
        if use is None:
            continue
        if not isinstance(use, dict):
            calls.append(reader.unreadable(len(calls)))
            continue
        if use.get("type") == "server_tool_use":
            continue
        calls.append(
            reader.call(
                len(calls),
                id=use.get("toolUseId"),
                name=use.get("name"),
                raw=use.get("input"),
                is_last=position == last,
            )
        )
    return calls


def assistant_messages(response: dict[str, Any], ids: Mapping[int, str]) -> list[dict[str, Any]]:
    """The response's own message, with the ids of calls that came without one."""
    output = response.get("output", {"message": response})
    message = output.get("message") if isinstance(output, dict) else None
    if not isinstance(message, dict) or not isinstance(message.get("content"), list):
        return []
    index = 0
    blocks: list[Any] = []
    for block in message["content"]:
        use = block.get("toolUse") if isinstance(block, dict) else None
        if isinstance(use, dict) and use.get("type") == "server_tool_use":
            use = None
        if isinstance(use, dict) and index in ids:
            block = {"toolUse": {**use, "toolUseId": ids[index]}}
        index += use is not None
        blocks.append(block)
    return [{"role": "assistant", "content": blocks}]


def render(results: list[ToolResult]) -> list[dict[str, Any]]:
    """One user message with one block per result."""
    if not results:
        return []
    return [
        {
            "role": "user",
            "content": [
                {
                    "toolResult": {
                        "toolUseId": result.call_id,
                        "content": _content(result),
                        "status": "success" if result.ok else "error",
                    }
                }
                for result in results
            ],
        }
    ]


def _content(result: ToolResult) -> list[dict[str, Any]]:
    """The content blocks. `json` takes objects only; the API refuses lists, texts and numbers."""
    if not result.ok:
        return [{"json": result.payload()}]
    blocks = blocks_of(result.data)
    if blocks is not None:
        content = [_shown(block, number) for number, block in enumerate(blocks, 1)]
    elif isinstance(result.data, dict):
        content = [{"json": result.data}]
    else:
        content = [{"text": text_of(result.data)}]
    note = note_of(result)
    if note is not None:
        content.append({"text": note})
    return content


def _shown(block: dict[str, Any], number: int) -> dict[str, Any]:
    """Media as bytes, as boto3 takes them; as JSON for the HTTP API they become base64."""
    media = media_of(block)
    if media is None:
        return {"text": words_for(block)}
    mime, data = media
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return {"text": words_for(block)}
    if mime in IMAGE_TYPES:
        return {"image": {"format": mime.partition("/")[2], "source": {"bytes": content}}}
    if mime in _DOCUMENTS:
        source = {"bytes": content}
        name = f"result {number}"
        return {"document": {"format": _DOCUMENTS[mime], "name": name, "source": source}}
    return {"text": words_for(block)}


def render_refusal(text: str) -> list[dict[str, Any]]:
    """A user message that asks for a valid response."""
    return [{"role": "user", "content": [{"text": text}]}]


def offer(specs: list[ToolSpec]) -> list[dict[str, Any]]:
    """The `tools` of `toolConfig`. An empty description is left out, as the API refuses it."""
    return [{"toolSpec": _offered(spec)} for spec in specs]


def _offered(spec: ToolSpec) -> dict[str, Any]:
    strict = strict_of(spec, ANTHROPIC)
    tool = {
        "name": alias(spec.name, TOOL_NAMES),
        **({"description": spec.description} if spec.description else {}),
        "inputSchema": {"json": strict or schema_of(spec.input_schema)},
    }
    return tool if strict is None else {**tool, "strict": True}


def _answer(block: dict[str, Any]) -> HistoryAnswer | None:
    told = block.get("toolResult")
    return HistoryAnswer(told.get("toolUseId")) if isinstance(told, dict) else None


HISTORY = Blocks(
    role="assistant",
    blocks="content",
    is_call=lambda block: "toolUse" in block,
    to_response=lambda message: {"output": {"message": message}},
    answer=_answer,
    as_block=lambda text: {"text": text},
)

"""MCP: `tools/call` requests in, one `CallToolResult` per call out."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from toolpool.contract import encoding
from toolpool.contract.call import ToolCall
from toolpool.contract.content import blocks_of, is_anthropic, media_of, words_for
from toolpool.contract.result import ToolResult
from toolpool.contract.spec import Effects, ToolSpec
from toolpool.dispatcher.formats.call_blocks import NotAResponse, Reader
from toolpool.dispatcher.formats.declared_options import options_of, output_object_of
from toolpool.dispatcher.formats.result_text import note_of, schema_of, text_of
from toolpool.dispatcher.formats.tool_names import alias

NAME = "mcp"
ALIASES = ()
TOOL_NAMES = re.compile(r"[a-zA-Z0-9_./-]{1,128}")
TAKES_LISTS = True
HISTORY = None

_METHOD = "tools/call"
_VERSION = "io.modelcontextprotocol/protocolVersion"
_ANY_JSON_SINCE = "2026-07-28"
_ROOT = ("$defs", "definitions")
_REFERENCES = {"$ref", "$dynamicRef", "$recursiveRef", "$id", "$anchor", "$dynamicAnchor"}
"""Keywords that refer to a schema, or make it a target."""
_VALUES = {"const", "default", "enum", "examples"}
_HANDLE: dict[str, Any] = {
    "type": "object",
    "properties": {"handle": {"type": "string"}, "state": {"type": "string"}},
    "required": ["handle", "state"],
}
"""The data of a background call, or of one whose output was cut."""


def recognises(response: Any) -> bool:
    """Whether it is a `tools/call` request, with or without its JSON-RPC envelope, or a batch."""
    if isinstance(response, list):
        return bool(response) and all(
            isinstance(item, dict) and item.get("method") == _METHOD for item in response
        )
    return isinstance(response, dict) and response.get("method") == _METHOD


def identity(response: Any) -> tuple[Any, Any]:
    """None: a request's id is unique only in its connection, and no model is named."""
    return None, None


def stopped(response: Any) -> tuple[Any, Any]:
    """None: a request has no stop reason."""
    return None, None


def parse(response: Any, reader: Reader) -> list[ToolCall]:
    """One call per request. A request's id may be a number; the protocol pairs by the envelope."""
    requests = response if isinstance(response, list) else [response]
    if not all(isinstance(request, dict) for request in requests):
        raise NotAResponse("no_request")
    calls: list[ToolCall] = []
    for index, request in enumerate(requests):
        id = request.get("id")
        if isinstance(id, int) and not isinstance(id, bool):
            id = encoding.word_of(id)
        params = request.get("params")
        if not isinstance(params, dict):
            calls.append(reader.unreadable(index, id=id))
            continue
        calls.append(
            reader.call(
                index,
                id=id,
                name=params.get("name"),
                raw=params.get("arguments"),
                id_is_optional=True,
                origin=_origin(params),
            )
        )
    return calls


def _origin(params: dict[str, Any]) -> dict[str, Any] | None:
    """The protocol version, if the request states it, as every request does since 2026-07-28."""
    meta = params.get("_meta")
    version = meta.get(_VERSION) if isinstance(meta, dict) else None
    return {"version": version} if isinstance(version, str) else None


def assistant_messages(response: Any, ids: Mapping[int, str]) -> list[dict[str, Any]]:
    """Empty, because a request is not part of a conversation."""
    return []


def render(results: list[ToolResult]) -> list[dict[str, Any]]:
    """One `CallToolResult` per result."""
    return [_result(result) for result in results]


def _result(result: ToolResult) -> dict[str, Any]:
    """The result.

    Before 2026-07-28 only an object may be structured content, and no result has a type.
    """
    made: dict[str, Any] = {"content": [], "isError": not result.ok}
    is_any_json = (result.origin or {}).get("version", "") >= _ANY_JSON_SINCE
    if is_any_json:
        made["resultType"] = "complete"
    blocks = blocks_of(result.data) if result.ok else None
    if blocks is not None:
        made["content"] = [_shown(block) for block in blocks]
        given = result.data if isinstance(result.data, dict) else {}
        made |= {key: given[key] for key in ("structuredContent", "_meta") if key in given}
        if not isinstance(made.get("_meta", {}), dict):
            del made["_meta"]
    elif result.ok:
        made["content"].append({"type": "text", "text": text_of(result.data)})
        made["structuredContent"] = result.data
    else:
        made["content"].append({"type": "text", "text": text_of(result.payload())})
    if not isinstance(made.get("structuredContent"), dict):
        if result.ok and result.handle is not None:  # the output was cut, and is stored in full
            made["structuredContent"] = {"handle": result.handle, "state": "COMPLETED"}
        elif not is_any_json:
            made.pop("structuredContent", None)
    note = note_of(result) if result.ok else None
    if note is not None:
        made["content"].append({"type": "text", "text": note})
    return made


def _shown(block: dict[str, Any]) -> dict[str, Any]:
    """An MCP block unchanged, and an Anthropic block in MCP's form."""
    if not is_anthropic(block):
        return block
    media = media_of(block)
    if media is not None and media[0].startswith("image/"):
        return {"type": "image", "mimeType": media[0], "data": media[1]}
    return {"type": "text", "text": words_for(block)}


def render_refusal(text: str) -> list[dict[str, Any]]:
    """A failed result that asks for a valid request."""
    return [{"content": [{"type": "text", "text": text}], "isError": True}]


def offer(specs: list[ToolSpec]) -> list[dict[str, Any]]:
    """The `tools` of a `tools/list` result, with the annotations for `effects`.

    Until 2025-11-25 an output schema has to describe objects: with another the SDKs refuse the
    whole list. The SDKs validate every success by it, so it also allows the handle that any call
    may be answered with. A background tool, whose calls are often answered with a handle, has no
    output schema.
    """
    offered: list[dict[str, Any]] = []
    for spec in specs:
        tool: dict[str, Any] = {
            "name": alias(spec.name, TOOL_NAMES),
            **options_of(spec, "title"),
            "description": spec.description,
            "inputSchema": schema_of(spec.input_schema),
        }
        output = None if spec.background else output_object_of(spec)
        if output is not None and (either := _or_handle(output)) is not None:
            tool["outputSchema"] = either
        annotations: dict[str, Any] = options_of(spec, "title")
        if spec.effects is not None:
            annotations["readOnlyHint"] = spec.effects is Effects.READ
        if spec.idempotent:
            annotations["idempotentHint"] = True
        if annotations:
            tool["annotations"] = annotations
        offered.append(tool)
    return offered


def _or_handle(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The schema of results or a handle; None if its references would change their targets."""
    kept = tuple(f"#/{name}/" for name in _ROOT)
    if not all(reference.startswith(kept) for reference in _references(schema)):
        return None
    root = {name: schema[name] for name in ("$schema", *_ROOT) if name in schema}
    result = {name: value for name, value in schema.items() if name not in root}
    return {**root, "type": "object", "anyOf": [result, _HANDLE]}


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for item in node:
            yield from _references(item)
    elif isinstance(node, dict):
        for name, inner in node.items():
            if name in _REFERENCES and isinstance(inner, str):
                yield inner
            elif name not in _VALUES:
                yield from _references(inner)

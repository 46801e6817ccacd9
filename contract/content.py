"""Content blocks in tool results, as workers return them and providers take them.

A tool returns MCP blocks or Anthropic result blocks (a document, a search result, a tool reference)
as a list, or in a `CallToolResult` object. A block that a provider cannot show is described in
words, with its type and size.
"""

import re
from typing import Any

_FIELDS: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
    "resource_link": ("uri", "name"),
    "tool_reference": ("tool_name",),
}
_SOURCES: dict[str, tuple[str, ...]] = {
    "base64": ("data", "media_type"),
    "text": ("data",),
    "url": ("url",),
    "file": ("file_id",),
}
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_RESULT_KEYS = frozenset({"content", "structuredContent", "isError", "_meta", "resultType"})

IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""The image MIME types that models accept."""


def blocks_of(data: Any) -> list[dict[str, Any]] | None:
    """The content blocks in `data`; None for ordinary data."""
    if isinstance(data, dict):
        if "content" not in data or not _RESULT_KEYS.issuperset(data):
            return None
        data = data["content"]
    if not isinstance(data, list) or not data or not all(map(_is_block, data)):
        return None
    return data


def error_of(data: Any) -> str | None:
    """The text of an MCP result with `isError`; None for a success or ordinary data."""
    if not isinstance(data, dict) or data.get("isError") is not True:
        return None
    blocks = data.get("content")
    if not _RESULT_KEYS.issuperset(data) or not isinstance(blocks, list):
        return None
    if not all(map(_is_block, blocks)):
        return None
    return "\n\n".join(words_for(block) for block in blocks)


def _is_block(block: Any) -> bool:
    if not isinstance(block, dict):
        return False
    kind = block.get("type")
    if kind == "resource":
        resource = block.get("resource")
        return (
            isinstance(resource, dict)
            and isinstance(resource.get("uri"), str)
            and (isinstance(resource.get("text"), str) or isinstance(resource.get("blob"), str))
        )
    if kind == "document" or (kind == "image" and "data" not in block):
        return _source_of(block) is not None
    if kind == "search_result":
        return _has(block, ("source", "title")) and _are_texts(block.get("content"))
    fields = _FIELDS.get(kind) if isinstance(kind, str) else None
    return fields is not None and _has(block, fields)


def _has(holder: dict[str, Any], fields: tuple[str, ...]) -> bool:
    return all(isinstance(holder.get(field), str) for field in fields)


def _are_texts(blocks: Any) -> bool:
    return isinstance(blocks, list) and all(
        isinstance(block, dict) and block.get("type") == "text" and _has(block, ("text",))
        for block in blocks
    )


def _source_of(block: dict[str, Any]) -> dict[str, Any] | None:
    """The source of an Anthropic image or document; None if it has no known source."""
    source = block.get("source")
    kind = source.get("type") if isinstance(source, dict) else None
    fields = _SOURCES.get(kind) if isinstance(kind, str) else None
    return source if fields is not None and _has(source or {}, fields) else None


def is_anthropic(block: dict[str, Any]) -> bool:
    """Whether a block has Anthropic's own format and is passed to Anthropic unchanged."""
    source = _source_of(block)
    if source is not None:
        return source["type"] != "base64" or media_of(block) is not None
    return block["type"] in ("search_result", "tool_reference")


def media_of(block: dict[str, Any]) -> tuple[str, str] | None:
    """The MIME type and base64 data of an image, audio or binary resource; None otherwise."""
    found = _media_of(block)
    if found is None or len(found[1]) % 4 or not _BASE64.fullmatch(found[1]):
        return None
    return found


def _media_of(block: dict[str, Any]) -> tuple[str, str] | None:
    """As `media_of`, without checking that the data are valid base64."""
    source = _source_of(block)
    if source is not None:
        return (source["media_type"], source["data"]) if source["type"] == "base64" else None
    if block["type"] in ("image", "audio"):
        return block["mimeType"], block["data"]
    resource = block.get("resource") or {}
    if isinstance(resource.get("blob"), str):
        return str(resource.get("mimeType") or "application/octet-stream"), resource["blob"]
    return None


def image_url_of(block: dict[str, Any]) -> str | None:
    """The URL of an image that is referenced rather than embedded."""
    source = _source_of(block) if block["type"] == "image" else None
    return source["url"] if source is not None and source["type"] == "url" else None


def words_for(block: dict[str, Any]) -> str:
    """A block as text: its content, or a description if it has no text."""
    kind = block["type"]
    if kind == "text":
        text: str = block["text"]
        return text
    if kind == "resource_link":
        described = f": {block['description']}" if block.get("description") else ""
        return f"[resource {block['name']} at {block['uri']}{described}]"
    if kind == "tool_reference":
        return f"[tool {block['tool_name']}]"
    if kind == "search_result":
        said = "\n\n".join(inner["text"] for inner in block["content"])
        return f"[search result {block['title']} at {block['source']}]\n{said}"
    media = _media_of(block)
    if media is not None:
        mime, data = media
        where = f" {block['resource']['uri']}" if kind == "resource" else ""
        return f"[{kind}{where}, {mime}, {len(data) * 3 // 4:,} bytes: not shown here]"
    source = _source_of(block)
    if source is not None:
        return _words_for_source(block, source)
    resource = block["resource"]
    return f"[resource {resource['uri']}]\n{resource['text']}"


def _words_for_source(block: dict[str, Any], source: dict[str, Any]) -> str:
    titled = f" {block['title']}" if isinstance(block.get("title"), str) else ""
    if source["type"] == "text":
        return f"[{block['type']}{titled}]\n{source['data']}"
    return f"[{block['type']}{titled} at {source.get('url') or source.get('file_id')}]"

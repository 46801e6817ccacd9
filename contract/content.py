"""MCP content blocks in what a tool returned, for workers and for the providers' forms.

A tool returns them as a list of blocks, or as a `CallToolResult` object around that list. What a
provider cannot show is named in words, with its type and size, so that the model knows of it.
"""

from typing import Any

_FIELDS: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
    "resource_link": ("uri", "name"),
}
_RESULT_KEYS = frozenset({"content", "structuredContent", "isError", "_meta", "resultType"})

IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""The images that models take."""


def blocks_of(data: Any) -> list[dict[str, Any]] | None:
    """The content blocks that `data` is made of; None for ordinary data."""
    if isinstance(data, dict):
        if "content" not in data or not _RESULT_KEYS.issuperset(data):
            return None
        data = data["content"]
    if not isinstance(data, list) or not data or not all(map(_is_block, data)):
        return None
    return data


def error_of(data: Any) -> str | None:
    """What an MCP result with `isError` says; None for a success and for ordinary data."""
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
    fields = _FIELDS.get(kind) if isinstance(kind, str) else None
    return fields is not None and all(isinstance(block.get(field), str) for field in fields)


def media_of(block: dict[str, Any]) -> tuple[str, str] | None:
    """The MIME type and base64 data of an image, a sound or a binary resource; None of text."""
    if block["type"] in ("image", "audio"):
        return block["mimeType"], block["data"]
    resource = block.get("resource") or {}
    if isinstance(resource.get("blob"), str):
        return str(resource.get("mimeType") or "application/octet-stream"), resource["blob"]
    return None


def words_for(block: dict[str, Any]) -> str:
    """A block as text: what it says, or what it is where it cannot be said."""
    kind = block["type"]
    if kind == "text":
        text: str = block["text"]
        return text
    if kind == "resource_link":
        described = f": {block['description']}" if block.get("description") else ""
        return f"[resource {block['name']} at {block['uri']}{described}]"
    media = media_of(block)
    if media is not None:
        mime, data = media
        where = f" {block['resource']['uri']}" if kind == "resource" else ""
        return f"[{kind}{where}, {mime}, {len(data) * 3 // 4:,} bytes: not shown here]"
    resource = block["resource"]
    return f"[resource {resource['uri']}]\n{resource['text']}"

"""Shortens tool output that exceeds the limit for models."""

from collections.abc import Awaitable
from typing import Any

import msgspec

from toolpool.contract import encoding
from toolpool.contract.content import blocks_of, media_of, words_for
from toolpool.contract.outcome import Outcome

_LEAST_BYTES = 200
"""Space for the note that replaces an omitted block."""


class Completion(msgspec.Struct, frozen=True):
    """A call's outcome, and the `whole` output if the outcome holds a shortened one.

    `busy_until` is awaited while a thread that outlived its timeout still occupies its slot.
    """

    outcome: Outcome
    whole: str | None = None
    busy_until: Awaitable[None] | None = None


def fitted(encoded: bytes, cap: int) -> Completion:
    """The success with `encoded`, a tool's output as JSON, in at most `cap` bytes.

    The middle of a text is omitted; MCP content blocks stay blocks; other data becomes text.
    """
    if len(encoded) <= cap:
        return Completion(Outcome(ok=True, data=msgspec.Raw(encoded)))
    value = encoding.decode(encoded)
    whole = value if isinstance(value, str) else encoded.decode()
    size = len(whole.encode())
    shown = _blocks(value, cap)
    if shown is None:
        shown = in_the_middle(whole, cap)
    if shown == whole:  # only JSON's escapes made it too long
        return Completion(Outcome(ok=True, data=msgspec.Raw(encoded)))
    return Completion(Outcome(ok=True, data=shown, output_bytes=size), whole)


def in_the_middle(text: str, cap: int) -> str:
    """`text` in about `cap` bytes: the middle is replaced by the number of omitted bytes."""
    raw = text.encode()
    if len(raw) <= cap:
        return text
    head, tail = raw[: cap * 2 // 3], raw[len(raw) - cap // 3 :]
    left_out = len(raw) - len(head) - len(tail)
    return (
        head.decode(errors="ignore")
        + f"\n… {left_out:,} of {len(raw):,} bytes left out …\n"
        + tail.decode(errors="ignore")
    )


def _blocks(value: Any, cap: int) -> Any:
    """MCP content whose blocks share the space equally; None for other data."""
    blocks = blocks_of(value)
    if blocks is None or len(blocks) * _LEAST_BYTES > cap:
        return None
    sizes = {index: len(encoding.encode(block)) for index, block in enumerate(blocks)}
    left, shown = cap, list(blocks)
    for position, index in enumerate(sorted(sizes, key=sizes.__getitem__)):
        share = left // (len(blocks) - position)
        if sizes[index] > share:
            shown[index] = _shortened(blocks[index], share)
        left -= min(sizes[index], share)
    # Structured content repeats what the blocks say; it is stored whole, not shortened.
    return {"content": shown} if isinstance(value, dict) else shown


def _shortened(block: dict[str, Any], cap: int) -> dict[str, Any]:
    """A text without its middle; an image or audio block becomes a description."""
    if media_of(block) is None:
        if block["type"] == "text":
            return block | {"text": in_the_middle(block["text"], cap)}
        if block["type"] == "resource":
            resource = block["resource"]
            return block | {"resource": resource | {"text": in_the_middle(resource["text"], cap)}}
    return {"type": "text", "text": in_the_middle(words_for(block), cap)}

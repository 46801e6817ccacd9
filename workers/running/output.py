"""What a tool returned, cut where it is more than a model is shown."""

from typing import Any

import msgspec

from toolpool.contract import encoding
from toolpool.contract.content import blocks_of, media_of, words_for
from toolpool.contract.outcome import Outcome

_LEAST_BYTES = 200
"""Room for what is said of a block that is left out."""


class Completion(msgspec.Struct, frozen=True):
    """How a call ended, and the `whole` output where the outcome holds it cut."""

    outcome: Outcome
    whole: str | None = None


def fitted(encoded: bytes, cap: int) -> Completion:
    """The success that `encoded`, a tool's output as JSON, stands for: at most `cap` bytes of it.

    Of a text the middle is left out; MCP content blocks stay blocks; anything else becomes text.
    """
    if len(encoded) <= cap:
        return Completion(Outcome(ok=True, data=msgspec.Raw(encoded)))
    value = encoding.decode(encoded)
    whole = value if isinstance(value, str) else encoded.decode()
    size = len(whole.encode())
    shown = _blocks(value, cap)
    if shown is None:
        shown = in_the_middle(whole, cap)
    if shown == whole:  # it is only JSON's escapes that made it too long
        return Completion(Outcome(ok=True, data=msgspec.Raw(encoded)))
    return Completion(Outcome(ok=True, data=shown, output_bytes=size), whole)


def in_the_middle(text: str, cap: int) -> str:
    """`text` without its middle: about `cap` bytes, and how many are left out."""
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
    """MCP content in which every block has a fair share of the room; None for other data."""
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
    # What a structured part says is said in the blocks as well; it is kept whole, not cut.
    return {"content": shown} if isinstance(value, dict) else shown


def _shortened(block: dict[str, Any], cap: int) -> dict[str, Any]:
    """A text without its middle; a picture or sound cannot be cut, so it is named instead."""
    if media_of(block) is None:
        if block["type"] == "text":
            return block | {"text": in_the_middle(block["text"], cap)}
        if block["type"] == "resource":
            resource = block["resource"]
            return block | {"resource": resource | {"text": in_the_middle(resource["text"], cap)}}
    return {"type": "text", "text": in_the_middle(words_for(block), cap)}

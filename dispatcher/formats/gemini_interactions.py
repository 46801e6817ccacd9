"""Gemini's Interactions API: `function_call` steps in, one `function_result` step per call out."""

from collections.abc import Mapping
from typing import Any

from toolpool.contract import encoding
from toolpool.contract.call import ToolCall
from toolpool.contract.content import blocks_of, media_of, words_for
from toolpool.contract.result import ToolResult
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.formats.call_blocks import NotAResponse, Reader
from toolpool.dispatcher.formats.declared_options import flat_functions
from toolpool.dispatcher.formats.gemini import TOOL_NAMES
from toolpool.dispatcher.formats.result_text import as_text, note_of
from toolpool.dispatcher.formats.tool_names import alias

NAME = "gemini_interactions"
ALIASES = ()
TAKES_LISTS = False
HISTORY = None

__all__ = ["TOOL_NAMES"]


def recognises(response: Any) -> bool:
    """Whether it is an interaction with steps."""
    return isinstance(response, dict) and (
        isinstance(response.get("steps"), list) or response.get("object") == "interaction"
    )


def identity(response: dict[str, Any]) -> tuple[Any, Any]:
    """The interaction's id and the model's name."""
    return response.get("id"), response.get("model")


def stopped(response: dict[str, Any]) -> tuple[Any, Any]:
    """Its status."""
    return response.get("status"), None


def parse(response: Any, reader: Reader) -> list[ToolCall]:
    """The steps that call a function and have no result beside them."""
    steps = response.get("steps")
    if not isinstance(steps, list):
        raise NotAResponse("no_output")
    told = [
        step.get("call_id")
        for step in steps
        if isinstance(step, dict) and step.get("type") == "function_result"
    ]
    waiting = [
        (position, step)
        for position, step in enumerate(steps)
        if isinstance(step, dict)
        and step.get("type") == "function_call"
        and (step.get("id") is None or step.get("id") not in told)
    ]
    return [
        reader.call(
            index,
            id=step.get("id"),
            name=step.get("name"),
            raw=step.get("arguments"),
            is_last=position == len(steps) - 1,
        )
        for index, (position, step) in enumerate(waiting)
    ]


def assistant_messages(response: dict[str, Any], ids: Mapping[int, str]) -> list[dict[str, Any]]:
    """The interaction's own steps, for a host that stores the history itself."""
    steps = response.get("steps")
    return list(steps) if isinstance(steps, list) else []


def render(results: list[ToolResult]) -> list[dict[str, Any]]:
    """One step per result."""
    return [
        {
            "type": "function_result",
            "call_id": result.call_id,
            "name": alias(result.name, TOOL_NAMES) or "unnamed",
            "result": _result(result),
            "is_error": not result.ok,
        }
        for result in results
    ]


def _result(result: ToolResult) -> str | list[dict[str, Any]]:
    blocks = blocks_of(result.data) if result.ok else None
    if not result.ok:
        return encoding.encode(result.payload()).decode()
    if blocks is None or not any(media_of(block) for block in blocks):
        return as_text(result)
    shown = [_shown(block) for block in blocks]
    note = note_of(result)
    return [*shown, {"type": "text", "text": note}] if note is not None else shown


def _shown(block: dict[str, Any]) -> dict[str, Any]:
    media = media_of(block)
    if media is not None:
        mime, data = media
        kind = mime.partition("/")[0]
        if kind in ("image", "audio", "video"):
            return {"type": kind, "mime_type": mime, "data": data}
        if mime == "application/pdf":
            return {"type": "document", "mime_type": mime, "data": data}
    return {"type": "text", "text": words_for(block)}


def render_refusal(text: str) -> list[dict[str, Any]]:
    """A user's step that asks for a valid response."""
    return [{"type": "user_input", "content": [{"type": "text", "text": text}]}]


def offer(specs: list[ToolSpec]) -> list[dict[str, Any]]:
    """The `tools` parameter: one entry per function."""
    return flat_functions(specs, TOOL_NAMES)

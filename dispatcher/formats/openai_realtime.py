"""OpenAI Realtime: a `response.done` event in, one `conversation.item.create` event per call out.

The host sends `response.create` afterwards, when it wants the model to go on.
"""

from collections.abc import Mapping
from typing import Any

from toolpool.contract.call import ToolCall
from toolpool.contract.encoding import word_of
from toolpool.contract.result import ToolResult
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.formats import openai_items as items
from toolpool.dispatcher.formats.call_blocks import Reader
from toolpool.dispatcher.formats.declared_options import flat_functions
from toolpool.dispatcher.formats.result_text import as_bare, as_text
from toolpool.dispatcher.formats.tool_names import PLAIN

NAME = "openai_realtime"
ALIASES = ()
TOOL_NAMES = PLAIN
TAKES_LISTS = False
HISTORY = None

_LONGEST_ID = 32


def recognises(response: Any) -> bool:
    """Whether it is the event that ends a response, or the response in it."""
    return isinstance(response, dict) and (
        response.get("type") == "response.done" or response.get("object") == "realtime.response"
    )


def _response(event: dict[str, Any]) -> dict[str, Any]:
    response = event.get("response")
    return response if isinstance(response, dict) else event


def identity(response: dict[str, Any]) -> tuple[Any, Any]:
    """The response's id; a response does not name its model."""
    return _response(response).get("id"), None


def stopped(response: dict[str, Any]) -> tuple[Any, Any]:
    """Its status, with the reason if it is incomplete."""
    inner = _response(response)
    status, details = inner.get("status"), inner.get("status_details")
    details = details if isinstance(details, dict) else {}
    error = details.get("error")
    said = error.get("message") if isinstance(error, dict) else None
    if status == "incomplete" and details.get("reason") is not None:
        return f"incomplete: {word_of(details['reason'])}", said
    return status, said


def parse(response: Any, reader: Reader) -> list[ToolCall]:
    """The items that wait for an answer."""
    return items.calls_in(_response(response).get("output"), reader)


def assistant_messages(response: dict[str, Any], ids: Mapping[int, str]) -> list[dict[str, Any]]:
    """Empty, because the session stores its own items."""
    return []


def render(results: list[ToolResult]) -> list[dict[str, Any]]:
    """One event per result. An output is one string here."""
    return [{"type": "conversation.item.create", "item": _item(result)} for result in results]


def _item(result: ToolResult) -> dict[str, Any]:
    origin = result.origin or {}
    if origin.get("type") == "mcp_approval_request":
        # An item created here needs its own id.
        made = {"id": f"answer_{result.call_id}"[:_LONGEST_ID]}
        return {**made, **items.answers(result)[0]}
    output = as_bare(result) if items.is_program(origin) else as_text(result)
    return {"type": "function_call_output", "call_id": result.call_id, "output": output}


def render_refusal(text: str) -> list[dict[str, Any]]:
    """A user's item that asks for a valid response."""
    content = [{"type": "input_text", "text": text}]
    item = {"type": "message", "role": "user", "content": content}
    return [{"type": "conversation.item.create", "item": item}]


def offer(specs: list[ToolSpec]) -> list[dict[str, Any]]:
    """The `tools` of a session."""
    return flat_functions(specs, TOOL_NAMES)

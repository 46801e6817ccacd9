"""Gemini's Live API: a `toolCall` message in, one function response per call out.

The session's `send_tool_response` sends them. A background call is answered twice, as the API
requires for non-blocking functions: when the call moves to the background, and with its result.
"""

from collections.abc import Mapping
from typing import Any

from toolpool.contract.call import ToolCall
from toolpool.contract.result import ToolResult
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.formats import gemini
from toolpool.dispatcher.formats.call_blocks import NotAResponse, Reader
from toolpool.dispatcher.formats.gemini import TOOL_NAMES

NAME = "gemini_live"
ALIASES = ()
TAKES_LISTS = False
HISTORY = None

__all__ = ["TOOL_NAMES"]


def recognises(response: Any) -> bool:
    """Whether it is a server message with a tool call, or the tool call in it."""
    return isinstance(response, dict) and any(
        key in response for key in ("toolCall", "tool_call", "functionCalls", "function_calls")
    )


def _calls(response: dict[str, Any]) -> Any:
    inner = gemini.either(response, "toolCall", "tool_call")
    holder = inner if isinstance(inner, dict) else response
    return gemini.either(holder, "functionCalls", "function_calls")


def identity(response: dict[str, Any]) -> tuple[Any, Any]:
    """The id of the first call, because a message has no id."""
    calls = _calls(response)
    first = calls[0] if isinstance(calls, list) and calls else None
    return (first.get("id") if isinstance(first, dict) else None), None


def stopped(response: dict[str, Any]) -> tuple[Any, Any]:
    """None, because a call arrives while the session goes on."""
    return None, None


def parse(response: Any, reader: Reader) -> list[ToolCall]:
    """The function calls of the message."""
    calls = _calls(response)
    if not isinstance(calls, list):
        raise NotAResponse("no_tool_calls")
    parts = [{"functionCall": call} for call in calls]
    return gemini.calls_of(parts, reader, 0, 0, has_own_key=True)


def assistant_messages(response: dict[str, Any], ids: Mapping[int, str]) -> list[dict[str, Any]]:
    """Empty, because the session stores its own history."""
    return []


def render(results: list[ToolResult]) -> list[dict[str, Any]]:
    """One function response per result."""
    return [_response(result) for result in results]


def _response(result: ToolResult) -> dict[str, Any]:
    response = gemini.response_of(result)
    if result.is_running:
        return {**response, "willContinue": True, "scheduling": "SILENT"}
    return response


def render_refusal(text: str) -> list[dict[str, Any]]:
    """Empty, because the session does not accept a response without a call."""
    return []


def offer(specs: list[ToolSpec]) -> list[dict[str, Any]]:
    """The `tools` of a session. Background tools are declared as non-blocking."""
    offered = gemini.offer(specs)
    for tool in offered:
        for declaration, spec in zip(tool["functionDeclarations"], specs, strict=True):
            if spec.background:
                declaration["behavior"] = "NON_BLOCKING"
    return offered

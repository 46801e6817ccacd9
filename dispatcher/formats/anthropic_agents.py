"""Anthropic Managed Agents: a session's events in, one user event per call out.

The use of a custom tool waits for its result. The use of the agent's own tools waits for a
confirmation if its permission is `ask`, and for a result only if the session says that it is
blocked on it: otherwise the server runs the tool.
"""

from collections.abc import Mapping
from typing import Any

from toolpool.contract.call import ToolCall
from toolpool.contract.result import ToolResult
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.formats import anthropic
from toolpool.dispatcher.formats.call_blocks import Reader
from toolpool.dispatcher.formats.result_text import schema_of
from toolpool.dispatcher.formats.tool_names import PLAIN, alias

NAME = "anthropic_agents"
ALIASES = ()
TOOL_NAMES = PLAIN
TAKES_LISTS = True
HISTORY = None

_CUSTOM, _OWN, _MCP = "agent.custom_tool_use", "agent.tool_use", "agent.mcp_tool_use"
_FAMILIES = ("agent.", "user.", "session.", "span.", "workflow_run.", "system.")
_CONFIRMATION = "user.tool_confirmation"
_OVER = (
    "session.status_terminated",
    "session.status_rescheduled",
    "session.deleted",
    "session.error",
    "user.interrupt",
)
"""Events that end the wait for everything before them."""
_ANSWERS = {"user.custom_tool_result": "custom_tool_use_id", "user.tool_result": "tool_use_id"}


def recognises(response: Any) -> bool:
    """Whether it is an event of a session, or a list of them."""
    if isinstance(response, list):
        return bool(response) and all(map(_is_event, response))
    return _is_event(response)


def _is_event(response: Any) -> bool:
    kind = response.get("type") if isinstance(response, dict) else None
    return isinstance(kind, str) and kind.startswith(_FAMILIES) and not _is_openai(kind)


def _is_openai(kind: str) -> bool:
    return kind.startswith("agent.session.")


def _events(response: Any) -> list[dict[str, Any]]:
    events = response if isinstance(response, list) else [response]
    return [event for event in events if isinstance(event, dict)]


def identity(response: Any) -> tuple[Any, Any]:
    """The id of the first event with a call: events do not name their session or model."""
    waiting = _waiting(_events(response))
    return (waiting[0][0].get("id") if waiting else None), None


def stopped(response: Any) -> tuple[Any, Any]:
    """None: each event says what the session waits for."""
    return None, None


def _waiting(events: list[dict[str, Any]]) -> list[tuple[dict[str, Any], str]]:
    """The events that wait for an answer, and the kind of answer."""
    blocked = _blocked_on(events)
    told = [event.get(_ANSWERS[name]) for event in events if (name := _kind(event)) in _ANSWERS]
    confirmed = {
        used: event.get("result")
        for event in events
        if _kind(event) == _CONFIRMATION and isinstance(used := event.get("tool_use_id"), str)
    }
    found: list[tuple[dict[str, Any], str]] = []
    for event in events:
        kind, id = event.get("type"), event.get("id")
        if kind in _OVER:
            found.clear()
        if kind not in (_CUSTOM, _OWN, _MCP) or id in told:
            continue
        told.append(id)  # the same event may be repeated
        is_blocking = blocked is not None and isinstance(id, str) and id in blocked
        if kind == _CUSTOM and (blocked is None or is_blocking):
            found.append((event, "user.custom_tool_result"))
            continue
        confirmation = confirmed.get(id) if isinstance(id, str) else None
        permission = confirmation or event.get("evaluated_permission")
        if permission == "ask" and (blocked is None or is_blocking):
            found.append((event, _CONFIRMATION))
        elif kind == _OWN and permission in (None, "allow") and is_blocking:
            found.append((event, "user.tool_result"))
    return found


def _kind(event: dict[str, Any]) -> str:
    kind = event.get("type")
    return kind if isinstance(kind, str) else ""


def _blocked_on(events: list[dict[str, Any]]) -> set[str] | None:
    """The events that the session is blocked on; None if the session does not say."""
    for event in reversed(events):
        if event.get("type") == "session.status_idle":
            reason = event.get("stop_reason")
            ids = reason.get("event_ids") if isinstance(reason, dict) else None
            return {id for id in ids if isinstance(id, str)} if isinstance(ids, list) else set()
    return None


def parse(response: Any, reader: Reader) -> list[ToolCall]:
    """The events that wait for an answer.

    Tools for which only permission is requested are not run here.
    """
    return [
        reader.call(
            index,
            id=event.get("id"),
            name=event.get("name"),
            raw=event.get("input"),
            namespace=event.get("mcp_server_name") if answer == _CONFIRMATION else None,
            asks=answer == _CONFIRMATION,
            origin={"type": answer},
            has_own_key=True,
        )
        for index, (event, answer) in enumerate(_waiting(_events(response)))
    ]


def assistant_messages(response: Any, ids: Mapping[int, str]) -> list[dict[str, Any]]:
    """Empty, because the session stores its own history."""
    return []


def render(results: list[ToolResult]) -> list[dict[str, Any]]:
    """One event per result."""
    return [_event(result) for result in results]


def _event(result: ToolResult) -> dict[str, Any]:
    kind = (result.origin or {}).get("type", "user.custom_tool_result")
    if kind == _CONFIRMATION:
        if result.ok:
            return {"type": kind, "tool_use_id": result.call_id, "result": "allow"}
        answer = {"type": kind, "tool_use_id": result.call_id, "result": "deny"}
        return {**answer, "deny_message": result.error or ""}
    content = anthropic.content_of(result)
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {
        "type": kind,
        _ANSWERS[kind]: result.call_id,
        "content": [block for block in blocks if block.get("text") != ""],
        "is_error": not result.ok,
    }


def render_refusal(text: str) -> list[dict[str, Any]]:
    """A user message that asks for a valid response."""
    return [{"type": "user.message", "content": [{"type": "text", "text": text}]}]


def offer(specs: list[ToolSpec]) -> list[dict[str, Any]]:
    """The custom tools of an agent."""
    return [
        {
            "type": "custom",
            "name": alias(spec.name, TOOL_NAMES),
            "description": spec.description,
            "input_schema": schema_of(spec.input_schema),
        }
        for spec in specs
    ]

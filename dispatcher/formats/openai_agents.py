"""OpenAI agent sessions: required actions in, one session input per call out."""

from collections.abc import Iterator, Mapping
from typing import Any

from toolpool.contract.call import ToolCall
from toolpool.contract.content import IMAGE_TYPES, blocks_of, media_of, words_for
from toolpool.contract.encoding import word_of
from toolpool.contract.result import ToolResult
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.formats.call_blocks import NO_APPROVER, Reader
from toolpool.dispatcher.formats.declared_options import flat_functions
from toolpool.dispatcher.formats.result_text import as_text, note_of
from toolpool.dispatcher.formats.tool_names import PLAIN

NAME = "openai_agents"
ALIASES = ()
TOOL_NAMES = PLAIN
TAKES_LISTS = True
HISTORY = None

_ITEM_DONE = "agent.session.turn.item.done"
_INPUT = "agent.session.input"


def recognises(response: Any) -> bool:
    """Whether it is a session, one of its events, or a list of them."""
    if isinstance(response, list):
        return bool(response) and all(map(_is_of_session, response))
    return _is_of_session(response)


def _is_of_session(response: Any) -> bool:
    if not isinstance(response, dict):
        return False
    kind = response.get("type")
    return response.get("object") == "agent.session" or (
        isinstance(kind, str) and kind.startswith("agent.session.")
    )


def _events(response: Any) -> list[dict[str, Any]]:
    return (
        [item for item in response if isinstance(item, dict)]
        if isinstance(response, list)
        else [response]
    )


def _session(response: Any) -> dict[str, Any] | None:
    """The newest state of the session."""
    for event in reversed(_events(response)):
        held = event if event.get("object") == "agent.session" else event.get("session")
        if isinstance(held, dict):
            return held
    return None


def identity(response: Any) -> tuple[Any, Any]:
    """The id of the turn with the calls, and the model's name."""
    session = _session(response) or {}
    agent = session.get("agent")
    turn = next((action.get("turn_id") for action in _actions(response)), None)
    return turn, agent.get("model") if isinstance(agent, dict) else None


def stopped(response: Any) -> tuple[Any, Any]:
    """The session's status."""
    session = _session(response) or {}
    return session.get("status"), session.get("error")


def _actions(response: Any) -> Iterator[dict[str, Any]]:
    """The session's required actions; without a session, its turn's complete items."""
    session = _session(response)
    if session is not None:
        actions = session.get("required_actions")
        for action in actions if isinstance(actions, list) else []:
            if isinstance(action, dict) and word_of(action.get("type")) in _KINDS:
                yield action
        return
    for event in _events(response):
        item = event.get("item") if event.get("type") == _ITEM_DONE else None
        if isinstance(item, dict) and item.get("type") == "function_call":
            yield item


def parse(response: Any, reader: Reader) -> list[ToolCall]:
    """The calls, and the requests that a person would have to answer."""
    return [_call(index, action, reader) for index, action in enumerate(_actions(response))]


def _call(index: int, action: dict[str, Any], reader: Reader) -> ToolCall:
    kind = action["type"]
    origin = {"type": kind, "turn_id": action.get("turn_id")}
    if kind == "function_call":
        return reader.call(
            index,
            id=action.get("call_id"),
            name=action.get("name"),
            raw=action.get("arguments"),
            is_partial=action.get("status") in ("in_progress", "incomplete"),
            origin=origin,
            has_own_key=True,
        )
    asked = action.get("request")
    asked = asked if isinstance(asked, dict) else {}
    is_of_tool = asked.get("type") == "mcp_tool_call"  # nobody can sign in to a page here
    raw = asked.get("arguments")
    return reader.call(
        index,
        id=action.get("request_id"),
        name=asked.get("name") or asked.get("type"),
        namespace=asked.get("server_label"),
        raw={} if raw is None else raw,
        flaw=None if is_of_tool else NO_APPROVER,
        asks=is_of_tool,
        origin={**origin, "asked": asked.get("type")},
    )


def assistant_messages(response: Any, ids: Mapping[int, str]) -> list[dict[str, Any]]:
    """Empty, because the session stores its own history."""
    return []


def render(results: list[ToolResult]) -> list[dict[str, Any]]:
    """One input per result."""
    return [
        _KINDS[(result.origin or {}).get("type", "function_call")](result) for result in results
    ]


def _tool_result(result: ToolResult) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "type": f"{_INPUT}.tool_result",
        "call_id": result.call_id,
        "turn_id": (result.origin or {}).get("turn_id"),
        "success": result.ok,
    }
    if result.ok:
        return {**answer, "output": _output(result)}
    return {**answer, "error": as_text(result)}


def _output(result: ToolResult) -> str | list[dict[str, Any]]:
    blocks = blocks_of(result.data)
    if blocks is None or not any(media_of(block) for block in blocks):
        return as_text(result)
    shown = [_shown(block) for block in blocks]
    note = note_of(result)
    return [*shown, {"type": "input_text", "text": note}] if note is not None else shown


def _shown(block: dict[str, Any]) -> dict[str, Any]:
    media = media_of(block)
    if media is not None and media[0] in IMAGE_TYPES:
        return {"type": "input_image", "image_url": f"data:{media[0]};base64,{media[1]}"}
    return {"type": "input_text", "text": words_for(block)}


def _mcp_decided(result: ToolResult) -> dict[str, Any]:
    response = {"type": "mcp_tool_call", "decision": "approve" if result.ok else "deny"}
    answer = {"type": f"{_INPUT}.mcp_approval_request_result", "request_id": result.call_id}
    return {**answer, "response": response}


def _computer_denied(result: ToolResult) -> dict[str, Any]:
    asked = (result.origin or {}).get("asked")
    is_sign_in = asked == "browser_authentication"
    how = {"action": "cancel"} if is_sign_in else {"decision": "deny"}
    answer = {"type": f"{_INPUT}.computer_use_approval_request_result"}
    return {**answer, "request_id": result.call_id, "response": {"type": asked, **how}}


_KINDS = {
    "function_call": _tool_result,
    "mcp_approval_request": _mcp_decided,
    "computer_use_approval_request": _computer_denied,
}


def render_refusal(text: str) -> list[dict[str, Any]]:
    """A user message that asks for a valid response."""
    content = [{"type": "input_text", "text": text}]
    message = {"type": "message", "role": "user", "content": content}
    return [{"type": f"{_INPUT}.message", "input": [message]}]


def offer(specs: list[ToolSpec]) -> list[dict[str, Any]]:
    """The function tools of an agent."""
    return flat_functions(specs, TOOL_NAMES)

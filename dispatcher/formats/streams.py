"""The events of a stream, collected, as the response that they make up.

Of a stream that ended early the response says so, in its provider's own words: none of its calls
is run.
"""

from typing import Any

Events = list[dict[str, Any]]

_ANTHROPIC = frozenset(
    {
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "ping",
        "error",
    }
)
_ENDS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")


def collected(events: Events) -> dict[str, Any] | None:
    """The response that these events make up; None where they are no stream's events."""
    if all(event.get("object") == "chat.completion.chunk" for event in events):
        return _completion(events)
    kinds = [event.get("type") for event in events]
    if not all(isinstance(kind, str) for kind in kinds):
        return None
    if "message_start" in kinds and _ANTHROPIC.issuperset(_own(kinds)):
        return _message(events)
    if all(kind.startswith(("response.", "error")) for kind in kinds if kind):
        return _response(events) if "response.created" in kinds or _end(events) else None
    return None


def _own(kinds: list[Any]) -> set[Any]:
    """Without what the SDK's stream helper adds: snapshots such as `text` and `input_json`."""
    return set(kinds) - {"text", "input_json", "thinking", "citation", "signature"}


def _message(events: Events) -> dict[str, Any]:
    """Anthropic's: blocks are started, filled by deltas, and stopped."""
    message: dict[str, Any] = {"type": "message", "content": [], "stop_reason": None}
    blocks: dict[int, dict[str, Any]] = {}
    texts: dict[int, str] = {}
    for event in events:
        kind, index = event.get("type"), event.get("index")
        if kind == "message_start" and isinstance(event.get("message"), dict):
            message |= event["message"]
        elif kind == "content_block_start" and isinstance(event.get("content_block"), dict):
            blocks[_place(index)] = dict(event["content_block"])
        elif kind == "content_block_delta" and isinstance(event.get("delta"), dict):
            _fill(blocks.setdefault(_place(index), {}), event["delta"], texts, _place(index))
        elif kind == "message_delta" and isinstance(event.get("delta"), dict):
            message |= event["delta"]
    for index, text in texts.items():
        if blocks[index].get("type") == "tool_use" and text:
            blocks[index]["input"] = text
    message["content"] = [blocks[index] for index in sorted(blocks)]
    if not any(event.get("type") == "message_stop" for event in events):
        message["stop_reason"] = None
    return message


def _fill(block: dict[str, Any], delta: dict[str, Any], texts: dict[int, str], index: int) -> None:
    """Add a delta to its block. The input of a call is JSON text in pieces."""
    if isinstance(delta.get("partial_json"), str):
        texts[index] = texts.get(index, "") + delta["partial_json"]
        return
    for field in ("text", "thinking", "signature"):
        if isinstance(delta.get(field), str):
            block[field] = str(block.get(field) or "") + delta[field]


def _completion(chunks: Events) -> dict[str, Any]:
    """OpenAI Chat's: each choice's message comes in pieces, its calls by their index."""
    completion: dict[str, Any] = {"object": "chat.completion"}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        completion |= {key: chunk[key] for key in ("id", "model") if chunk.get(key)}
        for part in chunk.get("choices") or []:
            if not isinstance(part, dict):
                continue
            empty = {"message": {"role": "assistant", "content": None}, "finish_reason": None}
            choice = choices.setdefault(_place(part.get("index")), empty)
            choice["finish_reason"] = part.get("finish_reason") or choice["finish_reason"]
            if isinstance(part.get("delta"), dict):
                _extend(choice["message"], part["delta"])
    for choice in choices.values():
        choice["finish_reason"] = choice["finish_reason"] or "error"  # it ended early
        calls = choice["message"].pop("calls", None)
        if calls:
            choice["message"]["tool_calls"] = [calls[index] for index in sorted(calls)]
    completion["choices"] = [choices[index] for index in sorted(choices)]
    return completion


def _extend(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for field in ("content", "refusal", "reasoning_content"):
        if isinstance(delta.get(field), str):
            message[field] = (message.get(field) or "") + delta[field]
    if isinstance(delta.get("function_call"), dict):
        _join(message.setdefault("function_call", {}), delta["function_call"])
    for piece in delta.get("tool_calls") or []:
        if isinstance(piece, dict):
            call = message.setdefault("calls", {}).setdefault(_place(piece.get("index")), {})
            for key, value in piece.items():
                if key in ("function", "custom") and isinstance(value, dict):
                    _join(call.setdefault(key, {}), value)
                elif key != "index" and value is not None:
                    call[key] = value


def _join(holder: dict[str, Any], piece: dict[str, Any]) -> None:
    """Add the texts of a piece to those before it; a name comes whole or in pieces."""
    for key, value in piece.items():
        if isinstance(value, str):
            holder[key] = str(holder.get(key) or "") + value


def _end(events: Events) -> dict[str, Any] | None:
    """The event that has the whole response."""
    return next((event for event in reversed(events) if event.get("type") in _ENDS), None)


def _response(events: Events) -> dict[str, Any]:
    """OpenAI Responses': the last event has the response; without it, the items that were done."""
    end = _end(events)
    if end is not None and isinstance(end.get("response"), dict):
        whole: dict[str, Any] = end["response"]
        return whole
    heads = [event["response"] for event in events if isinstance(event.get("response"), dict)]
    started: dict[str, Any] = heads[0] if heads else {}
    done = [
        event["item"]
        for event in events
        if event.get("type") == "response.output_item.done" and isinstance(event.get("item"), dict)
    ]
    return {**started, "object": "response", "output": done, "status": "incomplete"}


def _place(index: Any) -> int:
    """A block's or call's place; what is none is the first."""
    return index if isinstance(index, int) else 0

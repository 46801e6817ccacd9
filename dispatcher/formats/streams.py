"""Builds a response from the collected events of a stream.

If a stream ended early, its response has the provider's stop reason for that, so that none of its
calls is run.
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
    }
)
_ENDS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")


def collected(events: Events) -> dict[str, Any] | None:
    """The response that these events make up; None if they are not a stream's events.

    Unknown events (a ping, an error, an event of a newer API) are skipped.
    """
    if any(map(_is_chunk, events)):
        return _completion(events)
    if all("candidates" in event for event in events):
        return _generation(events)
    kinds = {kind for event in events if isinstance(kind := event.get("type"), str)}
    if kinds & _ANTHROPIC:
        return _message(events)
    if "response.done" in kinds:  # of a Realtime session
        return next(event for event in events if event.get("type") == "response.done")
    if any(kind.startswith("response.") for kind in kinds):
        return _response(events)
    return None


def _is_chunk(event: dict[str, Any]) -> bool:
    if event.get("object") == "chat.completion.chunk":
        return True
    choices = event.get("choices")
    return isinstance(choices, list) and any(
        isinstance(choice, dict) and "delta" in choice for choice in choices
    )


def _message(events: Events) -> dict[str, Any]:
    """Build Anthropic's message: blocks are started, filled by deltas, and stopped."""
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
        if text:
            blocks[index]["input"] = text
    message["content"] = [blocks[index] for index in sorted(blocks)]
    if not _is_whole(events, blocks):
        message["stop_reason"] = None
    return message


def _is_whole(events: Events, blocks: dict[int, dict[str, Any]]) -> bool:
    """Whether the message, and each of its blocks, began and ended."""
    kinds = [event.get("type") for event in events]
    ended = {_place(e.get("index")) for e in events if e.get("type") == "content_block_stop"}
    both = "message_start" in kinds and "message_stop" in kinds
    return both and "error" not in kinds and ended >= blocks.keys()


def _fill(block: dict[str, Any], delta: dict[str, Any], texts: dict[int, str], index: int) -> None:
    """Add a delta to its block. The input of a call is JSON text in pieces."""
    if isinstance(delta.get("partial_json"), str):
        texts[index] = texts.get(index, "") + delta["partial_json"]
        return
    if isinstance(delta.get("citation"), dict):
        block["citations"] = [*(block.get("citations") or []), delta["citation"]]
    for field in ("text", "thinking", "signature"):
        if isinstance(delta.get(field), str):
            block[field] = str(block.get(field) or "") + delta[field]


def _completion(chunks: Events) -> dict[str, Any]:
    """Build OpenAI Chat's completion: each choice's message comes in pieces, its calls by index."""
    completion: dict[str, Any] = {"object": "chat.completion"}
    choices: dict[int, dict[str, Any]] = {}
    is_broken = any(chunk.get("error") for chunk in chunks)
    for chunk in chunks:
        completion |= {key: chunk[key] for key in ("id", "model") if chunk.get(key)}
        parts = chunk.get("choices")
        for part in parts if isinstance(parts, list) else []:
            if not isinstance(part, dict):
                continue
            empty = {"message": {"role": "assistant", "content": None}, "finish_reason": None}
            choice = choices.setdefault(_place(part.get("index")), empty)
            choice["finish_reason"] = part.get("finish_reason") or choice["finish_reason"]
            if isinstance(part.get("delta"), dict):
                _extend(choice["message"], part["delta"])
    for choice in choices.values():
        if is_broken or not choice["finish_reason"]:
            choice["finish_reason"] = "error"  # it ended early
        calls = choice["message"].pop("calls", None)
        if calls:
            calls.sort(key=lambda call: _place(call.pop("index", None)))
            choice["message"]["tool_calls"] = calls
    completion["choices"] = [choices[index] for index in sorted(choices)]
    return completion


def _extend(message: dict[str, Any], delta: dict[str, Any]) -> None:
    if isinstance(delta.get("reasoning_details"), list):
        message.setdefault("reasoning_details", []).extend(delta["reasoning_details"])
    for field in ("content", "refusal", "reasoning_content"):
        if isinstance(delta.get(field), str):
            message[field] = (message.get(field) or "") + delta[field]
    if isinstance(delta.get("function_call"), dict):
        _join(message.setdefault("function_call", {}), delta["function_call"])
    pieces = delta.get("tool_calls")
    for piece in pieces if isinstance(pieces, list) else []:
        if isinstance(piece, dict):
            call = _call_of(message.setdefault("calls", []), piece)
            for key, value in piece.items():
                if key in ("function", "custom") and isinstance(value, dict):
                    _join(call.setdefault(key, {}), value)
                elif value is not None:
                    call[key] = value


def _call_of(calls: Events, piece: dict[str, Any]) -> dict[str, Any]:
    """The call that a piece belongs to: by its index, unless an id shows that another call begins.

    Some servers leave the index out, or give every call the same.
    """
    index, id = piece.get("index"), piece.get("id")
    for call in reversed(calls):
        if call.get("index") == index and (not id or call.get("id") in (None, id)):
            return call
    calls.append({"index": index})
    return calls[-1]


def _join(holder: dict[str, Any], piece: dict[str, Any]) -> None:
    """Append the texts of a piece; a name comes in pieces, or complete every time."""
    for key, value in piece.items():
        if isinstance(value, str) and not (key == "name" and holder.get(key) == value):
            holder[key] = str(holder.get(key) or "") + value


def _generation(chunks: Events) -> dict[str, Any]:
    """Build Gemini's response: each chunk is a response with more parts of the first candidate."""
    parts: list[Any] = []
    candidate: dict[str, Any] = {}
    for chunk in chunks:
        candidates = chunk["candidates"]
        first = candidates[0] if isinstance(candidates, list) and candidates else None
        if isinstance(first, dict):
            content = first.get("content")
            more = content.get("parts") if isinstance(content, dict) else None
            parts += more if isinstance(more, list) else []
            candidate |= {key: value for key, value in first.items() if value is not None}
    candidate["content"] = {"role": "model", "parts": parts}
    if not any(key in candidate for key in ("finishReason", "finish_reason")):
        candidate["finishReason"] = "broken off"
    return {**chunks[-1], "candidates": [candidate]}


def _end(events: Events) -> dict[str, Any] | None:
    """The event that has the whole response."""
    return next((event for event in reversed(events) if event.get("type") in _ENDS), None)


def _response(events: Events) -> dict[str, Any]:
    """Build OpenAI's response from the last event, or without it from the finished items."""
    end = _end(events)
    if end is not None and isinstance(end.get("response"), dict):
        whole: dict[str, Any] = end["response"]
        return whole if whole.get("output") else {**whole, "output": _items(events)}
    heads = [event["response"] for event in events if isinstance(event.get("response"), dict)]
    started: dict[str, Any] = heads[0] if heads else {}
    return {**started, "object": "response", "output": _items(events), "status": "incomplete"}


def _items(events: Events) -> Events:
    """The items that were done."""
    return [
        event["item"]
        for event in events
        if event.get("type") == "response.output_item.done" and isinstance(event.get("item"), dict)
    ]


def _place(index: Any) -> int:
    """The position of a block or call; 0 if it is invalid."""
    return index if isinstance(index, int) else 0

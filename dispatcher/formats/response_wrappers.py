"""Unwraps responses: from a line of a batch's output, a stream's events, or bare parts."""

from typing import Any

from toolpool.contract.encoding import word_of
from toolpool.dispatcher.formats import openai_items, streams
from toolpool.dispatcher.formats.call_blocks import NotAResponse


class NoResponse(Exception):
    """Raised for a line of a batch that failed, without a response. `why` is its error."""

    def __init__(self, why: Any) -> None:
        self.why = word_of(why)
        super().__init__(self.why)


def opened(plain: Any) -> Any:
    """The wrapped response; any other value unchanged. Raises `NoResponse` and `NotAResponse`.

    A list of content blocks, of items or of a message's calls counts as a whole response. A list
    with calls of several providers is refused.
    """
    if isinstance(plain, dict):
        kind = plain.get("type")
        if kind in _MESSAGES and isinstance(plain.get("data"), dict):
            return {**plain["data"], "type": kind}  # LangChain's `message_to_dict`
        if kind is None:
            return _of_batch(plain) if "custom_id" in plain else _of_choice(plain)
        return plain if kind == "message" else _of_parts([plain]) or plain
    if isinstance(plain, list) and plain and all(isinstance(item, dict) for item in plain):
        return streams.collected(plain) or _of_parts(plain) or plain
    return plain


def _of_choice(plain: dict[str, Any]) -> dict[str, Any]:
    """A completion that consists of this choice, or a response that consists of this candidate."""
    if "finish_reason" in plain and "index" in plain and "message" in plain:
        return {"choices": [plain]}
    if _is_said_by_gemini(plain):
        return {"candidates": [{"content": plain}]}
    return {"candidates": [plain]} if _is_said_by_gemini(plain.get("content")) else plain


def _is_said_by_gemini(content: Any) -> bool:
    is_content = isinstance(content, dict) and isinstance(content.get("parts"), list)
    return is_content and content.get("role") == "model"


def _of_batch(line: dict[str, Any]) -> dict[str, Any]:
    """The response of a batch line:

    Anthropic has the message in `result`, OpenAI the body in `response`.
    """
    result, response = line.get("result"), line.get("response")
    if isinstance(result, dict):
        if isinstance(result.get("message"), dict):
            message: dict[str, Any] = result["message"]
            return message
        raise NoResponse(result.get("type"))
    body = response.get("body") if isinstance(response, dict) else None
    status = response.get("status_code") if isinstance(response, dict) else None
    if isinstance(body, dict) and ("choices" in body or "output" in body) and status in (None, 200):
        return body
    raise NoResponse("error" if status is None else f"status {status}")


def _of_parts(parts: list[dict[str, Any]]) -> dict[str, Any] | None:
    """A response made of these parts; None unless all parts have the same known form."""
    kinds = {kind for part in parts if isinstance(kind := part.get("type"), str)}
    if not kinds or not all(isinstance(part.get("type"), str) for part in parts):
        return None
    _require_one_provider(parts)
    if kinds <= _BLOCKS or ("tool_use" in kinds and not kinds & _ITEMS):
        return {"type": "message", "content": parts}
    is_called = any(openai_items.waits(part) for part in parts)
    if (kinds <= _ITEMS or is_called) and "tool_use" not in kinds and not kinds & _CALLS:
        return {"object": "response", "output": parts}
    is_chat = all(isinstance(part.get("function") or part.get("custom"), dict) for part in parts)
    if is_chat and kinds <= _CALLS:
        return {"role": "assistant", "tool_calls": parts}
    return None


def _require_one_provider(parts: list[dict[str, Any]]) -> None:
    called = {part["type"]: _provider_of(part) for part in parts}
    providers = {name for name in called.values() if name}
    if len(providers) > 1:
        kinds = " beside ".join(sorted(kind for kind, name in called.items() if name))
        raise NotAResponse("unknown_type", type=kinds)


def _provider_of(part: dict[str, Any]) -> str:
    """The provider of a call; empty for anything else."""
    if part["type"] == "tool_use":
        return "anthropic"
    if part["type"] in _CALLS and isinstance(part.get("function") or part.get("custom"), dict):
        return "openai_chat"
    return "openai_responses" if openai_items.waits(part) else ""


_MESSAGES = ("ai", "AIMessageChunk")
_BLOCKS = frozenset({"tool_use", "text", "thinking", "redacted_thinking"})
_ITEMS = openai_items.KINDS | {"message", "reasoning"}
_CALLS = frozenset({"function", "custom"})

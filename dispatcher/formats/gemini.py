"""Gemini: `functionCall` parts in, one message of `functionResponse` parts out.

Calls mostly come without an id: then they are answered without one, in their order, by name. The
REST API writes keys in camelCase, the Python SDK's objects in snake_case: both are read.
"""

import re
from typing import Any

from toolpool.contract.call import ToolCall
from toolpool.contract.content import blocks_of, media_of, words_for
from toolpool.contract.encoding import printable
from toolpool.contract.result import ToolResult
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.formats.blocks import NotAResponse, Reader
from toolpool.dispatcher.formats.names import alias
from toolpool.dispatcher.formats.text import schema_of

NAME = "gemini"
ALIASES = ()
TOOL_NAMES = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.-]{0,63}")
TAKES_LISTS = False


def recognises(response: Any) -> bool:
    """A response with candidates, or with why there are none."""
    return isinstance(response, dict) and (
        "candidates" in response or "promptFeedback" in response or "prompt_feedback" in response
    )


def identity(response: dict[str, Any]) -> tuple[Any, Any]:
    """The response's id and the model's version."""
    return _either(response, "responseId", "response_id"), _either(
        response, "modelVersion", "model_version"
    )


def parse(response: Any, reader: Reader) -> list[ToolCall]:
    """The `functionCall` parts of the first candidate; text, thoughts and code are passed over."""
    candidates = response.get("candidates")
    if not isinstance(candidates, list) or not candidates or not isinstance(candidates[0], dict):
        raise NotAResponse("no_candidates")
    candidate = candidates[0]
    reason = _either(candidate, "finishReason", "finish_reason")
    content = candidate.get("content")
    parts = content.get("parts") if isinstance(content, dict) else None
    if parts is None:
        if reason in (None, "STOP"):
            parts = []  # an empty answer is sent without parts
        else:
            raise NotAResponse(
                "no_parts", finish_reason=printable(str(getattr(reason, "value", reason))[:40])
            )
    if not isinstance(parts, list):
        raise NotAResponse("no_parts_list")
    calls: list[ToolCall] = []
    for position, part in enumerate(parts):
        call = _either(part, "functionCall", "function_call") if isinstance(part, dict) else None
        if call is None:
            continue
        if not isinstance(call, dict):
            calls.append(reader.unreadable(len(calls)))
            continue
        calls.append(
            reader.call(
                len(calls),
                id=call.get("id"),
                name=call.get("name"),
                raw=call.get("args"),
                cut_off=reason == "MAX_TOKENS" and position == len(parts) - 1,
                id_is_optional=True,
            )
        )
    return calls


def _either(holder: dict[str, Any], camel: str, snake: str) -> Any:
    value = holder.get(camel)
    return value if value is not None else holder.get(snake)


def said(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The first candidate's content."""
    candidates = response.get("candidates")
    content = candidates[0].get("content") if candidates else None
    return [content] if isinstance(content, dict) else []


def render(results: list[ToolResult]) -> list[dict[str, Any]]:
    """One user message with a part a result."""
    if not results:
        return []
    return [
        {"role": "user", "parts": [{"functionResponse": _response(result)} for result in results]}
    ]


def _response(result: ToolResult) -> dict[str, Any]:
    made: dict[str, Any] = {"id": result.call_id} if result.id_given else {}
    made["name"] = alias(result.name, TOOL_NAMES) or "unnamed"
    blocks = blocks_of(result.data) if result.ok else None
    if not result.ok:
        made["response"] = {"error": result.payload()}
    elif blocks is None:
        made["response"] = {"output": result.data}
    else:
        shown = [media for block in blocks if (media := media_of(block)) is not None]
        said = [words_for(block) for block in blocks if media_of(block) is None]
        made["response"] = {"output": "\n\n".join(said)}
        if shown:
            made["parts"] = [
                {"inlineData": {"mimeType": mime, "data": data}} for mime, data in shown
            ]
    if result.note is not None:
        made["response"]["note"] = result.note
    return made


def render_refusal(text: str) -> list[dict[str, Any]]:
    """A user message that asks for a valid response."""
    return [{"role": "user", "parts": [{"text": text}]}]


def offer(specs: list[ToolSpec]) -> list[dict[str, Any]]:
    """The `tools` parameter: one tool that declares every function.

    `parametersJsonSchema` takes JSON Schema as it is, so nothing is lost on the way into the
    upper-case form of `parameters`.
    """
    if not specs:
        return []
    return [
        {
            "functionDeclarations": [
                {
                    "name": alias(spec.name, TOOL_NAMES),
                    "description": spec.description,
                    "parametersJsonSchema": schema_of(spec.input_schema),
                }
                for spec in specs
            ]
        }
    ]

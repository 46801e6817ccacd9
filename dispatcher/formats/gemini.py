"""Gemini: `functionCall` parts in, one message of `functionResponse` parts out.

Most calls have no id: they are answered without one, in order, by name. The REST API writes keys in
camelCase, the Python SDK's objects in snake_case: both are read.
"""

import base64
import hashlib
import re
from collections.abc import Mapping
from typing import Any

from toolpool.contract.call import ToolCall
from toolpool.contract.content import blocks_of, media_of, words_for
from toolpool.contract.result import ToolResult
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.formats.call_blocks import NotAResponse, Reader, another_choice
from toolpool.dispatcher.formats.history import Blocks, HistoryAnswer
from toolpool.dispatcher.formats.result_text import schema_of
from toolpool.dispatcher.formats.tool_names import alias

NAME = "gemini"
ALIASES = ()
TOOL_NAMES = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.-]{0,63}")
TAKES_LISTS = False

_NO_SIGNATURES = (
    "skip_thought_signature_validator",
    "context_engineering_is_the_way_to_go",
    b"skip_thought_signature_validator",
    b"context_engineering_is_the_way_to_go",
)
"""Placeholders that hosts use as a signature, for calls that Gemini did not make."""


def recognises(response: Any) -> bool:
    """Whether the response has candidates, or feedback on why it has no candidates."""
    return isinstance(response, dict) and (
        "candidates" in response or "promptFeedback" in response or "prompt_feedback" in response
    )


def identity(response: dict[str, Any]) -> tuple[Any, Any]:
    """The response's id and the model's version."""
    return either(response, "responseId", "response_id"), either(
        response, "modelVersion", "model_version"
    )


def stopped(response: dict[str, Any]) -> tuple[Any, Any]:
    """The first candidate's finish reason; without a candidate, why the prompt was blocked."""
    candidates = response.get("candidates")
    if isinstance(candidates, list) and candidates and isinstance(candidates[0], dict):
        first = candidates[0]
        message = either(first, "finishMessage", "finish_message")
        return either(first, "finishReason", "finish_reason"), message
    feedback = either(response, "promptFeedback", "prompt_feedback")
    if not isinstance(feedback, dict):
        return None, None
    message = either(feedback, "blockReasonMessage", "block_reason_message")
    return either(feedback, "blockReason", "block_reason"), message


def parse(response: Any, reader: Reader) -> list[ToolCall]:
    """The `functionCall` parts; text, thoughts and code are skipped.

    Only those of the first candidate are run: other candidates are alternatives.
    """
    candidates = response.get("candidates")
    if not candidates and reader.ending.stop is not None:
        return []  # the prompt was blocked
    if not isinstance(candidates, list) or not candidates or not isinstance(candidates[0], dict):
        raise NotAResponse("no_candidates")
    calls: list[ToolCall] = []
    for number, candidate in enumerate(candidates):
        content = candidate.get("content") if isinstance(candidate, dict) else None
        parts = content.get("parts") if isinstance(content, dict) else None
        if parts is None:
            continue  # an empty answer is sent without parts
        if isinstance(parts, list):
            calls += calls_of(parts, reader, len(calls), number)
        elif number == 0:
            raise NotAResponse("no_parts_list")
    return calls


def calls_of(
    parts: list[Any], reader: Reader, first: int, number: int, *, has_own_key: bool = False
) -> list[ToolCall]:
    """The calls of one candidate, counted from `first`.

    The last call may be cut off even if other parts follow, because empty parts may follow.
    """
    found = [(_call_in(part), part) for part in parts if _call_in(part) is not None]
    flaw, origin = another_choice(number) if number else (None, None)
    return [
        reader.call(
            first + position,
            id=call.get("id"),
            name=call.get("name"),
            raw=call.get("args"),
            is_last=position == len(found) - 1,
            is_partial=bool(either(call, "willContinue", "will_continue"))
            or bool(either(call, "partialArgs", "partial_args")),
            flaw=flaw,
            id_is_optional=True,
            origin=origin,
            has_own_key=has_own_key,
            mark=_signature(part),
        )
        if isinstance(call, dict)
        else reader.unreadable(first + position)
        for position, (call, part) in enumerate(found)
    ]


def _signature(part: dict[str, Any]) -> str | None:
    """A digest of the call's thought signature, which no other call has."""
    signature = either(part, "thoughtSignature", "thought_signature")
    if signature in _NO_SIGNATURES:
        return None
    if isinstance(signature, str):
        text = signature.replace("-", "+").replace("_", "/")
        try:
            signature = base64.b64decode(text + "=" * (-len(text) % 4))
        except ValueError:
            signature = text.encode("utf-8", "replace")
    if not isinstance(signature, bytes) or not signature or signature in _NO_SIGNATURES:
        return None
    return hashlib.blake2b(signature, digest_size=16).hexdigest()


def _call_in(part: Any) -> Any:
    return either(part, "functionCall", "function_call") if isinstance(part, dict) else None


def either(holder: dict[str, Any], camel: str, snake: str) -> Any:
    """A field under either of its two spellings."""
    value = holder.get(camel)
    return value if value is not None else holder.get(snake)


def assistant_messages(response: dict[str, Any], ids: Mapping[int, str]) -> list[dict[str, Any]]:
    """The first candidate's content; calls without an id stay without one."""
    candidates = response.get("candidates")
    first = candidates[0] if isinstance(candidates, list) and candidates else None
    content = first.get("content") if isinstance(first, dict) else None
    return [content] if isinstance(content, dict) else []


def render(results: list[ToolResult]) -> list[dict[str, Any]]:
    """One user message with one part per result."""
    if not results:
        return []
    return [
        {"role": "user", "parts": [{"functionResponse": response_of(result)} for result in results]}
    ]


def response_of(result: ToolResult) -> dict[str, Any]:
    """The function response for a result."""
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

    `parametersJsonSchema` accepts JSON Schema unchanged; its conversion to `parameters` would lose
    parts.
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


def _answer(part: dict[str, Any]) -> HistoryAnswer | None:
    told = either(part, "functionResponse", "function_response")
    return HistoryAnswer(told.get("id"), told.get("name")) if isinstance(told, dict) else None


HISTORY = Blocks(
    role="model",
    blocks="parts",
    is_call=lambda part: _call_in(part) is not None,
    to_response=lambda content: {"candidates": [{"content": content}]},
    answer=_answer,
    as_block=lambda text: {"text": text},
    has_ids=False,
)

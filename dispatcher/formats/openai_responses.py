"""OpenAI Responses: items that wait for an answer in, one item per call out.

What each kind of item contains and how it is answered is in `openai_items`.
"""

from collections.abc import Mapping
from typing import Any

from toolpool.contract.call import ToolCall
from toolpool.contract.encoding import word_of
from toolpool.contract.result import ToolResult
from toolpool.contract.schema.strict import OPENAI
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.formats import openai_items as items
from toolpool.dispatcher.formats.call_blocks import Reader
from toolpool.dispatcher.formats.declared_options import (
    callers_of,
    options_of,
    output_of,
    strict_of,
    text_format_of,
)
from toolpool.dispatcher.formats.history import HistoryAnswer, Items
from toolpool.dispatcher.formats.result_text import schema_of
from toolpool.dispatcher.formats.tool_names import PLAIN, alias

NAME = "openai_responses"
ALIASES = ()
TOOL_NAMES = PLAIN
TAKES_LISTS = False


def recognises(response: Any) -> bool:
    """Whether it has an output list, or is declared a response."""
    return isinstance(response, dict) and (
        response.get("object") == "response" or isinstance(response.get("output"), list)
    )


def identity(response: dict[str, Any]) -> tuple[Any, Any]:
    """The response's id and the model's name."""
    return response.get("id"), response.get("model")


def stopped(response: dict[str, Any]) -> tuple[Any, Any]:
    """Its status, with the reason if it is incomplete."""
    status, details = response.get("status"), response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    if status in (None, "incomplete") and reason is not None:
        return f"incomplete: {word_of(reason)}", None
    error = response.get("error")
    return status, error.get("message") if isinstance(error, dict) else None


def parse(response: Any, reader: Reader) -> list[ToolCall]:
    """The items that wait for an answer."""
    return items.calls_in(response.get("output"), reader)


def assistant_messages(response: dict[str, Any], ids: Mapping[int, str]) -> list[dict[str, Any]]:
    """The response's own items, with the ids of calls that came without one."""
    output = response.get("output")
    if not isinstance(output, list):
        return []
    index = 0
    said: list[Any] = []
    for item in output:
        if isinstance(item, dict) and items.waits(item):
            item = {**item, items.id_field(item): ids[index]} if index in ids else item
            index += 1
        said.append(item)
    return said


def render(results: list[ToolResult]) -> list[dict[str, Any]]:
    """The items that answer each call, in the form of its kind."""
    return [answer for result in results for answer in items.answers(result)]


def render_refusal(text: str) -> list[dict[str, Any]]:
    """A user message that asks for a valid response."""
    return [{"role": "user", "content": text}]


def offer(specs: list[ToolSpec]) -> list[dict[str, Any]]:
    """The `tools` parameter.

    `strict` is always set, because the API's default refuses most schemas.
    """
    return [_offered(spec) if spec.text_input is None else _custom(spec) for spec in specs]


def _custom(spec: ToolSpec) -> dict[str, Any]:
    """A free-text tool."""
    return {
        "type": "custom",
        "name": alias(spec.name, TOOL_NAMES),
        "description": spec.description,
        "format": text_format_of(spec) or {"type": "text"},
        **options_of(spec, "defer_loading"),
        **callers_of(spec, "direct", "programmatic"),
    }


def _offered(spec: ToolSpec) -> dict[str, Any]:
    strict, callers = strict_of(spec, OPENAI), callers_of(spec, "direct", "programmatic")
    tool = {
        "type": "function",
        "name": alias(spec.name, TOOL_NAMES),
        "description": spec.description,
        "parameters": strict or schema_of(spec.input_schema),
        "strict": strict is not None,
        **options_of(spec, "defer_loading"),
        **callers,
    }
    output = output_of(spec) if "programmatic" in callers.get("allowed_callers", ()) else None
    return tool if output is None else {**tool, "output_schema": output}


def _answer(item: dict[str, Any]) -> HistoryAnswer | None:
    kind = item.get("type")
    if kind == "mcp_approval_response":
        return HistoryAnswer(item.get("approval_request_id"))
    if not isinstance(kind, str) or not kind.endswith("_output"):
        return None
    return HistoryAnswer(item.get("id" if kind == "local_shell_call_output" else "call_id"))


def _is_said(item: dict[str, Any]) -> bool:
    """Whether the model produced it: neither an answer nor another role's message."""
    return _answer(item) is None and item.get("role") in (None, "assistant") and "type" in item


HISTORY = Items(
    is_call=items.waits,
    is_said=_is_said,
    answer=_answer,
    to_response=lambda run: {"object": "response", "output": run},
)

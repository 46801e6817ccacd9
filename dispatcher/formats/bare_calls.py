"""Bare calls, `{"id", "name", "input"}`, alone or in a list: for files, tests and custom agents."""

from collections.abc import Mapping
from typing import Any

from toolpool.contract.call import Flaw, ToolCall
from toolpool.contract.encoding import word_of
from toolpool.contract.outcome import Code
from toolpool.contract.result import ToolResult
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.formats.call_blocks import Reader
from toolpool.dispatcher.formats.result_text import schema_of
from toolpool.dispatcher.formats.tool_names import ANY

NAME = "bare"
ALIASES = ()
TOOL_NAMES = ANY
TAKES_LISTS = True
HISTORY = None

_TYPES = (None, "tool_call", "function")
_ARGUMENTS = ("input", "arguments", "args", "parameters")
_WITHOUT_ARGUMENTS = frozenset({"id", "name", "type"})


def recognises(response: Any) -> bool:
    """Whether it is a list, or an object with a name and an input that names no other type."""
    if isinstance(response, list):
        return True
    return (
        isinstance(response, dict)
        and response.get("type") in _TYPES
        and "name" in response
        and (any(key in response for key in _ARGUMENTS) or response.keys() <= _WITHOUT_ARGUMENTS)
    )


def identity(response: Any) -> tuple[Any, Any]:
    """None: an id belongs to its call, and no model is named."""
    return None, None


def stopped(response: Any) -> tuple[Any, Any]:
    """None: a bare call has no stop reason."""
    return None, None


def parse(response: Any, reader: Reader) -> list[ToolCall]:
    """One call per object."""
    blocks = response if isinstance(response, list) else [response]
    return [
        reader.call(
            index,
            id=block.get("id"),
            name=block.get("name"),
            raw=next((block[key] for key in _ARGUMENTS if key in block), None),
            is_partial=bool(block.get("partial_args") or block.get("will_continue")),
            flaw=_of_unknown_form(block),
        )
        if isinstance(block, dict)
        else reader.unreadable(index)
        for index, block in enumerate(blocks)
    ]


def _of_unknown_form(block: dict[str, Any]) -> Flaw | None:
    """The flaw of an object that names another type, or has its arguments elsewhere."""
    kind = block.get("type")
    if kind in _TYPES:
        is_known = any(key in block for key in _ARGUMENTS) or block.keys() <= _WITHOUT_ARGUMENTS
        return None if is_known else Flaw(Code.UNPARSEABLE, "no_form")
    return Flaw(Code.UNPARSEABLE, "unknown_type", {"type": word_of(kind)})


def assistant_messages(response: Any, ids: Mapping[int, str]) -> list[dict[str, Any]]:
    """Empty, because bare calls belong to no conversation."""
    return []


def render(results: list[ToolResult]) -> list[dict[str, Any]]:
    """One object per result: the id, the name, and the payload's fields."""
    return [{"id": result.call_id, "name": result.name, **result.payload()} for result in results]


def render_refusal(text: str) -> list[dict[str, Any]]:
    """The payload of a validation failure that belongs to no call."""
    return [{"ok": False, "error": text, "errorType": "validation", "retryable": False}]


def offer(specs: list[ToolSpec]) -> list[dict[str, Any]]:
    """The name, description and schema of each tool."""
    return [
        {
            "name": spec.name,
            "description": spec.description,
            "input_schema": schema_of(spec.input_schema),
        }
        for spec in specs
    ]

"""A result as the one string that text-only providers take (R3)."""

from typing import Any

from contract import encoding
from contract.result import ToolResult


def as_text(result: ToolResult) -> str:
    """Success: the tool's text or compact JSON, then its note. Failure: the payload as JSON."""
    if not result.ok:
        return encoding.encode(result.payload()).decode()
    text = result.data if isinstance(result.data, str) else encoding.encode(result.data).decode()
    return f"{text}\n\n[note] {result.note}" if result.note is not None else text


def schema_of(input_schema: dict[str, Any] | None) -> dict[str, Any]:
    """The schema shown to a model for a tool that may have none."""
    return input_schema if input_schema is not None else {"type": "object"}

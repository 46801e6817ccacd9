"""The result as one string, for text-only providers, and the schema that a model sees."""

from typing import Any

from toolpool.contract import encoding
from toolpool.contract.content import blocks_of, words_for
from toolpool.contract.result import ToolResult
from toolpool.contract.schema.dialect import plain


def text_of(data: Any) -> str:
    """A tool's data as text: a string unchanged, anything else as compact JSON."""
    return data if isinstance(data, str) else encoding.encode(data).decode()


def as_text(result: ToolResult) -> str:
    """Success: the tool's text or compact JSON, then its note. Failure: the payload as JSON."""
    if not result.ok:
        return encoding.encode(result.payload()).decode()
    blocks = blocks_of(result.data)
    if blocks is not None:
        text = "\n\n".join(words_for(block) for block in blocks)
    else:
        text = text_of(result.data)
    note = note_of(result)
    return f"{text}\n\n{note}" if note is not None else text


def as_bare(result: ToolResult) -> str:
    """For a program that called: only the tool's own text or JSON."""
    if not result.ok:
        return encoding.encode(result.payload()).decode()
    return text_of(result.data)


def note_of(result: ToolResult) -> str | None:
    """The note as the model sees it; None if the result has no note."""
    return f"[note] {result.note}" if result.note is not None else None


def schema_of(input_schema: dict[str, Any] | None) -> dict[str, Any]:
    """The schema shown to a model, in standard JSON Schema, even for a tool without one."""
    return plain(input_schema) if input_schema is not None else {"type": "object"}

"""One module per provider: how its responses are parsed and its answers rendered."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from toolpool.contract.call import ToolCall
from toolpool.contract.result import ToolResult
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.formats import (
    anthropic,
    anthropic_agents,
    bare_calls,
    bedrock,
    cohere,
    gemini,
    gemini_interactions,
    gemini_live,
    langchain,
    mcp,
    ollama,
    openai_agents,
    openai_chat,
    openai_realtime,
    openai_responses,
    pydantic_ai,
    tool_names,
)
from toolpool.dispatcher.formats.call_blocks import NotAResponse, Reader
from toolpool.dispatcher.formats.history import History


class Response(msgspec.Struct, frozen=True, gc=False):
    """The calls found in a model response. `id` and `model` are the provider's, if any.

    `stop` is the provider's stop reason if the response's calls are not to be run.
    """

    format: str
    calls: tuple[ToolCall, ...]
    id: str | None = None
    model: str | None = None
    stop: str | None = None


class Format(Protocol):
    """The interface of a provider's module."""

    NAME: str
    ALIASES: tuple[str, ...]
    """Other names of the format."""
    TOOL_NAMES: re.Pattern[str]
    """The tool names that the provider accepts."""
    TAKES_LISTS: bool
    """Whether a list may be a response."""
    HISTORY: History | None
    """How a history is read; None if the provider stores it or the format has no histories."""

    @staticmethod
    def recognises(response: Any) -> bool:
        """Whether `response` has this provider's shape."""
        ...

    @staticmethod
    def identity(response: Any) -> tuple[Any, Any]:
        """The response's id and its model's name, if the provider gives them."""
        ...

    @staticmethod
    def stopped(response: Any) -> tuple[Any, Any]:
        """The stop reason, as in `stop_reasons.STOPS`, and the provider's message about it."""
        ...

    @staticmethod
    def parse(response: Any, reader: Reader) -> list[ToolCall]:
        """The tool calls of a response, in order. Raises `NotAResponse`."""
        ...

    @staticmethod
    def assistant_messages(response: Any, ids: Mapping[int, str]) -> list[dict[str, Any]]:
        """The response as the model's message, to go back into the conversation.

        `ids` are the ids that the dispatcher gave to calls without one, by index of the call.
        """
        ...

    @staticmethod
    def render(results: list[ToolResult]) -> list[dict[str, Any]]:
        """The messages that answer a turn; empty without results."""
        ...

    @staticmethod
    def render_refusal(text: str) -> list[dict[str, Any]]:
        """The message for an unreadable response."""
        ...

    @staticmethod
    def offer(specs: list[ToolSpec]) -> list[dict[str, Any]]:
        """The tools as the provider's API takes them."""
        ...


FORMATS: dict[str, Format] = {
    module.NAME: module  # type: ignore[misc]
    for module in (
        anthropic_agents,
        openai_agents,
        openai_realtime,
        pydantic_ai,
        bedrock,
        langchain,
        ollama,
        cohere,
        anthropic,
        openai_chat,
        gemini_interactions,
        gemini_live,
        openai_responses,
        gemini,
        mcp,
        bare_calls,
    )
}
"""By name, in order of detection: narrow shapes before wide ones."""
_BY_ALIAS = {alias: name for name, module in FORMATS.items() for alias in module.ALIASES}


def named(name: str) -> str:
    """The name of a format, which may be given by an alias. Raises ValueError if unknown."""
    found = _BY_ALIAS.get(name, name)
    if found not in FORMATS:
        known = ", ".join([*FORMATS, *_BY_ALIAS])
        raise ValueError(f"unknown format {name!r}: use one of {known}")
    return found


def offered_name(tool: str, format: str) -> str:
    """The name under which a tool is offered in this format."""
    return tool_names.alias(tool, FORMATS[format].TOOL_NAMES)


def tools_by_offered_name(tools: Iterable[str]) -> dict[str, str]:
    """Tool names by their aliases in any format."""
    rules = {module.TOOL_NAMES for module in FORMATS.values()}
    return {
        other: tool
        for tool in tools
        for rule in rules
        if (other := tool_names.alias(tool, rule)) != tool
    }


def history_format(messages: Sequence[Any]) -> str | None:
    """The format name of the calls or answers in a history; None without calls and answers."""
    for message in messages:
        if isinstance(message, dict):
            for name, module in FORMATS.items():
                if module.HISTORY is not None and module.HISTORY.knows(message):
                    return name
    return None


__all__ = [
    "FORMATS",
    "Format",
    "NotAResponse",
    "Response",
    "named",
    "offered_name",
    "tools_by_offered_name",
]

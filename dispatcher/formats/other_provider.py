"""Finds calls of another provider inside a response, which would be ignored silently."""

from typing import Any

_HOLDERS = ("content", "parts", "output", "message", "choices", "candidates")
"""The fields in which responses hold blocks; never a call's arguments, nor text."""
_BY_TYPE = {
    "tool_use": "anthropic",
    "function_call": "openai_responses",
    "custom_tool_call": "openai_responses",
    "function": "openai_chat",
    "agent.custom_tool_use": "anthropic_agents",
    "agent.tool_use": "anthropic_agents",
    "agent.mcp_tool_use": "anthropic_agents",
}
_BY_KEY = {"toolUse": "bedrock", "functionCall": "gemini", "tool_calls": "openai_chat"}
_READS = {
    "openai_realtime": {"openai_responses"},
    "openai_agents": {"openai_responses"},
    "gemini_interactions": {"openai_responses"},
    "gemini_live": {"gemini"},
    "cohere": {"openai_chat"},
    "ollama": {"openai_chat"},
    "bare": {"openai_chat"},
}
"""For each form, the other forms whose calls it reads as its own."""


def form_of_other_provider(response: Any, name: str) -> str | None:
    """The form of a call that the form `name` does not read; None if it reads all calls.

    LangChain's messages repeat their calls in the form of the provider behind them.
    """
    if name == "langchain":
        return None
    own = _READS.get(name, ())
    left = [response]
    while left:
        node = left.pop()
        if node.__class__ is list:
            left += node
            continue
        if node.__class__ is not dict:
            continue
        kind = node.get("type")
        form = _BY_TYPE.get(kind) if kind.__class__ is str else None
        if form is not None and form != name and form not in own:
            return form
        for key, form in _BY_KEY.items():
            if form != name and node.get(key) and form not in own:
                return form
        for key in _HOLDERS:
            inner = node.get(key)
            if inner.__class__ is list or inner.__class__ is dict:
                left.append(inner)
    return None

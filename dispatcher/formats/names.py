"""Tool names a provider refuses, mapped for it and back: deterministic, and no two alike.

A name that the provider takes stays as it is. Of any other the refused characters become `_` and
a short digest of the whole name follows, so that `mcp.a/b` and `mcp.a.b` stay two tools.
"""

import hashlib
import re
from collections.abc import Iterable

_DIGEST_CHARACTERS = 6
_PLAIN = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_TAKEN: dict[str, re.Pattern[str]] = {
    "anthropic": _PLAIN,
    "openai_chat": _PLAIN,
    "openai_responses": _PLAIN,
    "bedrock": _PLAIN,
    "gemini": re.compile(r"[a-zA-Z_][a-zA-Z0-9_.-]{0,63}"),
    "mcp": re.compile(r"[a-zA-Z0-9_./-]{1,128}"),
}
_LONGEST = 64


def is_taken(name: str, format: str) -> bool:
    """Whether the provider takes this name for a tool."""
    rule = _TAKEN.get(format)
    return rule is None or rule.fullmatch(name) is not None


def alias(name: str, format: str) -> str:
    """The name under which a tool is offered in this format; most are as they are."""
    if is_taken(name, format):
        return name
    digest = hashlib.blake2s(name.encode("utf-8", "replace")).hexdigest()[:_DIGEST_CHARACTERS]
    kept = re.sub(r"[^a-zA-Z0-9_-]", "_", name)[: _LONGEST - _DIGEST_CHARACTERS - 2]
    if not kept[:1].isalpha():
        kept = "_" + kept
    return f"{kept}_{digest}"


def originals(names: Iterable[str]) -> dict[str, str]:
    """The way back: tool names by every alias that is not the name itself."""
    return {
        other: name for name in names for format in _TAKEN if (other := alias(name, format)) != name
    }

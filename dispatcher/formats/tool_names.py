"""Maps tool names that a provider refuses: deterministic and unique.

An accepted name stays as it is. In any other the refused characters become `_` and a short digest
of the whole name follows, so that `mcp.a/b` and `mcp.a.b` stay two tools.
"""

import hashlib
import re

_DIGEST_CHARACTERS = 6
_LONGEST = 64
PLAIN = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""The names that most providers accept."""
ANY = re.compile(r".*", re.DOTALL)


def alias(name: str, taken: re.Pattern[str]) -> str:
    """A tool's name as offered to a provider that accepts `taken`; most stay unchanged."""
    if taken.fullmatch(name):
        return name
    digest = hashlib.blake2s(name.encode("utf-8", "replace")).hexdigest()[:_DIGEST_CHARACTERS]
    kept = re.sub(r"[^a-zA-Z0-9_-]", "_", name)[: _LONGEST - _DIGEST_CHARACTERS - 2]
    if not kept[:1].isalpha():
        kept = "_" + kept
    return f"{kept}_{digest}"

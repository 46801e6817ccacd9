"""The ids of calls: as providers give them, made up for a call without one, or substituted."""

import hashlib
import re
from typing import Any, TypeGuard

from toolpool.contract.encoding import printable

LONGEST = 256
"""The longest id, and the longest name of a tool, in characters."""
_UNIQUE = re.compile(
    r"(srv)?toolu_([a-z]+_)?[0-9A-Za-z]{20,}"  # Anthropic, also by way of a cloud
    r"|tooluse_[0-9A-Za-z_-]{20,}"  # Bedrock
    r"|(mcpr|sevt)_(?!0{4})[0-9A-Za-z]{20,}"  # OpenAI's and Anthropic's requests to a host
    r"|call_([0-9]{2}_)?(?!0{4})[0-9A-Za-z]{20,}"  # OpenAI, DeepSeek
    r"|function-call-[0-9]{15,}"  # Gemini
    # Mistral, except camel-case names that end with a number
    r"|(?=.*[a-z])(?=.+[A-Z])(?=.*([A-Z][0-9A-Z]|[0-9][A-Za-z]))[0-9A-Za-z]{9}"
    # vLLM and others: a UUID or its beginning
    r"|(chatcmpl-tool-|call_|fc_)?(?!0{4})([0-9a-f]{16,}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})"
)


def made_up(turn: str, index: int) -> str:
    """The id of a call that came without one: the same whenever the response is read."""
    return f"{turn}-{index}"


def is_usable(id: Any) -> TypeGuard[str]:
    """Whether an id can be sent as it is."""
    if not isinstance(id, str) or not 0 < len(id) <= LONGEST:
        return False
    return id.isascii() or printable(id) == id


def is_unique(id: Any) -> bool:
    """Whether an id has a form that providers generate at random, so that no other call has it.

    Other ids may be used again: some servers count from 0 in every response. The format of a
    response says nothing, since gateways translate formats and keep the ids.
    """
    return isinstance(id, str) and _UNIQUE.fullmatch(id) is not None


def substitute(id: str) -> str:
    """The id to send in place of an unusable one; the same unusable id always gets the same id."""
    return f"id-{hashlib.blake2b(id.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"

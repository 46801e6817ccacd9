"""What the host of a turn asks for, beside the calls."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contract import encoding
from contract.steps import new_nonce


@dataclass(frozen=True, slots=True)
class TurnContext:
    """What the calls of one dispatch share. `line` is what the pump is fair to."""

    id: str | None
    session: str | None
    line: str
    context: dict[str, Any] | None = None
    context_bytes: int = 0
    timeout: float | None = None
    wait: float | None = None


def patience(wait: Any) -> float:
    """How long a host waits for something, in seconds. Raises ValueError for what is no such time.

    Infinity is one: for ever.
    """
    if not (_is_number(wait) and wait >= 0):
        raise ValueError(f"wait must be a number of seconds, 0 or more, not {wait!r}")
    found: float = wait
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def turn_context(
    turn: str | None,
    session: str | None,
    *,
    context: Mapping[str, Any] | None,
    timeout: float | None,
    wait: float | None,
    max_bytes: int,
) -> TurnContext:
    """What a host asks for, checked: one host's slip must not fail calls in the same message.

    Raises ValueError.
    """
    if timeout is not None and not (_is_number(timeout) and 0 < timeout < math.inf):
        raise ValueError(f"timeout must be a number of seconds above 0, not {timeout!r}")
    if wait is not None:
        wait = patience(wait)
    size = 0
    if context:
        try:
            size = len(encoding.encode(context))
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"context must be JSON: {error}") from None
        if size > max_bytes:
            raise ValueError(f"context has {size} bytes; at most {max_bytes} are taken")
    return TurnContext(
        id=turn,
        session=session,
        line=session or new_nonce(),
        context=dict(context) if context else None,
        context_bytes=size,
        timeout=timeout,
        wait=wait,
    )

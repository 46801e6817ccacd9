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
    again: bool = False


def turn_context(
    turn: str | None,
    session: str | None,
    *,
    context: Mapping[str, Any] | None,
    timeout: float | None,
    wait: float | None,
    again: bool = False,
    max_bytes: int,
) -> TurnContext:
    """What a host asks for, checked: one host's slip must not fail calls in the same message.

    Raises ValueError.
    """
    if timeout is not None and not 0 < timeout < math.inf:
        raise ValueError(f"timeout must be a number of seconds above 0, not {timeout}")
    if wait is not None and not wait >= 0:
        raise ValueError(f"wait must be a number of seconds, 0 or more, not {wait}")
    if again and (session is None or turn is None):
        raise ValueError("again=True needs a session, and a turn or a response with an id")
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
        again=again,
    )

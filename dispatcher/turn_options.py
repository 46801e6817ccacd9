"""The options of one dispatch, checked."""

import functools
import math
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from toolpool.contract import encoding
from toolpool.contract.encoding import printable
from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.contract.settings import Settings
from toolpool.dispatcher.formats import call_ids

_LONGEST_SECONDS = 100 * 365 * 86_400


class TurnOptions(msgspec.Struct, frozen=True, gc=False):
    """The options that the calls of one dispatch share.

    Queues are fair between flows. A flow is a session, or a turn without one.
    """

    id: str | None
    session: str | None
    flow: str
    session_key: str = ""
    """The digest of tenant and session, by which Redis keys name the session; empty without one."""
    context: dict[str, Any] | None = None
    context_bytes: int = 0
    timeout: float | None = None
    wait: float | None = None
    again: bool = False
    provider: str = ""
    """The provider form of the response."""
    only: Collection[str] | None = None
    """The names of the tools that were offered; None for all."""
    began: float = msgspec.field(default_factory=time.monotonic)
    """When the turn was dispatched, on the monotonic clock."""

    @property
    def is_named(self) -> bool:
        """Whether its calls have stable keys, by which other dispatchers find them."""
        return self.session is not None and self.id is not None

    def offers(self, tool: str) -> bool:
        """Whether the model was offered the tool, so that a text may name it."""
        return self.only is None or tool in self.only


@functools.lru_cache(maxsize=4_096, typed=True)
def session_key(tenant: str, session: Any) -> str:
    """The digest by which Redis keys name a session. Raises ValueError for an invalid name."""
    require_name("session", session)
    return encoding.digest([tenant, session])


def require_name(what: str, value: Any) -> None:
    """Raises ValueError for an invalid name of a session or a turn; None is allowed.

    Names are in every message and key: a long one would slow every call.
    """
    if value is None:
        return
    if not isinstance(value, str):
        raise ValueError(f"{what} must be a string, not {type(value).__name__}")
    if not value:
        raise ValueError(f"{what} must not be empty: give a value or omit it")
    if len(value) > call_ids.LONGEST:
        raise ValueError(
            f"{what} has {len(value)} characters, at most {call_ids.LONGEST}: use an id"
        )
    if not value.isascii() and printable(value) != value:
        raise ValueError(f"{what} is not valid Unicode: it holds half of a surrogate pair")


def require_text(what: str, text: Any, longest: int = call_ids.LONGEST) -> None:
    """Raises ValueError unless it is non-empty Unicode text within the length limit."""
    if not isinstance(text, str) or not text:
        raise ValueError(f"{what} must be non-empty text")
    if len(text) > longest or printable(text) != text:
        raise ValueError(f"{what} must be Unicode of at most {longest} characters")


def tool_names(what: str, value: Any) -> frozenset[str] | None:
    """An allow-list. Raises ValueError unless it is a collection of names; one string is not."""
    if value is None:
        return None
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise ValueError(f"{what} must be a collection of tool names, not {type(value).__name__}")
    names = list(value)
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"{what} takes the names of tools, not {type(name).__name__} objects")
    return frozenset(names)


def patience(wait: Any) -> float:
    """How long a host waits, in seconds; may be infinite. Raises ValueError for an invalid time."""
    if not (_is_number(wait) and wait >= 0):
        raise ValueError(f"wait must be a number of seconds, 0 or more, not {wait!r}")
    return math.inf if wait > _LONGEST_SECONDS else float(wait)


def page_number(page: Any) -> int:
    """A page number, from 1. Raises ValueError for an invalid one."""
    if isinstance(page, bool) or not isinstance(page, int) or page < 1:
        raise ValueError(f"page must be a whole number, 1 or more, not {page!r}")
    number: int = page
    return number


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def turn_options(
    turn: str | None,
    session: str | None,
    *,
    context: Mapping[str, Any] | None,
    timeout: float | None,
    wait: float | None,
    again: bool = False,
    provider: str = "",
    only: Collection[str] | None = None,
    settings: Settings,
) -> TurnOptions:
    """The checked options of a dispatch: one host's error must not fail calls in the same message.

    Names, and the allow-list `only`, have to be checked before. Raises ValueError.
    """
    if timeout is not None and not (_is_number(timeout) and 0 < timeout <= _LONGEST_SECONDS):
        raise ValueError(
            f"timeout must be a number of seconds above 0 and at most {_LONGEST_SECONDS:,} (a "
            f"century), not {str(timeout)[:40]}"
        )
    if wait is not None:
        wait = patience(wait)
    if not isinstance(again, bool):
        raise ValueError(f"again must be True or False, not {str(again)[:40]}")
    if again and (session is None or turn is None):
        raise ValueError("again=True needs a session, and a turn or a response with an id")
    size, copied = 0, None
    if context is not None and not isinstance(context, Mapping):
        raise ValueError(f"context must be a mapping, not {type(context).__name__}")
    if context:
        try:
            encoded = encoding.encode(context)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"context must be JSON: {error}") from None
        if not encoding.is_json(dict(context)):
            raise ValueError(
                "context must be JSON: its keys are texts, its values texts, numbers that are "
                "finite, true, false, null, and lists and mappings of these"
            )
        size, copied = len(encoded), encoding.decode(encoded)  # the host may change its own
        if size > (most := settings.max_argument_bytes):
            raise ValueError(f"context has {size} bytes; at most {most} are accepted")
    return TurnOptions(
        id=turn,
        session=session,
        flow=session or new_nonce(),
        session_key="" if session is None else session_key(settings.tenant, session),
        context=copied,
        context_bytes=size,
        timeout=timeout,
        wait=wait,
        provider=provider,
        only=only,
        again=again,
    )

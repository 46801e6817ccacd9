"""Which rate limits a call is under: its tool's own, and those of its session and tenant."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import msgspec

from toolpool.contract import encoding
from toolpool.contract.ledger.rates import Limit
from toolpool.contract.rates import AT_ONCE, Rate, RatePer, rate_of
from toolpool.contract.settings import Settings
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.words.classify import over_rate

_REMEMBERED = 10_000


@dataclass(slots=True, eq=False)
class Limited:
    """A call under limits: whether it waits at the gate, and what was said of its places."""

    limits: tuple[Limit, ...]
    windows: tuple[Limit, ...]
    """Those that count starts."""
    running: tuple[Limit, ...]
    """Those that count what runs."""
    waits: bool = True
    has_places: bool = False
    counted: int = 0
    """The last attempt whose start was counted."""

    @classmethod
    def under(cls, limits: tuple[Limit, ...]) -> Self:
        """A call that comes to the gate."""
        windows = tuple(limit for limit in limits if limit.rate.unit != AT_ONCE)
        running = tuple(limit for limit in limits if limit.rate.unit == AT_ONCE)
        return cls(limits, windows, running)


class Limits:
    """The limits that one dispatcher keeps, for all tools and sessions."""

    def __init__(self, settings: Settings) -> None:
        self._tenant = settings.tenant
        self._of_tenant = _rate(settings.tenant_rate)
        self._of_session = _rate(settings.session_rate)
        self.hold_all = self._of_tenant is not None or self._of_session is not None
        """Whether there is a limit for calls of whatever tool."""
        self._limits: Callable[..., tuple[Limit, ...]] = lru_cache(_REMEMBERED)(self._make)

    def of(self, spec: ToolSpec, session: str | None) -> tuple[Limit, ...]:
        """Those of a call; a call without a session is under no limit of sessions."""
        if spec.rate is msgspec.UNSET:
            session = session if self._of_session is not None else None
            if spec.concurrency_scope is msgspec.UNSET:
                return self._limits(session, "", None, None)
        return self._limits(session, spec.name, spec.limit, spec.at_once)

    def _make(
        self,
        session: str | None,
        tool: str,
        limit: tuple[Rate, RatePer] | None,
        at_once: int | None,
    ) -> tuple[Limit, ...]:
        found: list[Limit] = []
        if at_once is not None:
            found.append(_limit(Rate(at_once, AT_ONCE), "at_once", tool))
        if limit is not None:
            rate, per = limit
            if per is RatePer.FLEET:
                found.append(_limit(rate, "tool", tool))
            elif per is RatePer.TENANT:
                found.append(_limit(rate, "tool_tenant", tool, self._tenant))
            elif session is not None:
                found.append(_limit(rate, "tool_session", tool, self._tenant, session))
        if self._of_session is not None and session is not None:
            found.append(_limit(self._of_session, "session", self._tenant, session))
        if self._of_tenant is not None:
            found.append(_limit(self._of_tenant, "tenant", self._tenant))
        return tuple(found)


def _limit(rate: Rate, kind: str, *whose: str) -> Limit:
    return Limit(encoding.digest([kind, *whose]), rate, over_rate(kind, rate))


def _rate(text: str | None) -> Rate | None:
    return rate_of(text) if text else None

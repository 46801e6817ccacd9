"""The rate limits that apply to a call: its tool's, its session's and its tenant's."""

from collections.abc import Callable
from functools import lru_cache

import msgspec

from toolpool.contract import encoding
from toolpool.contract.rates import AT_ONCE, Limit, Rate, RatePer, rate_of
from toolpool.contract.settings import Settings
from toolpool.contract.spec import ToolSpec

_REMEMBERED = 10_000


class RateLimits:
    """Finds the limits that dispatchers check before sending and workers before starting a call."""

    def __init__(self, settings: Settings) -> None:
        self._of_tenant = _rate(settings.tenant_rate)
        self._of_session = _rate(settings.session_rate)
        self.hold_all = self._of_tenant is not None or self._of_session is not None
        """Whether there is a limit for the calls of all tools."""
        self._limits: Callable[..., tuple[Limit, ...]] = lru_cache(_REMEMBERED)(self._make)

    def of(self, spec: ToolSpec, session: str | None, tenant: str) -> tuple[Limit, ...]:
        """The limits of a call; session limits do not apply to a call without a session."""
        if spec.rate is msgspec.UNSET:
            session = session if self._of_session is not None else None
            if spec.concurrency_scope is msgspec.UNSET:
                return self._limits(tenant, session, "", None, None)
        return self._limits(tenant, session, spec.name, spec.limit, spec.at_once)

    def _make(
        self,
        tenant: str,
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
                found.append(_limit(rate, "tool_tenant", tool, tenant))
            elif session is not None:
                found.append(_limit(rate, "tool_session", tool, tenant, session))
        if self._of_session is not None and session is not None:
            found.append(_limit(self._of_session, "session", tenant, session))
        if self._of_tenant is not None:
            found.append(_limit(self._of_tenant, "tenant", tenant))
        return tuple(found)


def _limit(rate: Rate, kind: str, *whose: str) -> Limit:
    return Limit(encoding.digest([kind, *whose, rate.unit]), rate, kind)


def _rate(text: str | None) -> Rate | None:
    return rate_of(text) if text else None

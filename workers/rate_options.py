"""Validates the rate and concurrency options of a tool."""

from typing import Any

from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.contract.rates import RatePer, rate_of


def rate_options(rate: Any, per: Any, where: str) -> dict[str, Any]:
    """`rate` and `rate_per`, without defaults. Raises `ToolDeclarationInvalid`."""
    scopes = [scope.value for scope in RatePer]
    if per not in scopes:
        known = ", ".join(scopes)
        raise ToolDeclarationInvalid(f"{where}: rate_per is one of {known}, not {per!r}")
    if rate is None:
        if per != RatePer.FLEET:
            raise ToolDeclarationInvalid(f"{where}: rate_per={per!r} needs a rate")
        return {}
    try:
        told: dict[str, Any] = {"rate": str(rate_of(rate))}
    except (ValueError, TypeError) as error:
        raise ToolDeclarationInvalid(f"{where}: rate: {error}") from None
    return told if per == RatePer.FLEET else told | {"rate_per": str(per)}


def scope_options(scope: Any, concurrency: Any, where: str) -> dict[str, Any]:
    """`concurrency_scope`, if it differs from the default.

    Raises `ToolDeclarationInvalid` for an unknown scope, or one without `concurrency`.
    """
    if scope not in ("dispatcher", "fleet"):
        raise ToolDeclarationInvalid(
            f"{where}: concurrency_scope is one of dispatcher, fleet, not {scope!r}"
        )
    if scope == "dispatcher":
        return {}
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise ToolDeclarationInvalid(
            f"{where}: concurrency_scope='fleet' needs concurrency= of at least 1, not "
            f"{concurrency!r}"
        )
    return {"concurrency_scope": scope}

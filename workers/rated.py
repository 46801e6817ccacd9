"""How often a tool may be started, as its declaration says it: checked, and as a spec has it."""

from typing import Any

from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.contract.rates import RatePer, rate_of


def rate_options(rate: Any, per: Any, where: str) -> dict[str, Any]:
    """`rate` and `rate_per` where they are not as they always were.

    Raises `ToolDeclarationInvalid` for what is no rate.
    """
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

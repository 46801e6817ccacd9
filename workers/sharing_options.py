"""Validates the options for runs that equal calls share."""

from collections.abc import Mapping
from typing import Any

from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.contract.spec import Effects

_LONGEST_SECONDS = 31 * 86_400.0


def shared_options(
    *,
    single_flight: Any,
    cache_seconds: Any,
    effects: str | None,
    runs_alone: Mapping[str, bool],
    where: str,
) -> dict[str, Any]:
    """The two options for the spec, without defaults.

    `runs_alone` are the options that give each call its own run. Raises `ToolDeclarationInvalid`.
    """
    if not isinstance(single_flight, bool):
        raise ToolDeclarationInvalid(
            f"{where}: single_flight is True or False, not {single_flight!r}"
        )
    options: dict[str, Any] = {"single_flight": True} if single_flight else {}
    if cache_seconds is not None:
        is_number = isinstance(cache_seconds, (int, float)) and not isinstance(cache_seconds, bool)
        if not is_number or not 0 < cache_seconds <= _LONGEST_SECONDS:
            raise ToolDeclarationInvalid(
                f"{where}: cache_seconds is a number of seconds above 0 and at most "
                f"{_LONGEST_SECONDS:,.0f}, not {cache_seconds!r}"
            )
        options["cache_seconds"] = float(cache_seconds)
    if not options:
        return {}
    named = " and ".join(options)
    if effects != Effects.READ:
        raise ToolDeclarationInvalid(
            f"{where}: {named} requires effects='read': a shared run would perform a write once "
            "for several callers"
        )
    for option, is_on in runs_alone.items():
        if is_on:
            raise ToolDeclarationInvalid(
                f"{where}: {named} does not go with {option}=True, whose calls have a run each"
            )
    return options

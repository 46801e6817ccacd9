"""Finds what a setting or an option names."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from toolpool.contract.errors import Misconfigured


def comma_separated(text: str) -> list[str]:
    """The words between the commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def imported(name: str, path: str) -> Callable[..., Any]:
    """The function at `module:name`. Raises `Misconfigured`."""
    module, _, attribute = path.partition(":")
    if not module or not attribute:
        raise Misconfigured(f"{name} must be named as module:function, not {path!r}")
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise Misconfigured(
            f"{name} cannot be imported from {path!r}: {type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise Misconfigured(f"{name}: {path!r} is a {type(found).__name__}, and no function")
    function: Callable[..., Any] = found
    return function

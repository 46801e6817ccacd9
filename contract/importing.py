"""Imports the objects that settings and options name."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from toolpool.contract.errors import Misconfigured


def comma_separated(text: str) -> list[str]:
    """Split a comma-separated text into its parts."""
    return [word.strip() for word in text.split(",") if word.strip()]


def loaded(name: str, path: str) -> Any:
    """Import the object at `module:name`. Raises `Misconfigured` for any failure of the import."""
    module, _, attribute = path.partition(":")
    if not module or not attribute:
        raise Misconfigured(f"{name} must be named as module:name, not {path!r}")
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:
        raise Misconfigured(
            f"{name}: {path} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    return found


def imported(name: str, path: str) -> Callable[..., Any]:
    """Import the function at `module:name`. Raises `Misconfigured`."""
    found = loaded(name, path)
    if not callable(found):
        raise Misconfigured(f"{name}: {path!r} is a {type(found).__name__}, not a function")
    function: Callable[..., Any] = found
    return function

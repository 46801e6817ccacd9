"""Imports the objects that settings and options name."""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from toolpool.contract.errors import Misconfigured, PackageMissing


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


_EXTRAS = {
    "celery": "worker",
    "kombu": "rabbitmq",
    "httpcore": "worker",
    "jsonschema": "cli",
    "rich": "cli",
    "typer": "cli",
    "sentry_sdk": "sentry",
    "opentelemetry": "otel",
    "prometheus_client": "metrics",
}
"""The extra of toolpool that installs a package, by its module."""


def require_package(module: str, needed_by: str) -> None:
    """Raises `PackageMissing` if this is the module of an optional package not installed."""
    # An imported module may have no spec: kombu replaces itself.
    if module in _EXTRAS and module not in sys.modules and find_spec(module) is None:
        raise PackageMissing(
            f"{needed_by} needs the package {module}, which is not installed: run "
            f"pip install 'toolpool[{_EXTRAS[module]}]'"
        )

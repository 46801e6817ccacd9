"""The dispatcher of a command: of the workers that are there, or with workers of its own."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolpool.contract.settings import Settings

_LOCAL_QUEUE_WAIT = 300.0
"""Seconds. Workers of our own are known to live, and nobody waits for a single answer of a run, so
calls rather wait for a slot than expire."""


def connected(settings: "Settings", tools: list[str]) -> Any:
    """A dispatcher for the Redis URL, or with a server and workers of its own without one."""
    from toolpool import Dispatcher

    if settings.redis_url:
        return Dispatcher.connect(settings=settings)
    if "queue_timeout" not in settings.model_fields_set:
        settings = settings.model_copy(update={"queue_timeout": _LOCAL_QUEUE_WAIT})
    return Dispatcher.local(tools, settings=settings)

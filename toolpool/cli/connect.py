"""The dispatcher of a command. It uses the existing workers, or starts its own."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolpool.contract.settings import Settings

_LOCAL_QUEUE_WAIT = 300.0
"""The queue timeout in seconds with a command's own workers.

These are known to be alive, and no caller waits for a single answer of a run, so calls wait for a
slot rather than expire.
"""


def connected(settings: "Settings", tools: list[str]) -> Any:
    """A dispatcher for the Redis URL; without one, with its own server and workers."""
    from toolpool import Dispatcher

    if settings.redis_url:
        return Dispatcher.connect(settings=settings)
    if "queue_timeout" not in settings.model_fields_set:
        settings = settings.model_copy(update={"queue_timeout": _LOCAL_QUEUE_WAIT})
    return Dispatcher.local(tools, settings=settings)

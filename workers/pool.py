"""Celery's pool interface over the worker service: a message goes to the event loop, not to a slot.

Celery's documented extension point for custom pools (`CELERY_CUSTOM_WORKER_POOL`) takes a
`BasePool`; `on_apply` is where a request reaches it.
"""

from collections.abc import Callable
from typing import Any

from celery.concurrency.base import BasePool


class ToolPool(BasePool):  # type: ignore[misc]
    """Hands batches to `app.service` and acknowledges them on Celery's own loop.

    An AMQP channel is not thread-safe, so the acknowledgement goes back through the hub.
    """

    signal_safe = False
    body_can_be_buffer = True

    def on_start(self) -> None:
        """The service is already running: Celery starts once it is."""
        self._hub: Any = None

    def register_with_event_loop(self, loop: Any) -> None:
        """Celery's hub, again after each reconnect."""
        self._hub = loop

    def on_apply(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        callback: Callable[..., Any] | None = None,
        **_: Any,
    ) -> None:
        """Take one message; `callback` acknowledges it."""
        assert callback is not None
        arguments = args[2]["args"]
        data = arguments[0].encode() if arguments and isinstance(arguments[0], str) else b""

        def acknowledge() -> None:
            if self._hub is None:
                callback((False, None, 0.0))
            else:
                self._hub.call_soon(callback, (False, None, 0.0))

        self.app.service.receive(data, acknowledge)

    def on_stop(self) -> None:
        """Drain: see `WorkerService.stop`."""
        self.app.service.stop()

    on_terminate = on_stop

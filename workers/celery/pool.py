"""Celery's pool interface over the worker service: messages go to the event loop, not to slots.

Celery's documented extension point for custom pools (`CELERY_CUSTOM_WORKER_POOL`) takes a
`BasePool`; `on_apply` is where a request reaches it.
"""

from collections.abc import Callable
from typing import Any

from celery.concurrency.base import BasePool

from toolpool.workers.celery.message_guard import as_bytes


class ToolPool(BasePool):
    """Passes batches to `app.service`.

    `callback` is called on the service's thread, as Celery's own thread pool does. It puts the
    acknowledgement on Celery's loop (an AMQP channel is not thread-safe) and wakes it. Calling it
    there through the hub loses up to a second: kombu 5.7 polls before it runs new callbacks.
    """

    signal_safe = False
    body_can_be_buffer = True

    def on_apply(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        callback: Callable[..., Any] | None = None,
        **_: Any,
    ) -> None:
        """Accept one message; `callback` acknowledges it."""
        assert callback is not None
        signed: str = args[2]["args"][0]
        self.app.service.receive(as_bytes(signed), lambda: callback((False, None, 0.0)))

    def register_with_event_loop(self, loop: Any) -> None:
        """Called when Celery's loop starts, also after a reconnect."""
        service = self.app.service
        service.main_turned()
        loop.call_repeatedly(service.sign_seconds, service.main_turned)

    def on_stop(self) -> None:
        """Drain: see `WorkerService.stop`."""
        self.app.service.stop()

    on_terminate = on_stop

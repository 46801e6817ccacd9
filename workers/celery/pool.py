"""Celery's pool interface over the worker service: a message goes to the event loop, not to a slot.

Celery's documented extension point for custom pools (`CELERY_CUSTOM_WORKER_POOL`) takes a
`BasePool`; `on_apply` is where a request reaches it.
"""

from collections.abc import Callable
from typing import Any

from celery.concurrency.base import BasePool


class ToolPool(BasePool):
    """Hands batches to `app.service`.

    `callback` is called on the service's thread, as Celery's own thread pool does. It puts the
    acknowledgement on Celery's loop (an AMQP channel is not thread-safe) and wakes it. To call it
    there through the hub loses up to a second: kombu 5.7 polls before it looks at what a callback
    has put on the loop.
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
        """Take one message; `callback` acknowledges it."""
        assert callback is not None
        signed: str = args[2]["args"][0]
        data = signed.encode(errors="surrogatepass")  # no signature matches half a surrogate pair
        self.app.service.receive(data, lambda: callback((False, None, 0.0)))

    def register_with_event_loop(self, loop: Any) -> None:
        """Celery's loop begins to turn, for the first time or on a new connection."""
        service = self.app.service
        service.main_turned()
        loop.call_repeatedly(service.sign_seconds, service.main_turned)

    def on_stop(self) -> None:
        """Drain: see `WorkerService.stop`."""
        self.app.service.stop()

    on_terminate = on_stop

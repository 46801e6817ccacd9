"""Gives each kind of tool its own channel to the broker, and so its own prefetch window.

A worker holds messages back while their kind has no free slot. In one shared window, a few messages
for busy threads would block the messages of every other kind.
"""

from dataclasses import dataclass
from typing import Any

from celery import bootsteps
from kombu import Queue
from kombu.common import ignore_errors

from toolpool.contract import logs

lines = logs.logger("worker")


@dataclass(frozen=True, slots=True)
class QueueChannel:
    """The queues of one kind, and the most unacknowledged messages of them."""

    queues: tuple[str, ...]
    window: int


class QueueChannels(bootsteps.StartStopStep):
    """Consumes all channels except the first, which Celery's own consumer handles."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._consumers: list[Any] = []
        self._was_started = False

    def start(self, c: Any) -> None:
        """Open the channels. Called again after a lost connection."""
        self._consumers = [self._consume(c, wanted) for wanted in c.app.channels[1:]]
        if self._was_started and c.app.has_own_broker:  # else `server_back` is logged
            lines.warning("broker_back: messages are received again", extra=logs.CHANGE)
            logs.forget_library_repeats()  # another loss is logged again
        self._was_started = True

    def stop(self, c: Any) -> None:
        """Receive no more messages. Messages that are held can still be acknowledged."""
        for consumer in self._consumers:
            ignore_errors(c, consumer.cancel)

    def shutdown(self, c: Any) -> None:
        """Close the channels."""
        self.stop(c)
        for consumer in self._consumers:
            ignore_errors(c, consumer.close)
        self._consumers = []

    def _consume(self, c: Any, wanted: QueueChannel) -> Any:
        channel = c.connection.channel()
        channel.basic_qos(0, wanted.window, c.qos_global)
        consumer = c.app.amqp.TaskConsumer(
            channel,
            queues=[Queue(name) for name in wanted.queues],
            on_decode_error=c.on_decode_error,
        )
        consumer.on_message = c.create_task_handler()
        consumer.consume()
        return consumer

"""Each kind of tool has a channel to the broker of its own, and so a window of messages of its own.

A worker holds messages back while their kind has no free slot. In one window for all kinds, a few
messages for threads that are all busy would keep every other kind's messages out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from celery import bootsteps
from kombu import Queue
from kombu.common import ignore_errors

from toolpool.contract import logs

lines = logs.logger("worker")


@dataclass(frozen=True, slots=True)
class QueueChannel:
    """Queues of one kind, and how many of their messages are held unacknowledged at most."""

    queues: tuple[str, ...]
    window: int


class QueueChannels(bootsteps.StartStopStep):
    """Consumes all lanes but the first, which Celery's own consumer has."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._consumers: list[Any] = []
        self._was_started = False

    def start(self, c: Any) -> None:
        """Open a channel for each lane. Called again after the connection was lost."""
        self._consumers = [self._consume(c, lane) for lane in _others(c.app.lanes)]
        if self._was_started and c.app.has_own_broker:  # else `server_back` says it
            lines.warning("broker_back: messages are taken again", extra=logs.CHANGE)
            logs.forget_library_repeats()  # that it is lost again is news
        self._was_started = True

    def stop(self, c: Any) -> None:
        """Take no more messages; what is held can still be acknowledged."""
        for consumer in self._consumers:
            ignore_errors(c, consumer.cancel)

    def shutdown(self, c: Any) -> None:
        """Close the channels."""
        self.stop(c)
        for consumer in self._consumers:
            ignore_errors(c, consumer.close)
        self._consumers = []

    def _consume(self, c: Any, lane: QueueChannel) -> Any:
        channel = c.connection.channel()
        channel.basic_qos(0, lane.window, c.qos_global)
        consumer = c.app.amqp.TaskConsumer(
            channel,
            queues=[Queue(name) for name in lane.queues],
            on_decode_error=c.on_decode_error,
        )
        consumer.on_message = c.create_task_handler()
        consumer.consume()
        return consumer


def _others(lanes: Sequence[QueueChannel]) -> Sequence[QueueChannel]:
    return lanes[1:]

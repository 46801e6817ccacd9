"""Reads queue lengths from the broker itself, whatever its kind."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from toolpool.contract.server.connection import broker_fault
from toolpool.contract.settings import Settings
from toolpool.fleet_reader import answering


def depths(settings: Settings, queues: Sequence[str]) -> Mapping[str, int]:
    """How many messages wait in each queue. A message carries a batch of calls.

    Raises `BrokerUnreachable`.
    """
    if settings.broker_url is None:
        with answering(settings) as client:
            pipeline = client.pipeline(transaction=False)
            for queue in queues:
                pipeline.llen(queue)
            return dict(zip(queues, pipeline.execute(), strict=True))
    with broker(settings) as connection:
        return {queue: _depth(connection, queue) for queue in queues}


@contextmanager
def broker(settings: Settings) -> Iterator[Any]:
    """A kombu connection to a separate broker, for a `with` block.

    Raises `BrokerUnreachable`, also for failures inside the block.
    """
    from kombu import Connection

    url = settings.broker_url or ""
    try:
        with Connection(url, connect_timeout=settings.connect_timeout) as connection:
            connection.ensure_connection(max_retries=1, timeout=math.ceil(settings.connect_timeout))
            yield connection
    except Exception as error:  # noqa: BLE001 - each transport has errors of its own
        raise broker_fault(url, error) from None


def _depth(connection: Any, queue: str) -> int:
    """The messages in one queue; 0 if it is not declared yet."""
    with connection.channel() as channel:  # a refusal may close the channel
        try:
            return int(channel.queue_declare(queue, passive=True).message_count)
        except connection.channel_errors:
            return 0

"""Publishes through kombu, in one thread, to a Celery broker that is not the ledger's Redis.

kombu is an optional dependency, so it is imported where it is used.
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from toolpool.contract.errors import ServerUnavailable
from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.contract.server.connection import broker_fault
from toolpool.dispatcher.transports import celery_message

_PUBLISH_RETRIES = {"max_retries": 3, "interval_start": 0, "interval_step": 0.2, "interval_max": 1}


class Broker:
    """One kombu connection, used from one thread: kombu's are not thread-safe."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="broker")
        self._connection: Any = None
        self._producer: Any = None

    async def open(self, timeout: float) -> None:
        """Connect within `timeout` seconds. Raises `BrokerUnreachable`."""
        await self._in_thread(self._open, timeout)

    async def publish(self, queue: str, signed: bytes, *, give_up_at: float) -> None:
        """Put a batch on a queue, declared if it is new. Raises `ServerUnavailable`."""
        from kombu.exceptions import OperationalError

        try:
            async with asyncio.timeout(max(0.0, give_up_at - time.monotonic())):
                await self._in_thread(self._publish, queue, signed)
        except (TimeoutError, OperationalError) as error:
            raise ServerUnavailable("publish", sent=True) from error

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._in_thread(self._connection.release)
        self._thread.shutdown(wait=False)

    async def _in_thread(self, function: Any, *args: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    def _open(self, timeout: float) -> None:
        from kombu import Connection, Producer

        self._connection = Connection(self._url, connect_timeout=timeout)
        try:
            self._connection.ensure_connection(max_retries=1, timeout=timeout)
        except Exception as error:  # noqa: BLE001 - each kind of broker has errors of its own
            raise broker_fault(self._url, error) from None
        self._producer = Producer(self._connection)

    def _publish(self, queue: str, signed: bytes) -> None:
        from kombu import Producer
        from kombu.exceptions import OperationalError

        try:
            self._send(queue, signed)
        except AttributeError as error:  # kombu has lost the connection between two of its steps
            with suppress(Exception):
                self._connection.release()
            self._connection = self._connection.clone()
            self._producer = Producer(self._connection)
            raise OperationalError("the connection was reset") from error

    def _send(self, queue: str, signed: bytes) -> None:
        from kombu import Queue

        batch_id = new_nonce()
        self._producer.publish(
            celery_message.body(signed),
            exchange="",
            routing_key=queue,
            headers=celery_message.headers(batch_id),
            correlation_id=batch_id,
            content_type="application/json",
            content_encoding="utf-8",
            declare=[Queue(queue, routing_key=queue)],
            retry=True,
            retry_policy=_PUBLISH_RETRIES,
        )

"""A subscription that the server drops as soon as this process dies.

The kernel closes the sockets of a killed process, so `PUBSUB NUMSUB` tells dispatchers of its
death seconds before its lease expires. A living worker whose subscription ended, for example by
`CLIENT KILL`, renews its lease at once, which says that it is not subscribed.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import redis
from redis.exceptions import RedisError

from toolpool.contract import logs

log = logs.logger("presence")

_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 30.0
"""For a user that may not subscribe, or a server that takes no more clients."""
_STOP_SECONDS = 1.0


class LivenessChannel:
    """Keeps one connection subscribed to a channel to which nothing is published.

    `changed` is called, on its own thread, whenever the subscription begins or ends.
    """

    def __init__(self, client: "redis.Redis", channel: str, changed: Callable[[], None]) -> None:
        self._client = client
        self._channel = channel
        self._changed = changed
        self._stopping = threading.Event()
        self._is_stale = False
        self.is_open = False
        self.closed_at = float("-inf")
        """When the subscription last ended, on the monotonic clock."""

    def start(self) -> None:
        """Subscribe, in the background."""
        threading.Thread(target=self._keep, name="liveness", daemon=True).start()

    def stop(self) -> None:
        """End the subscription within a second. Does not wait for it."""
        self._stopping.set()

    def reopen(self) -> None:
        """Subscribe again, by a new connection, if it is subscribed."""
        self._is_stale = self.is_open

    def _keep(self) -> None:
        pause = _PAUSE_SECONDS
        while not self._stopping.wait(pause):
            try:
                self._subscribe()
            except (RedisError, OSError) as error:
                log.info("liveness_channel_closed: %s", error)
            pause = _PAUSE_SECONDS if self.is_open else min(2 * pause, _LONGEST_PAUSE_SECONDS)
            self._ended()

    def _subscribe(self) -> None:
        """Stay subscribed until the connection or the worker ends."""
        pool: Any = self._client.connection_pool  # which counts the connections that it makes
        link = pool.connection_class(**pool.connection_kwargs)
        try:
            link.connect()
            link.send_command("SUBSCRIBE", self._channel)
            link.read_response()
            self.is_open, self._is_stale = True, False
            self._changed()
            while not (self._stopping.is_set() or self._is_stale):
                if link.can_read(timeout=_STOP_SECONDS):
                    link.read_response()
        finally:
            link.disconnect()

    def _ended(self) -> None:
        if self.is_open:
            self.closed_at = time.monotonic()
            self.is_open = False
            self._changed()

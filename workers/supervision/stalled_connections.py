"""Closes connections to the broker that no longer get answers.

A link can fail without either end noticing. kombu then waits forever for an answer, and the worker
receives no calls, while its lease is still renewed on another connection. Closing the connection
makes kombu raise, and Celery connects again while running calls go on.
"""

import select
import socket
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from toolpool.contract import logs

log = logs.logger("stalled_connections")

_CHECK_SECONDS = 1.0
_LAST_DATA_RECEIVED = struct.Struct("=52xI")  # tcpi_last_data_recv of struct tcp_info, in ms


class StalledConnections:
    """Watches kombu's Redis connections.

    A connection is stalled if a command on it has had no answer for `patience` seconds, though the
    server answered on another connection in the later half of that time. `confirmed_at` returns the
    time at which the last answered request was sent. kombu's longest command, BRPOP, takes a
    second.
    """

    def __init__(self, *, patience: float, confirmed_at: Callable[[], float]) -> None:
        self._patience = patience
        self._confirmed_at = confirmed_at
        self._connections: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def start(self) -> None:
        """Watch in a background thread until `stop`."""
        threading.Thread(target=self._watch, name="stalled-connections", daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopping.set()

    def watched(self, connection_class: Any) -> Any:
        """A subclass of a redis-py connection that records when its open request was sent."""
        watch = self

        class Watched(connection_class):  # type: ignore[misc]
            asked_at: float | None = None

            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **options)
                with watch._lock:
                    watch._connections.add(self)

            def send_packed_command(self, *args: Any, **options: Any) -> None:
                self.asked_at = time.monotonic()
                try:
                    super().send_packed_command(*args, **options)
                except BaseException:
                    self.asked_at = None
                    raise
                if self.asked_at is None:  # connecting first has reset the time
                    self.asked_at = time.monotonic()

            def read_response(self, *args: Any, **options: Any) -> Any:
                if self.asked_at is None:  # a further answer to the same request
                    self.asked_at = time.monotonic()
                try:
                    return super().read_response(*args, **options)
                finally:
                    self.asked_at = None

            def disconnect(self, *args: Any, **options: Any) -> None:
                self.asked_at = None
                super().disconnect(*args, **options)

        return Watched

    def close_stalled(self) -> int:
        """Close stalled connections; return how many there were."""
        with self._lock:
            connections = list(self._connections)
        now, ended = time.monotonic(), 0
        for connection in connections:
            asked_at, sock = connection.asked_at, connection._sock
            if asked_at is None or sock is None or now - asked_at < self._patience:
                continue
            if self._confirmed_at() < asked_at + self._patience / 2:
                continue  # the server may be unavailable: then every connection waits
            if _has_answer(sock) or _received_within(sock, self._patience):
                continue
            log.error("connection_stalled seconds=%.1f: closing it", now - asked_at)
            with suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # without a closing handshake of TLS
            ended += 1
        return ended

    def _watch(self) -> None:
        while not self._stopping.wait(_CHECK_SECONDS):
            self.close_stalled()


def _has_answer(sock: socket.socket) -> bool:
    """Whether an answer can be read: kombu leaves it unread while it has no free slot."""
    try:
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return bool(poll.poll(0))
    except (OSError, ValueError):
        return True  # closed in the meantime


def _received_within(sock: socket.socket, seconds: float) -> bool:
    """Whether part of an answer came recently. A large answer over a slow link takes long."""
    if sys.platform != "linux" or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_RECEIVED.size)
        return bool(_LAST_DATA_RECEIVED.unpack(info)[0] < seconds * 1000)
    except (OSError, struct.error):
        return False

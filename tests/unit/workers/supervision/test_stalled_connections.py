"""Which connections are ended, and which only wait: real sockets, no server."""

import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.connection import Connection

from toolpool.workers.supervision.stalled_connections import StalledConnections

PATIENCE = 0.2
PONG = b"+PONG\r\n"


class Ends:
    """A redis-py connection that has asked something, and the server's end of it."""

    def __init__(self, watch: StalledConnections) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.client = watch.watched(Connection)(port=listening.getsockname()[1], retry=None)
            self.client._sock = socket.create_connection(listening.getsockname())
            self.client._parser.on_connect(self.client)
            self.server, _ = listening.accept()
        self.client.send_command("PING", check_health=False)

    def is_ended(self) -> bool:
        """Whether the client has let go of it."""
        self.server.settimeout(0.5)
        try:
            while self.server.recv(100):
                pass
        except TimeoutError:
            return False
        return True


@pytest.fixture
def confirmed() -> list[float]:
    return [float("inf")]


@pytest.fixture
def watch(confirmed: list[float]) -> StalledConnections:
    return StalledConnections(patience=PATIENCE, confirmed_at=lambda: confirmed[0])


@pytest.fixture
def ends(watch: StalledConnections) -> Iterator[Ends]:
    made = Ends(watch)
    yield made
    made.client.disconnect()
    made.server.close()


def looked_later(watch: StalledConnections, ends: Any) -> int:
    """A look once what was asked is older than the patience."""
    ends.client.asked_at = time.monotonic() - 2 * PATIENCE
    if sys.platform == "linux":  # and the kernel has seen nothing for as long
        time.sleep(1.5 * PATIENCE)
    return watch.close_stalled()


def test_what_was_never_answered_is_ended(watch: StalledConnections, ends: Ends) -> None:
    assert watch.close_stalled() == 0, "it has only just asked"
    assert looked_later(watch, ends) == 1
    assert ends.is_ended()
    with pytest.raises(redis.ConnectionError, match="closed"):
        ends.client.read_response()
    assert watch.close_stalled() == 0


def test_while_the_server_is_away_everything_waits(
    watch: StalledConnections, ends: Ends, confirmed: list[float]
) -> None:
    confirmed[0] = time.monotonic() - 60
    assert looked_later(watch, ends) == 0


def test_an_answer_that_nobody_has_read_yet_is_one(watch: StalledConnections, ends: Ends) -> None:
    """kombu leaves it where it is while it has no room for a message."""
    ends.server.sendall(PONG)
    time.sleep(0.05)
    assert looked_later(watch, ends) == 0
    assert ends.client.read_response() in (b"PONG", "PONG")
    assert ends.client.asked_at is None
    assert watch.close_stalled() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says when data came")
def test_an_answer_that_comes_in_parts_is_waited_for(watch: StalledConnections, ends: Ends) -> None:
    ends.server.sendall(PONG[:3])
    assert ends.client._sock.recv(3) == PONG[:3]
    ends.client.asked_at = time.monotonic() - 2 * PATIENCE
    assert watch.close_stalled() == 0

"""The window of messages that a worker holds."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ConnectionError, ReadOnlyError, TimeoutError

from toolpool.workers.celery.inbox import _FreeingQoS


class Channel:
    """Of a server that fails each of the next commands in its own way."""

    def __init__(self, *faults: Exception) -> None:
        self.faults = list(faults)
        self.asked = 0
        self.do_restore = False
        self.unacked_key = self.unacked_index_key = "unacked"

    @contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        yield self

    def pipeline(self) -> Any:
        return self

    def zrem(self, *names: str) -> Any:
        return self

    def hdel(self, *names: str) -> Any:
        return self

    def execute(self) -> None:
        self.asked += 1
        if self.faults:
            raise self.faults.pop(0)


@pytest.mark.parametrize("how", ["ack", "reject"])
@pytest.mark.parametrize(
    ("faults", "asked"),
    [
        ([], 1),
        ([ConnectionError()], 2),
        ([ConnectionError(), ConnectionError()], 2),
        ([TimeoutError()], 1),
        ([ReadOnlyError()], 1),
    ],
    ids=["none", "cut once", "cut twice", "frozen", "demoted"],
)
def test_the_window_is_free_again_whatever_the_server_says(
    how: str, faults: list[Exception], asked: int
) -> None:
    channel = Channel(*faults)
    qos = _FreeingQoS(channel, prefetch_count=1)
    qos._delivered["tag"] = SimpleNamespace()
    assert not qos.can_consume()
    getattr(qos, how)("tag")
    assert qos.can_consume()
    assert channel.asked == asked

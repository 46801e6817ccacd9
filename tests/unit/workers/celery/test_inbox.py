"""The window of messages that a worker holds."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ConnectionError, ReadOnlyError, TimeoutError

from toolpool.contract.redis_keys import BATCH_TASK
from toolpool.workers.celery.inbox import _FreeingQoS, _is_batch


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


SIGNED = [["signed"], {}, {}]


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({}, SIGNED, True),
        ({}, [["signed"], {}, {"callbacks": None}], True),
        ({"task": "other.task"}, SIGNED, False),
        ({"id": None}, SIGNED, False),
        ({"eta": "2026-01-01"}, SIGNED, False),
        ({"expires": "2026-01-01"}, SIGNED, False),
        ({}, "abc", False),  # three characters are no three parts
        ({}, {"a": 1, "b": 2, "c": 3}, False),
        ({}, [["signed"], {}], False),
        ({}, [["signed", "more"], {}, {}], False),
        ({}, [[], {}, {}], False),
        ({}, [[3], {}, {}], False),
        ({}, ["s", {}, {}], False),
    ],
)
def test_a_batch_is_known_by_its_form(headers: dict[str, Any], body: Any, expected: bool) -> None:
    message = SimpleNamespace(headers={"task": BATCH_TASK, "id": "i", **headers}, payload=body)
    assert _is_batch(message) is expected


@pytest.mark.parametrize("headers", [None, [], "task"])
def test_a_message_without_headers_is_no_batch(headers: Any) -> None:
    assert not _is_batch(SimpleNamespace(headers=headers, payload=SIGNED))

"""Which messages of a queue are batches."""

from types import SimpleNamespace
from typing import Any

import pytest

from toolpool.contract.redis_keys import BATCH_TASK
from toolpool.workers.celery.inbox import _is_batch

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

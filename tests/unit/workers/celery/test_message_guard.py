"""What may be a message of ours, and what is refused before anything of it is unpacked."""

import json
import zlib
from typing import Any

import pytest
from kombu.message import Message

from toolpool.contract.errors import MessageRejected
from toolpool.dispatcher.transports import celery_message
from toolpool.workers.celery.message_guard import MessageValidator

FORM = MessageValidator(max_message_bytes=10_000)


def element(**changes: Any) -> bytes:
    return json.dumps(json.loads(celery_message.redis_message("q", b"signed")) | changes).encode()


def message(**changes: Any) -> Message:
    options: dict[str, Any] = {
        "body": celery_message.body(b"signed"),
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "headers": celery_message.headers("b-1"),
    }
    return FORM.guarding(Message)(**(options | changes))  # type: ignore[no-any-return]


def test_what_a_dispatcher_writes_passes() -> None:
    FORM.check_element(celery_message.redis_message("q", b"signed"))
    assert message().errors == []
    assert message().payload[0] == ["signed"]


def test_a_batch_is_read_from_an_element_before_celery_has_seen_it() -> None:
    assert FORM.check_element(celery_message.redis_message("q", b"signed")) == b"signed"


@pytest.mark.parametrize(
    "headers",
    [
        {"task": "another"},
        {"task": None},
        {"eta": "2030-01-01T00:00:00"},
        {"expires": "soon"},
        {"id": None},
        {"id": 7},
    ],
    ids=repr,
)
def test_what_celery_may_drop_or_delay_is_not_read_ahead(headers: dict[str, Any]) -> None:
    assert FORM.check_element(element(headers=celery_message.headers("b-1") | headers)) is None


def test_what_kombu_has_encoded_is_left_to_kombu() -> None:
    properties = {"body_encoding": "base64"}
    assert FORM.check_element(element(body="W10=", properties=properties)) is None


@pytest.mark.parametrize("filling", ["a", '"', "\\"])
def test_so_does_the_longest_message_whatever_it_holds(filling: str) -> None:
    """A batch is JSON already: of its quotes, those within strings are escaped."""
    signed = ("s." + json.dumps([filling * 4_500]))[:10_000].encode()
    data = celery_message.redis_message("q", signed)
    FORM.check_element(data)
    assert message(body=json.loads(data)["body"].encode()).errors == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[" * 10_000,
        b"\xff",
        element(body=None),
        element(body="x" * 200_000),
        element(more=[[]]),
        element(headers={"compression": "zlib"}),
        element(headers={"x": [[]] * 10_000}),
        element(properties={"x": [[]] * 10_000}),
    ],
    ids=[
        "empty",
        "not a list",
        "nested",
        "not UTF-8",
        "no body",
        "a long body",
        "more arguments",
        "compressed",
        "nested headers",
        "nested properties",
    ],
)
def test_an_element_of_another_form_is_refused(data: bytes) -> None:
    with pytest.raises((MessageRejected, ValueError)):
        FORM.check_element(data)


@pytest.mark.parametrize(
    "changes",
    [
        {"headers": celery_message.headers("b-1") | {"compression": "zlib"}},
        {"content_type": "application/x-python-serialize"},
        {"content_type": "application/data"},
        {"content_encoding": "binary"},
        {"content_encoding": "utf-16"},
        {"body": b'[["' + b"x" * 100_000 + b'"], {}, {}]'},
        {"body": json.dumps([["x"], {"a": [[]] * 10_000}, {}])},
        {"body": "[" * 30_000},
        {"body": None},
        {"body": "\ud800"},
    ],
    ids=lambda changes: repr(changes)[:60],
)
def test_a_message_of_another_form_is_left_packed(changes: dict[str, Any]) -> None:
    """kombu hands one with errors to `on_decode_error`, and decodes nothing."""
    refused = message(**changes)
    assert refused.errors
    assert refused.body == changes.get("body", celery_message.body(b"signed"))


def test_a_compressed_body_is_never_unpacked() -> None:
    packed = zlib.compress(celery_message.body(b"signed"))
    headers = celery_message.headers("b-1") | {"compression": "application/x-gzip"}
    refused = message(body=packed, headers=headers)
    assert refused.body == packed
    assert "compressed" in str(refused.errors[0][1])

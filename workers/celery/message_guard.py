"""Checks the form of a message before kombu or Celery decode it.

Anybody who reaches the broker can write to it, and a signature is only checked after decoding: two
compressed megabytes may expand to as many gigabytes.
"""

from typing import Any

import msgspec

from toolpool.contract import encoding
from toolpool.contract.errors import MessageRejected
from toolpool.contract.redis_keys import BATCH_TASK

_OVERHEAD_BYTES = 1 << 14
"""Space for headers, properties and the frame around a batch."""
_QUOTED = 2
"""The growth factor of JSON text that is quoted in other JSON text."""
_CONTENT_TYPE, _CONTENT_ENCODING = "application/json", "utf-8"
_NULL, _BATCH_TASK = b"null", encoding.encode(BATCH_TASK)


class _Element(msgspec.Struct, forbid_unknown_fields=True):
    """An element of a Redis list. `Raw` fields are measured, not decoded."""

    body: str
    headers: dict[str, msgspec.Raw]
    properties: dict[str, msgspec.Raw]
    content_type: str = msgspec.field(name="content-type")
    content_encoding: str = msgspec.field(name="content-encoding")


_decode_element = msgspec.json.Decoder(_Element).decode
_decode_body = msgspec.json.Decoder(tuple[tuple[str], msgspec.Raw, msgspec.Raw]).decode


def as_bytes(signed: str) -> bytes:
    """A signed batch as its bytes. No signature matches a lone surrogate."""
    return signed.encode(errors="surrogatepass")


class MessageValidator:
    """Which messages may be signed batches of at most `max_message_bytes` bytes."""

    def __init__(self, max_message_bytes: int) -> None:
        self._max_body = max_message_bytes * _QUOTED + _OVERHEAD_BYTES
        self._max_element = self._max_body * _QUOTED + _OVERHEAD_BYTES

    def check_element(self, data: bytes) -> bytes | None:
        """The signed batch in a list element; None if Celery has to look at the message first.

        Raises `MessageRejected` or `ValueError` for an invalid element.
        """
        if len(data) > self._max_element:
            raise MessageRejected("too_large", "it is over the cap")
        element = _decode_element(data)
        parts = (*element.headers.values(), *element.properties.values())
        if sum(len(bytes(part)) for part in parts) > _OVERHEAD_BYTES:
            raise MessageRejected("too_large", "its headers are too large")
        if "compression" in element.headers:
            raise MessageRejected("foreign", "it is compressed")
        headers = element.headers
        is_encoded = "body_encoding" in element.properties  # as kombu's own producers send it
        is_text = (element.content_type, element.content_encoding) == (
            _CONTENT_TYPE, _CONTENT_ENCODING,
        )  # fmt: skip
        if is_encoded or not is_text or not bytes(headers.get("id", _NULL)).startswith(b'"'):
            return None
        is_plain = all(bytes(headers.get(name, _NULL)) == _NULL for name in ("eta", "expires"))
        if not is_plain or bytes(headers.get("task", _NULL)) != _BATCH_TASK:
            return None
        return self._signed(element.body)

    def check(self, message: Any) -> None:
        """Raise `MessageRejected` or `ValueError` for a kombu message that is not a batch."""
        headers = message.headers
        if isinstance(headers, dict) and headers.get("compression"):
            raise MessageRejected("foreign", "it is compressed")
        if (message.content_type, message.content_encoding) != (_CONTENT_TYPE, _CONTENT_ENCODING):
            raise MessageRejected("foreign", "it is not JSON in UTF-8")
        self._signed(message.body)

    def _signed(self, body: object) -> bytes:
        if not isinstance(body, (bytes, str)) or len(body) > self._max_body:
            raise MessageRejected("too_large", "its body is too large or missing")
        (signed,), keywords, embedded = _decode_body(body)
        if len(bytes(keywords)) + len(bytes(embedded)) > _OVERHEAD_BYTES:
            raise MessageRejected("too_large", "its body holds more than a batch")
        return as_bytes(signed)

    def guarding(self, kind: Any) -> Any:
        """A subclass of kombu's message class `kind` that is checked before it is decoded."""
        check = self.check

        class Checked(kind):  # type: ignore[misc]
            body: Any
            errors: list[Any]

            def __init__(self, *args: Any, **options: Any) -> None:
                self.errors = [_UNCHECKED]  # kombu does not decode a message with errors
                super().__init__(*args, **options)
                try:
                    check(self)
                    if isinstance(self.body, str):
                        self.body = self.body.encode()
                    self.errors = []
                except Exception as error:  # noqa: BLE001 - a message from an unknown writer
                    self.errors = [(type(error), error, None)]

        return Checked


_UNCHECKED = (MessageRejected, MessageRejected("foreign", "it was not checked"), None)

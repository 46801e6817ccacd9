"""The headers that carry a trace from a dispatcher to a worker.

`traceparent` and `baggage` are W3C's (https://www.w3.org/TR/trace-context/, .../baggage/),
`sentry-trace` is Sentry's.
"""

import re
import secrets
import zlib
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote, unquote

BAGGAGE = "baggage"
SENTRY_TRACE = "sentry-trace"
HEADER_BYTES = 8_192
_SENTRY = re.compile(r"([0-9a-f]{32})-([0-9a-f]{16})(?:-([01]))?")


class Parent(NamedTuple):
    """A parent span; `is_sampled` is None if sampling has not been decided."""

    trace_id: str
    span_id: str
    is_sampled: bool | None


def merged(carrier: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """The headers of two tracers, with their baggage joined. Values over 8 KiB are left out."""
    headers = dict(carrier)
    for name, value in other.items():
        if name == BAGGAGE and name in headers:
            value = f"{headers[name]},{value}"
        if len(value) <= HEADER_BYTES:
            headers[name] = value
    return headers


def to_baggage(values: Mapping[str, str | None]) -> str:
    """Names and values as a `baggage` header."""
    return ",".join(f"{name}={quote(value, safe='')}" for name, value in values.items() if value)


def from_baggage(headers: Mapping[str, str] | None) -> dict[str, str]:
    """The names and values of a `baggage` header; invalid parts are ignored."""
    pairs = ((headers or {}).get(BAGGAGE) or "").split(",")
    split = (pair.partition(";")[0].partition("=") for pair in pairs)
    return {name.strip(): unquote(value.strip()) for name, _, value in split if value}


def sentry_parent(headers: Mapping[str, str] | None) -> Parent | None:
    """The span that a `sentry-trace` header names; None without a valid one."""
    header = headers.get(SENTRY_TRACE) if headers else None
    found = _SENTRY.fullmatch(header) if header else None
    if found is None:
        return None
    return Parent(found[1], found[2], found[3] == "1" if found[3] else None)


def is_sampled(above: Parent | None, key: str, rate: float) -> bool:
    """Whether a call is traced.

    Its parent's decision applies; without one, `rate` (0 to 1) decides. The choice depends on `key`
    alone, so dispatchers and workers with the same rate choose the same calls.
    """
    if above is not None and above.is_sampled is not None:
        return above.is_sampled
    return zlib.crc32(key.encode()) < rate * 2**32


def sentry_trace(parent: Parent) -> str:
    """The `sentry-trace` header that names a span."""
    sampled = "" if parent.is_sampled is None else f"-{int(parent.is_sampled)}"
    return f"{parent.trace_id}-{parent.span_id}{sampled}"


def new_trace_id() -> str:
    """32 random hex characters."""
    return secrets.token_hex(16)


def new_span_id() -> str:
    """16 random hex characters."""
    return secrets.token_hex(8)

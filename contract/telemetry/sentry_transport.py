"""How reports get to Sentry: in the thread that has them, over a connection that is kept.

What is sent, what is lost and what the server's limits allow is the SDK's business; here is only
the sending of one request, of which a fleet that traces its calls makes hundreds a second.
"""

import functools
import threading
from collections.abc import Mapping
from typing import Any

import urllib3
from sentry_sdk.consts import EndpointType
from sentry_sdk.envelope import Envelope, Item, PayloadRef
from sentry_sdk.transport import HttpTransport
from sentry_sdk.utils import capture_internal_exceptions
from urllib3.connection import HTTPConnection, HTTPSConnection

from toolpool.contract import logs
from toolpool.contract.encoding import encode
from toolpool.contract.telemetry.kept_connection import KeptConnection

log = logs.logger("sentry")

DSN = "SENTRY_DSN"


@functools.lru_cache(16)
def _first_lines(method: str, url: str) -> tuple[str, str]:
    where = urllib3.util.parse_url(url)
    return f"{method} {where.request_uri} HTTP/1.1", f"Host: {where.netloc}"


def _request_of(method: str, url: str, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [*_first_lines(method, url)]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


class SentryTransport(HttpTransport):
    """Sends at once, and says what is lost, where the SDK itself says nothing."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self._kept = KeptConnection(self._new_connection)
        self._sending = threading.Lock()
        self._patience_seconds: float = self.TIMEOUT
        self._is_over = False

    def hurry(self, seconds: float) -> None:
        """From now on wait no longer than this for the server."""
        self._patience_seconds = seconds
        self._is_over = True

    def capture_envelope(self, envelope: Envelope) -> None:
        """Send it. The SDK's own thread would take as long again to take it over."""
        with capture_internal_exceptions():
            self._send_envelope(envelope)
            self._flush_client_reports()

    def send_transaction(self, headers: Mapping[str, object], event: dict[str, Any]) -> None:
        """Send one as it is, in a third of the SDK's time: there are as many as are sampled."""
        payload = encode(event)
        content = PayloadRef(bytes=payload, json=event)  # JSON is what the lost are counted by
        item = Item(content, type="transaction", content_type="application/json")
        with capture_internal_exceptions():
            if self._check_disabled("transaction"):
                self.record_lost_event("ratelimit_backoff", item=item)
            else:
                kind = {**item.headers, "length": len(payload)}
                self._send_request(
                    b"\n".join((encode(headers), encode(kind), payload, b"")),
                    headers={"Content-Type": "application/x-sentry-envelope"},
                    endpoint_type=EndpointType.ENVELOPE,
                    envelope=Envelope(items=[item]),
                )
            self._flush_client_reports()

    def record_lost_event(self, reason: str, *args: Any, **options: Any) -> None:
        """Note that something was not sent."""
        super().record_lost_event(reason, *args, **options)
        if reason in ("network_error", "queue_overflow", "ratelimit_backoff"):
            log.warning(
                "sentry_unreached reason=%s: reports are lost; check %s and the way to it; "
                "tool calls are not affected",
                reason,
                DSN,
            )

    def kill(self) -> None:
        """Send nothing more."""
        super().kill()
        self._is_over = True
        if self._sending.acquire(blocking=False):
            self._kept.close()
            self._sending.release()

    def _get_pool_options(self) -> dict[str, Any]:
        """Try a server that is away once: urllib3 writes a warning for each time more."""
        return super()._get_pool_options() | {"retries": urllib3.Retry(connect=0)}

    def _request(
        self, method: str, endpoint_type: Any, body: Any, headers: Mapping[str, str]
    ) -> Any:
        """Send one request, a third as much work as through urllib3's pool, and read its answer.

        Through a proxy, after a redirect, and where another thread is sending it goes as the SDK
        sends it. Raises what `KeptConnection.ask` does.
        """
        as_the_sdk_does = functools.partial(super()._request, method, endpoint_type, body, headers)
        if type(self._pool) is not urllib3.PoolManager:
            return as_the_sdk_does()
        url = self._auth.get_api_url(endpoint_type)
        if not self._sending.acquire(timeout=self._patience_seconds if self._is_over else 0):
            if self._is_over:
                raise TimeoutError("the server does not answer")
            return as_the_sdk_does()
        try:
            request = _request_of(method, url, headers, body)
            answer = self._kept.ask(request, patience_seconds=self._patience_seconds)
        finally:
            if self._is_over:
                self._kept.close()
            self._sending.release()
        return as_the_sdk_does() if 300 <= answer.status < 400 else answer

    def _new_connection(self) -> HTTPConnection:
        assert self.parsed_dsn is not None
        given, where = self._get_pool_options(), self.parsed_dsn
        names = ["socket_options"]
        if where.scheme == "https":
            names += ["cert_reqs", "ca_certs", "cert_file", "key_file"]
        options: dict[str, Any] = {name: given[name] for name in names if name in given}
        kind = HTTPConnection if where.scheme == "http" else HTTPSConnection
        return kind(where.host, where.port, timeout=self._patience_seconds, **options)

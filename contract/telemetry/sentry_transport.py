"""How reports get to Sentry: in the thread that has them, over a connection that is kept.

What is sent, what is lost and what the server's limits allow is the SDK's business; here is only
the sending of one request, of which a fleet that traces its calls makes hundreds a second.
"""

import functools
import http.client
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import urllib3
from sentry_sdk.transport import HttpTransport
from sentry_sdk.utils import capture_internal_exceptions
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.util import wait_for_read

from toolpool.contract import logs

if TYPE_CHECKING:
    from sentry_sdk.envelope import Envelope

log = logs.logger("sentry")

DSN = "SENTRY_DSN"
_ANSWER_BYTES = 1 << 16


@functools.lru_cache(16)
def _first_lines(method: str, url: str) -> tuple[str, str]:
    where = urllib3.util.parse_url(url)
    return f"{method} {where.request_uri} HTTP/1.1", f"Host: {where.netloc}"


class SentryTransport(HttpTransport):
    """Sends at once, and says what is lost, where the SDK itself says nothing."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self._connection: HTTPConnection | None = None
        self._sending = threading.Lock()
        self._patience_seconds: float = self.TIMEOUT
        self._is_over = False

    def hurry(self, seconds: float) -> None:
        """From now on wait no longer than this for the server."""
        self._patience_seconds = seconds
        self._is_over = True

    def capture_envelope(self, envelope: "Envelope") -> None:
        """Send it. The SDK's own thread would take as long again to take it over."""
        with capture_internal_exceptions():
            self._send_envelope(envelope)
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
            self._hang_up()
            self._sending.release()

    def _get_pool_options(self) -> dict[str, Any]:
        """Try a server that is away once: urllib3 writes a warning for each time more."""
        return super()._get_pool_options() | {"retries": urllib3.Retry(connect=0)}

    def _request(
        self, method: str, endpoint_type: Any, body: Any, headers: Mapping[str, str]
    ) -> Any:
        """Send one request, a third as much work as through urllib3's pool, and read its answer.

        Through a proxy, after a redirect, and where another thread is sending it goes as the SDK
        sends it. Raises OSError or HTTPException.
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
            response = self._sent(method, url, body, headers)
        except BaseException:
            self._hang_up()
            raise
        finally:
            if self._is_over:
                self._hang_up()
            self._sending.release()
        return as_the_sdk_does() if 300 <= response.status < 400 else response

    def _sent(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        lines = [*_first_lines(method, url)]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {len(body)}", "", ""]
        socket = self._connected().sock
        if socket.gettimeout() != self._patience_seconds:
            socket.settimeout(self._patience_seconds)
        socket.sendall("\r\n".join(lines).encode() + body)
        response = http.client.HTTPResponse(socket, method=method)
        response.begin()
        response.read(_ANSWER_BYTES)
        if response.will_close or not response.isclosed():
            self._hang_up()
        return response

    def _connected(self) -> HTTPConnection:
        """The connection of the last request, unless the server has closed it; else a new one."""
        connection = self._connection
        if connection is not None and wait_for_read(connection.sock, timeout=0):
            self._hang_up()
            connection = None
        if connection is None:
            connection = self._connection = self._new_connection()
            connection.connect()
        return connection

    def _new_connection(self) -> HTTPConnection:
        assert self.parsed_dsn is not None
        given, where = self._get_pool_options(), self.parsed_dsn
        names = ["socket_options"]
        if where.scheme == "https":
            names += ["cert_reqs", "ca_certs", "cert_file", "key_file"]
        options: dict[str, Any] = {name: given[name] for name in names if name in given}
        kind = HTTPConnection if where.scheme == "http" else HTTPSConnection
        return kind(where.host, where.port, timeout=self._patience_seconds, **options)

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

"""Serves the metrics page and the probes over HTTP, on daemon threads.

A scraper that hangs occupies one of 64 connections for five seconds. If the port cannot be used,
the log says once what to do, and the server tries again: another process may release it.
"""

import errno
import io
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from socketserver import ThreadingMixIn
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from toolpool.contract import logs
from toolpool.contract.settings import Settings

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from prometheus_client import CollectorRegistry

log = logs.logger("metrics")

PORT = "TOOLPOOL_METRICS_PORT"
HOST = "TOOLPOOL_METRICS_HOST"

_CONNECTIONS = 64
_CONNECTION_SECONDS = 5.0
_TRY_AGAIN_SECONDS = 5.0
_POLL_SECONDS = 0.25
_FULL_POLL_SECONDS = 0.02
_STOP_SECONDS = 2.0

_UNUSABLE = {
    errno.EADDRINUSE: "another process uses it. Give each one on this host its own ({port})",
    errno.EACCES: "this user may not listen there. Use a port of 1024 or above ({port})",
    errno.EADDRNOTAVAIL: "this host has no such address. Set {host} to an address of this host",
}


def port_of(given: int | str) -> int | None:
    """The port that a setting gives; None if metrics are off, or if it is invalid (logged)."""
    try:
        port = int(given)
    except ValueError:
        port = -1
    if not 0 <= port <= 65_535:
        log.warning(
            "metrics_port_invalid port=%s: there will be no metrics; set %s to a number from 1 to "
            "65535. A Kubernetes service called toolpool-metrics sets it as well: give it another "
            "name, or its pods enableServiceLinks: false. Tool calls are not affected",
            given, PORT,
        )  # fmt: skip
        return None
    return port or None


class Server:
    """Serves the metrics of `registry` at `/metrics`.

    Each path of `probes` is answered 200 if its function returns an empty string, else 503 with the
    string.
    """

    def __init__(
        self,
        host: str,
        port: int,
        registry: "CollectorRegistry",
        probes: Mapping[str, Callable[[], str]] = MappingProxyType({}),
    ) -> None:
        from prometheus_client import make_wsgi_app

        self._address = (host, port)
        self._page = make_wsgi_app(registry)
        self._writing_page = threading.Lock()
        self._probes = probes
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._is_logged = False

    def start(self) -> None:
        """Start listening; returns at once."""
        self._thread.start()

    def close(self) -> None:
        """Release the port."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                listening = _listening(*self._address)
            except (OSError, OverflowError, UnicodeError) as error:
                self._log_unusable(error)
                self._stopping.wait(_TRY_AGAIN_SECONDS)
                continue
            log.info("metrics_served address=%s:%d", *self._address)
            with _HTTPServer(listening, self._app) as server:
                while not self._stopping.is_set():
                    server.handle_next()
                server.disconnect(older_than=0.0)

    def _log_unusable(self, error: Exception) -> None:
        if self._is_logged:
            return
        self._is_logged = True
        known = _UNUSABLE.get(getattr(error, "errno", None) or 0)
        why = known.format(port=PORT, host=HOST) if known else f"{error}. Check {HOST} and {PORT}"
        log.warning(
            "metrics_not_served address=%s:%d: %s. Trying again; tool calls are not affected",
            *self._address, why,
        )  # fmt: skip

    def _app(self, environ: "WSGIEnvironment", respond: "StartResponse") -> Iterable[bytes]:
        try:
            return self._answer(environ, respond)
        except Exception:
            log.exception("metrics_page_failed: a bug in toolpool")
            respond("500 Internal Server Error", [("Content-Type", "text/plain")])
            return [b"see the log: metrics_page_failed\n"]

    def _answer(self, environ: "WSGIEnvironment", respond: "StartResponse") -> Iterable[bytes]:
        is_head = environ["REQUEST_METHOD"] == "HEAD"
        if is_head:
            environ["REQUEST_METHOD"] = "GET"
        path = environ["PATH_INFO"]
        body: Iterable[bytes]
        if path in ("/", "/metrics"):
            # One at a time: several would slow the event loop of this process.
            with self._writing_page:
                body = self._page(environ, respond)
        else:
            status, text = "404 Not Found", "metrics are at /metrics"
            if path in self._probes:
                fault = self._probes[path]()
                status, text = ("503 Service Unavailable", fault) if fault else ("200 OK", "ok")
            respond(status, [("Content-Type", "text/plain; charset=utf-8")])
            body = [f"{text}\n".encode()]
        return [] if is_head else body


class _Handler(WSGIRequestHandler):
    default_request_version = "HTTP/1.0"  # so that invalid requests get a status line

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""

    def get_stderr(self) -> Any:
        return io.StringIO()


class _HTTPServer(ThreadingMixIn, WSGIServer):
    """Uses a thread per connection, with a limit on their number and duration."""

    daemon_threads = True
    block_on_close = False
    timeout = _POLL_SECONDS

    def __init__(self, listening: socket.socket, app: "WSGIApplication") -> None:
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        # The base class would look up the host's name, which can take seconds.
        self.server_name, self.server_port = listening.getsockname()[:2]
        self.setup_environ()
        self.set_app(app)
        self._connections: dict[Any, float] = {}

    def handle_next(self) -> None:
        """Accept a connection if one comes soon.

        Connections beyond the limit wait in the kernel.
        """
        self.disconnect(older_than=_CONNECTION_SECONDS)
        if len(self._connections) < _CONNECTIONS:
            self.handle_request()
        else:
            time.sleep(_FULL_POLL_SECONDS)

    def disconnect(self, *, older_than: float) -> None:
        """Close the connections that are at least `older_than` seconds old."""
        now = time.monotonic()
        for connection, since in self._connections.copy().items():
            if now - since >= older_than:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError as error:  # such as too many open files
            log.warning("metrics_connection_not_accepted: %s", error)
            time.sleep(1.0)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A scraper that went away or sent nonsense is not logged."""


def address_of(settings: Settings, host: str | None, port: int | None) -> tuple[str, int] | None:
    """The host and port to listen at; None if metrics are off."""
    wanted = port_of(settings.metrics_port if port is None else port)
    return (host or settings.metrics_host, wanted) if wanted is not None else None


def _listening(host: str, port: int) -> socket.socket:
    is_any = host in ("", "::")
    return socket.create_server(
        (host, port),
        family=socket.AF_INET6 if ":" in host else socket.AF_INET,
        backlog=_CONNECTIONS,
        dualstack_ipv6=is_any and ":" in host and socket.has_dualstack_ipv6(),
    )

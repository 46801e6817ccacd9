"""What Sentry does not take is logged, and holds up nobody."""

import gzip
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from toolpool.contract.settings import Settings
from toolpool.contract.telemetry.sentry_reports import Reports

Answer = Callable[[BaseHTTPRequestHandler], None]


def well(handler: BaseHTTPRequestHandler) -> None:
    """Take it, and keep the connection."""
    handler.send_response(200)
    handler.send_header("Content-Length", "2")
    handler.end_headers()
    handler.wfile.write(b"{}")


class Server:
    """Keeps connections, as Sentry does. `answers` are given in turn, then all is well."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.connections = 0
        self.closed = 0
        self.paths: list[str] = []
        self.tools: list[str] = []
        self.answers: list[Answer] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                server.connections += 1
                super().setup()

            def finish(self) -> None:
                super().finish()
                self.connection.close()
                server.closed += 1

            def do_POST(self) -> None:
                body = gzip.decompress(self.rfile.read(int(self.headers["Content-Length"])))
                server.paths.append(self.path)
                payload = json.loads(body.split(b"\n")[2])
                server.tools += [payload["transaction"]] if "transaction" in payload else []
                (server.answers.pop(0) if server.answers else well)(self)

            def log_message(self, *args: object) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *args: object) -> None:
                """Who was hung up on says nothing."""

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self._scheme = "http"
        if tls is not None:
            self._scheme = "https"
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def dsn(self) -> str:
        return f"{self._scheme}://public@127.0.0.1:{self.port}/7"

    def has_closed(self, connections: int) -> bool:
        return self.closed >= connections

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    server = Server(tls)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as opened:
        yield opened


@contextmanager
def reporting(dsn: str) -> Iterator[Reports]:
    reports = Reports(Settings(), dsn)
    yield reports
    reports._client.close()


def send(reports: Reports, *tools: str) -> None:
    """Send an issue of each tool."""
    for tool in tools:
        reports._client.capture_event(
            {"message": "It fails", "transaction": tool, "level": "error"}
        )
        reports._client.flush(10)


def send_trace(reports: Reports, tool: str) -> None:
    """Send the trace of one call."""
    trace = {"trace_id": "0" * 31 + "1", "span_id": "0" * 15 + "1"}
    reports._client.capture_event(
        {"type": "transaction", "transaction": tool, "contexts": {"trace": trace}, "spans": []}
    )
    reports._client.flush(10)


def unreached(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "sentry_unreachable" in line]


def test_reports_go_over_one_connection(server: Server) -> None:
    with reporting(server.dsn) as reports:
        send(reports, "a", "b", "c")
    assert (server.tools, server.connections) == (["a", "b", "c"], 1)
    assert set(server.paths) == {"/api/7/envelope/"}


def test_closing_does_not_wait_for_a_sentry_that_hangs_with_metrics_to_send(
    server: Server,
) -> None:
    released = threading.Event()

    def hangs(_: BaseHTTPRequestHandler) -> None:
        released.wait(60)

    server.answers = [hangs] * 9
    reports = Reports(Settings(), server.dsn)
    reports.open()
    reports.transaction({"transaction": "t", "contexts": {"trace": {}}})
    reports.count("toolpool.calls", 1.0, {})
    closing = threading.Thread(target=reports.close, daemon=True)
    closing.start()
    closing.join(15)
    assert not closing.is_alive(), "it waits for two seconds, and a little for each that is left"
    released.set()


def limiting(status: int, category: str) -> Answer:
    """Says that nothing of this kind is wanted for a minute."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("X-Sentry-Rate-Limits", f"60:{category}:project")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def test_what_sentry_does_not_want_now_is_not_sent_and_said(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.answers = [limiting(429, "error")]
    with reporting(server.dsn) as reports:
        send(reports, "a", "b")
    assert server.tools == ["a"]
    assert "ratelimit_backoff" in unreached(caplog)[0]


def test_traces_that_sentry_does_not_want_now_are_not_sent_and_issues_are(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.answers = [limiting(200, "transaction")]
    with reporting(server.dsn) as reports:
        for tool in "ab":
            send_trace(reports, tool)
        send(reports, "c")
    assert server.tools == ["a", "c"]
    assert "ratelimit_backoff" in unreached(caplog)[0]


def test_a_trace_whose_server_is_away_is_logged_as_lost(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.close()
    with reporting(server.dsn) as reports:
        send_trace(reports, "a")
    assert "network_error" in unreached(caplog)[0]

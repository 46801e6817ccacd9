"""The connection to Sentry: kept, made anew, checked; and what is lost is told once."""

import datetime
import ipaddress
import json
import logging
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.waiting import wait_until
from toolpool.contract.settings import Settings
from toolpool.contract.telemetry.sentry import Reports
from toolpool.contract.telemetry.sentry_transport import SentryTransport

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
                body = self.rfile.read(int(self.headers["Content-Length"]))
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
    """Hand over an issue of each tool, as the thread of `Reports` does."""
    for tool in tools:
        reports._hand_over({"message": "It fails", "transaction": tool, "level": "error"})


def unreached(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "sentry_unreached" in line]


def test_reports_go_over_one_connection(server: Server) -> None:
    with reporting(server.dsn) as reports:
        send(reports, "a", "b", "c")
    assert (server.tools, server.connections) == (["a", "b", "c"], 1)
    assert set(server.paths) == {"/api/7/envelope/"}


def closes(handler: BaseHTTPRequestHandler) -> None:
    """Say that all is well, and hang up without a word about it."""
    well(handler)
    handler.close_connection = True


@pytest.mark.parametrize("has_tls", [False, True])
def test_a_connection_that_the_server_closed_is_made_anew_and_nothing_is_lost(
    has_tls: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tls, trusted = _authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    with serving(tls if has_tls else None) as server, reporting(server.dsn) as reports:
        server.answers = [closes, closes]
        for number, tool in enumerate("abc", 1):
            send(reports, tool)
            wait_until(partial(server.has_closed, min(number, 2)), "its end is closed")
    assert (server.tools, server.connections) == (["a", "b", "c"], 3)
    assert not unreached(caplog)


def garbage(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"garbage\r\n\r\n")
    handler.close_connection = True


def endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(1 << 40))
    handler.end_headers()
    handler.wfile.write(b"x" * (1 << 20))


@pytest.mark.parametrize("odd", [garbage, endless])
def test_an_odd_answer_costs_no_report_after_it(server: Server, odd: Answer) -> None:
    server.answers = [odd]
    with reporting(server.dsn) as reports:
        send(reports, "a", "b")
    assert (server.tools, server.connections) == (["a", "b"], 2)


def moved(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(308)
    handler.send_header("Location", "/moved/api/7/envelope/")
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def test_a_redirect_is_followed(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.answers = [moved, moved]  # to us, and to the SDK
    with reporting(server.dsn) as reports:
        send(reports, "a", "b")
    assert server.paths[2:] == ["/moved/api/7/envelope/", "/api/7/envelope/"]
    assert not unreached(caplog)


def test_threads_that_send_at_once_take_no_answer_from_each_other(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """The SDK's metrics come from a thread of its own. Events come from one thread alone."""
    with reporting(server.dsn) as reports:
        transport = reports._client.transport
        assert isinstance(transport, SentryTransport)

        def send_fifty(first: int) -> None:
            for second in range(50):
                transport.send_transaction({}, {"transaction": f"{first}-{second}"})

        threads = [threading.Thread(target=send_fifty, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads)
    assert len(set(server.tools)) == 200
    assert not unreached(caplog)


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
            trace = {"transaction": tool, "contexts": {"trace": {}}, "spans": []}
            reports._hand_over(reports._whole(trace))
        send(reports, "c")
    assert server.tools == ["a", "c"]
    assert "ratelimit_backoff" in unreached(caplog)[0]


def test_a_trace_whose_server_is_away_is_counted_as_lost(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.close()
    with reporting(server.dsn) as reports:
        trace = {"transaction": "a", "contexts": {"trace": {}}, "spans": [{}, {}]}
        reports._hand_over(reports._whole(trace))
        transport = reports._client.transport
        assert isinstance(transport, SentryTransport)
        lost = dict(transport._discarded_events)
    assert lost == {("transaction", "network_error"): 1, ("span", "network_error"): 3}
    assert "network_error" in unreached(caplog)[0]


def _authority(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's TLS for 127.0.0.1, and the file with whoever vouches for it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "here")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    trusted, private = folder / "trusted.pem", folder / "private.pem"
    trusted.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(trusted, private)
    return context, trusted


@pytest.mark.parametrize("is_trusted", [True, False])
def test_whoever_calls_itself_sentry_has_to_prove_it(
    is_trusted: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tls, trusted = _authority(tmp_path)
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    caplog.set_level(logging.WARNING)
    with serving(tls) as server, reporting(server.dsn) as reports:
        send(reports, "a", "b")
    assert server.tools == (["a", "b"] if is_trusted else [])
    assert bool(unreached(caplog)) is not is_trusted


def test_a_sentry_that_says_nothing_is_given_up_behind_tls_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tls, trusted = _authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    released = threading.Event()

    def hangs(_: BaseHTTPRequestHandler) -> None:
        released.wait(60)

    with serving(tls) as server, reporting(server.dsn) as reports:
        server.answers = [hangs]
        transport = reports._client.transport
        assert isinstance(transport, SentryTransport)
        transport.hurry(1.0)
        send(reports, "a", "b")
        released.set()
    assert server.tools == ["a", "b"]
    assert "network_error" in unreached(caplog)[0]


def test_a_proxy_is_gone_through(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.port}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with reporting("http://public@sentry.invalid/7") as reports:
        send(reports, "a")
    assert server.paths == ["http://sentry.invalid/api/7/envelope/"]

"""R38: `http_get` over real connections to loopback: redirects, sizes, times, contents."""

import gzip
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpcore
import pytest

from toolpool.contract.errors import ToolError
from toolpool.contract.spec import Effects, RunIn
from toolpool.workers.tools.configured import settings
from toolpool.workers.tools.http.addresses import PinnedBackend
from toolpool.workers.tools.http.fetch import Fetch, http_get

Answer = Callable[[BaseHTTPRequestHandler], None]


class Site:
    """A web server on loopback whose pages a test writes; it notes each request."""

    def __init__(self) -> None:
        self.pages: dict[str, Answer] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                site.requests.append((self.path, dict(self.headers)))
                site.pages[self.path](self)
                self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def page(self, path: str, body: bytes, status: int = 200, **headers: str) -> None:
        """Serve `body`; header names with underscores for hyphens."""

        def answer(request: BaseHTTPRequestHandler) -> None:
            request.send_response(status)
            for name, value in headers.items():
                request.send_header(name.replace("_", "-"), value)
            request.send_header("Content-Length", str(len(body)))
            request.end_headers()
            request.wfile.write(body)

        self.pages[path] = answer

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


@pytest.fixture
def _private(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback may be reached, as an operator can allow; `workspace` clears the settings."""
    monkeypatch.setenv("TOOLPOOL_HTTP_PRIVATE", "true")
    settings.cache_clear()


async def get(url: str, **arguments: Any) -> dict[str, Any]:
    result: dict[str, Any] = await http_get(url=url, **arguments)
    return result


async def test_loopback_is_refused_by_default(site: Site, workspace: Path) -> None:
    for host in ("127.0.0.1", "localhost", "2130706433", "127.1"):
        with pytest.raises(ToolError, match="public addresses only"):
            await get(f"http://{host}:{site.port}/")
    assert site.requests == []


async def test_metadata_is_refused_by_default(workspace: Path) -> None:
    with pytest.raises(ToolError, match=r"169\.254\.169\.254 is a link-local address"):
        await get("http://169.254.169.254/latest/meta-data/")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("file:///etc/passwd", "no http:// or https://"),
        ("ftp://example.com/", "no http:// or https://"),
        ("gopher://127.0.0.1:70/", "no http:// or https://"),
        ("example.com/page", "no http:// or https://"),
        ("", "no http:// or https://"),
        ("http://", "is no URL"),
        ("http://[::1", "is no URL"),
        ("http://a:99999/", "is no URL"),
        ("http://a b/", "is no URL"),
        ("http://a\r\nHost: evil/", "is no URL"),
        ("http://exa\tmple.com/", "is no URL"),
        ("http://127.0.0.1\\@example.com/", "is no URL"),
        ("http://" + "a" * 70 + ".com/", "is no URL"),
        ("http://example.com/" + "a" * 9000, "is no URL"),
        ("http://user:secret@example.com/", "user name or password"),
        ("http://user@example.com/", "user name or password"),
    ],
)
async def test_what_is_no_plain_web_address_is_refused(url: str, words: str) -> None:
    with pytest.raises(ToolError, match=words) as raised:
        await get(url)
    assert "secret" not in str(raised.value)


@pytest.mark.usefixtures("_private")
class TestOnLoopback:
    async def test_text_json_and_binary_are_told_apart(self, site: Site) -> None:
        site.page("/t", "grüße".encode("latin-1"), Content_Type="text/plain; charset=ISO-8859-1")
        site.page("/j", b'{"a": [1, 2]}', Content_Type="application/json")
        site.page("/bad", b'{"a": \xff', Content_Type="application/json")
        site.page("/b", b"\x89PNG\0\0", Content_Type="image/png")
        assert await get(site.url + "/t") == {
            "url": site.url + "/t",
            "status": 200,
            "content_type": "text/plain; charset=ISO-8859-1",
            "bytes": 5,
            "truncated": False,
            "text": "grüße",
        }
        assert (await get(site.url + "/j"))["json"] == {"a": [1, 2]}
        assert (await get(site.url + "/bad"))["text"] == '{"a": \ufffd'
        binary = await get(site.url + "/b")
        assert binary["binary"] is True
        assert "text" not in binary

    async def test_an_error_status_is_a_result(self, site: Site) -> None:
        site.page("/", b"gone fishing", status=503, Content_Type="text/plain")
        result = await get(site.url)
        assert (result["status"], result["text"]) == (503, "gone fishing")

    async def test_a_dangerous_charset_is_not_used(self, site: Site) -> None:
        for number, name in enumerate(("punycode", "idna", "unicode_escape", "zlib", "utf-7", "?")):
            site.page(f"/{number}", b"a-b", Content_Type=f"text/plain; charset={name}")
            assert (await get(f"{site.url}/{number}"))["text"] == "a-b"

    async def test_the_host_and_path_are_sent_as_given(self, site: Site) -> None:
        site.page("/a%20b/%C3%BC?q=1&r=%2F", b"")
        await get(f"http://127.0.0.1:{site.port}/a%20b/ü?q=1&r=%2F#part")
        path, headers = site.requests[0]
        assert path == "/a%20b/%C3%BC?q=1&r=%2F"
        assert headers["Host"] == f"127.0.0.1:{site.port}"
        assert not {"Authorization", "Cookie", "Proxy-Authorization"} & set(headers)

    async def test_proxies_of_the_environment_are_not_used(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        site.page("/", b"direct")
        assert (await get(site.url))["text"] == "direct"

    async def test_redirects_are_followed_and_told(self, site: Site) -> None:
        site.page("/1", b"", status=302, Location="/2?x=y")
        site.page("/2?x=y", b"", status=308, Location=f"http://localhost:{site.port}/3")
        site.page("/3", b"there")
        result = await get(site.url + "/1")
        assert result["text"] == "there"
        assert result["url"] == f"http://localhost:{site.port}/3"

    @pytest.mark.parametrize(
        ("target", "words"),
        [
            ("http://169.254.169.254/latest/", "link-local"),
            ("//169.254.169.254/latest/", "link-local"),
            ("http://[::ffff:169.254.169.254]/", "link-local"),
            ("file:///etc/passwd", "no http:// or https://"),
            ("http://user:secret@127.0.0.1/", "user name or password"),
        ],
    )
    async def test_every_redirect_is_checked(self, site: Site, target: str, words: str) -> None:
        site.page("/", b"", status=302, Location=target)
        with pytest.raises(ToolError, match=words):
            await get(site.url)

    async def test_a_redirect_loop_ends(self, site: Site) -> None:
        site.page("/", b"", status=301, Location="/")
        with pytest.raises(ToolError, match="more than 5 redirects"):
            await get(site.url + "/")
        assert len(site.requests) == 6

    async def test_a_big_body_is_cut_and_said_to_be(self, site: Site) -> None:
        site.page("/", b"x" * 3_000_000, Content_Type="text/plain")
        result = await get(site.url, max_bytes=1000)
        assert (result["text"], result["truncated"]) == ("x" * 1000, True)
        assert result["content_length"] == "3000000"

    async def test_an_endless_body_is_cut(self, site: Site) -> None:
        def endless(request: BaseHTTPRequestHandler) -> None:
            request.send_response(200)
            request.end_headers()
            while True:
                request.wfile.write(b"x" * 65_536)

        site.pages["/"] = endless
        result = await get(site.url + "/")
        assert (result["bytes"], result["content_length"]) == (40_960, "unknown")

    @pytest.mark.parametrize("coding", ["gzip", "deflate"])
    async def test_compressed_bodies_are_unfolded(self, site: Site, coding: str) -> None:
        pack = gzip.compress if coding == "gzip" else zlib.compress
        site.page("/", pack(b"text " * 1000), Content_Encoding=coding)
        result = await get(site.url)
        assert result["text"] == "text " * 1000
        assert result["truncated"] is False

    async def test_a_decompression_bomb_unfolds_no_further_than_asked(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unfolded = 0
        real = zlib.decompressobj

        class Counting:
            def __init__(self, wbits: int) -> None:
                self._inner = real(wbits)

            def decompress(self, data: bytes, *limit: int) -> bytes:
                nonlocal unfolded
                out = self._inner.decompress(data, *limit)
                unfolded += len(out)
                return out

            def __getattr__(self, name: str) -> Any:
                return getattr(self._inner, name)

        bomb = gzip.compress(b"\0" * 100_000_000)
        monkeypatch.setattr(zlib, "decompressobj", Counting)
        site.page("/", bomb, Content_Encoding="gzip", Content_Type="text/plain")
        result = await get(site.url, max_bytes=5000)
        assert (result["bytes"], result["truncated"]) == (5000, True)
        assert unfolded == 5001

    async def test_padding_without_content_is_not_read_for_ever(self, site: Site) -> None:
        sent = 0

        def padding(request: BaseHTTPRequestHandler) -> None:
            nonlocal sent
            request.send_response(200)
            request.send_header("Content-Encoding", "gzip")
            request.end_headers()
            # A gzip header whose file name never ends.
            request.wfile.write(b"\x1f\x8b\x08\x08\0\0\0\0\0\xff")
            while sent < 200_000_000:
                sent += request.wfile.write(b"n" * 65_536)

        site.pages["/"] = padding
        result = await get(site.url, max_bytes=1000)
        assert result["bytes"] == 0
        assert sent < 50_000_000

    @pytest.mark.parametrize("coding", ["br", "gzip, gzip"])
    async def test_unknown_codings_are_refused(self, site: Site, coding: str) -> None:
        site.page("/", b"xx", Content_Encoding=coding)
        with pytest.raises(ToolError, match="was not asked for"):
            await get(site.url)

    async def test_broken_compression_is_said_to_be(self, site: Site) -> None:
        site.page("/", b"this is not gzip", Content_Encoding="gzip")
        with pytest.raises(ToolError, match="no valid gzip data"):
            await get(site.url)

    async def test_a_server_that_is_not_there_is_said_so(self, site: Site) -> None:
        site.close()
        with pytest.raises(ToolError, match="cannot be fetched"):
            await get(site.url)

    async def test_garbage_is_said_to_be(self, site: Site) -> None:
        site.pages["/"] = lambda request: request.wfile.write(b"\0\1 nonsense\r\n\r\n") and None
        with pytest.raises(ToolError, match="cannot be fetched"):
            await get(site.url)


async def test_a_slow_body_is_given_up_in_time(site: Site) -> None:
    """Each byte comes soon after the one before; it is the whole that takes too long."""

    def slowly(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        for _ in range(100):
            request.wfile.write(b"x")
            time.sleep(0.05)

    site.pages["/"] = slowly
    fetch = Fetch(backend=PinnedBackend(private=True), max_bytes=1000, seconds=0.5)
    with pytest.raises(ToolError, match=r"timed out: .* within 0\.5 s"):
        await fetch.get(site.url + "/")


async def test_a_rebinding_name_is_asked_once_a_connection_and_stays_pinned(
    site: Site,
) -> None:
    """First a harmless address, then the one that was wanted all along."""
    asked: list[str] = []

    async def rebind(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["169.254.169.254"]

    site.page("/", b"", status=302, Location="/again")
    site.page("/again", b"there")
    fetch = Fetch(backend=PinnedBackend(private=True, resolve=rebind), max_bytes=100)
    with pytest.raises(ToolError, match=r"rebind\.test \(169\.254\.169\.254\)"):
        await fetch.get(f"http://rebind.test:{site.port}/")
    assert asked == ["rebind.test", "rebind.test"]
    path, headers = site.requests[0]
    assert (path, headers["Host"]) == ("/", f"rebind.test:{site.port}")
    assert len(site.requests) == 1


async def test_names_beyond_ascii_are_sent_as_the_web_sends_them(site: Site) -> None:
    async def answer(host: str, port: int) -> list[str]:
        assert host == "xn--bcher-kva.test"
        return ["127.0.0.1"]

    site.page("/", b"there")
    fetch = Fetch(backend=PinnedBackend(private=True, resolve=answer), max_bytes=100)
    assert (await fetch.get(f"http://Bücher.test:{site.port}/"))["text"] == "there"
    assert site.requests[0][1]["Host"] == f"xn--bcher-kva.test:{site.port}"


async def test_tls_is_verified_for_the_name_and_not_for_the_address() -> None:
    asked: list[tuple[str, ssl.SSLContext, str | None]] = []

    class Stream(httpcore.AsyncNetworkStream):
        async def start_tls(
            self,
            ssl_context: ssl.SSLContext,
            server_hostname: str | None = None,
            timeout: float | None = None,
        ) -> httpcore.AsyncNetworkStream:
            asked.append((connected[-1], ssl_context, server_hostname))
            raise httpcore.ConnectError("far enough")

        async def aclose(self) -> None:
            pass

    connected: list[str] = []

    class Network(httpcore.AsyncNetworkBackend):
        async def connect_tcp(self, host: str, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
            connected.append(host)
            return Stream()

    async def answer(host: str, port: int) -> list[str]:
        return ["93.184.216.34"]

    backend = PinnedBackend(private=False, resolve=answer, inner=Network())
    with pytest.raises(ToolError, match="far enough"):
        await Fetch(backend=backend, max_bytes=10).get("https://shop.test/")
    [(address, context, name)] = asked
    assert (address, name) == ("93.184.216.34", "shop.test")
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_it_is_a_read_on_the_loop() -> None:
    assert http_get.spec.effects is Effects.READ
    assert http_get.spec.run_in is RunIn.LOOP


@pytest.mark.usefixtures("_private")
async def test_json_that_a_result_cannot_hold_is_told_as_text(site: Site) -> None:
    site.page("/deep", b"[" * 250 + b"]" * 250, Content_Type="application/json")
    found = await get(f"{site.url}/deep")
    assert "json" not in found
    assert found["text"] == "[" * 250 + "]" * 250


@pytest.mark.usefixtures("_private")
async def test_a_redirect_to_no_url_is_told_to_the_model(site: Site) -> None:
    site.page("/lost", b"", 302, Location="http://[")
    with pytest.raises(ToolError, match="no URL"):
        await get(f"{site.url}/lost")

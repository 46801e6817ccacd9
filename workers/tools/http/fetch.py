"""`http_get`: one page of the public web, in bounded time and size."""

import asyncio
import codecs
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import cache
from ssl import SSLContext
from typing import Annotated, Any
from urllib.parse import quote, urljoin, urlsplit

import httpcore
from pydantic import Field

from toolpool.contract import encoding
from toolpool.contract.errors import ToolError
from toolpool.workers.tool import tool
from toolpool.workers.tools.configured import settings
from toolpool.workers.tools.http.addresses import PinnedBackend

_KIB = 1024
_MOST_REDIRECTS = 5
_SECONDS = 20.0
_LONGEST_URL = 8192
_MOST_LEVELS = 100
"""JSON that nests deeper is told as text: a result may have at most 200 levels."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HEADERS = (
    ("User-Agent", "toolpool"),
    ("Accept", "text/html, application/json, text/*;q=0.9, */*;q=0.5"),
    ("Accept-Encoding", "gzip, deflate"),
)
_LIMITS = {"timeout": {"connect": 5.0}}  # per address; the whole request has its own limit
_TEXTUAL = ("text/", "application/json", "application/xml", "application/javascript",
            "application/x-www-form-urlencoded", "application/yaml", "image/svg")  # fmt: skip
# A selection of Python's codecs: some are very slow, or decode more than text.
_CHARSETS = ("utf-8", "utf-16", "ascii", "iso8859", "cp", "koi8", "gb", "big5", "euc", "shift_jis")
# Reserved characters of a URL, and characters that are encoded already (RFC 3986).
_KEPT = "/%:@!$&'()*+,;=~-._?"


@tool(timeout=_SECONDS + 10, effects="read")
async def http_get(
    url: Annotated[
        str,
        Field(max_length=8_192, description="An http:// or https:// address on the public web."),
    ],
    max_bytes: Annotated[
        int, Field(ge=1, le=2048 * _KIB, description="Where to cut the body off.")
    ] = 40 * _KIB,
) -> dict[str, Any]:
    """Fetch a public web page or API with GET and return its status and body.

    The result has `url` (after redirects), `status`, `content_type`, `bytes`, `truncated`, and the
    body as `json` where it is JSON, else as `text`; of binary content only size and type are told.
    An error status such as 404 is a result like any other, so look at `status`. Private and local
    addresses, credentials in the URL, and anything but http and https are refused.
    """
    fetch = Fetch(backend=PinnedBackend(private=settings().http_private), max_bytes=max_bytes)
    return await fetch.get(url)


@dataclass(frozen=True, slots=True)
class _Body:
    data: bytes
    truncated: bool


class Fetch:
    """One GET with its redirects, over a backend that decides which addresses are allowed."""

    def __init__(
        self,
        *,
        backend: httpcore.AsyncNetworkBackend,
        max_bytes: int,
        seconds: float = _SECONDS,
    ) -> None:
        self._backend = backend
        self._max_bytes = max_bytes
        self._seconds = seconds

    async def get(self, url: str) -> dict[str, Any]:
        """Fetch a URL; return the result for the model. Raises ToolError if that fails."""
        try:
            async with (
                asyncio.timeout(self._seconds),
                httpcore.AsyncConnectionPool(
                    ssl_context=_tls(), network_backend=self._backend, retries=0
                ) as pool,
            ):
                return await self._follow(pool, url)
        except (TimeoutError, httpcore.TimeoutException):
            raise ToolError(
                f"{_shown(url)} timed out: it did not answer in full within {self._seconds:g} s.",
                recommendations=("Try again once, or use another source.",),
            ) from None
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.UnsupportedProtocol) as e:
            reason = str(e) or type(e).__name__
            raise ToolError(f"{_shown(url)} cannot be fetched: {reason[:300]}") from None

    async def _follow(self, pool: httpcore.AsyncConnectionPool, url: str) -> dict[str, Any]:
        for _ in range(_MOST_REDIRECTS + 1):
            target = _target(url)
            headers = [("Host", _host(target)), *_HEADERS]
            async with pool.stream("GET", target, headers=headers, extensions=_LIMITS) as reply:
                location = _header(reply, b"location")
                if reply.status not in _REDIRECTS or not location:
                    body = await self._body(reply)
                    return _result(url, reply, body)
            try:
                url = urljoin(url, location)
            except ValueError:
                raise _unusable(location, "is where the server redirects to, and no URL") from None
        raise ToolError(
            f"The URL leads through more than {_MOST_REDIRECTS} redirects; {_shown(url)} was next.",
            recommendations=("Fetch the page itself, if its address is known.",),
        )

    async def _body(self, reply: httpcore.Response) -> _Body:
        data = bytearray()
        async for piece in _decompressed(reply, self._max_bytes + 1):
            data += piece
            if len(data) > self._max_bytes:
                return _Body(bytes(data[: self._max_bytes]), truncated=True)
        return _Body(bytes(data), truncated=False)


def _target(url: str) -> httpcore.URL:
    """`url` in parts that are not parsed again. Raises ToolError for an unsupported URL."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        ascii_host = (host or "").encode("ascii" if ":" in (host or "") else "idna")
    except (ValueError, UnicodeError):
        raise _unusable(url, "is no URL") from None
    if parts.scheme not in ("http", "https"):
        raise _unusable(url, "has no http:// or https:// in front")
    if not host or len(url) > _LONGEST_URL or any(c <= " " or c in "\\\x7f" for c in url):
        raise _unusable(url, "is no URL")
    if parts.username is not None or parts.password is not None:
        raise ToolError("The URL holds a user name or password, which this tool does not send.")
    path = quote(parts.path or "/", safe=_KEPT)
    query = f"?{quote(parts.query, safe=_KEPT)}" if parts.query else ""
    return httpcore.URL(
        scheme=parts.scheme.encode(), host=ascii_host, port=port, target=(path + query).encode()
    )


def _host(target: httpcore.URL) -> str:
    host = target.host.decode()
    named = f"[{host}]" if ":" in host else host
    return named if target.port is None else f"{named}:{target.port}"


async def _decompressed(reply: httpcore.Response, limit: int) -> AsyncIterator[bytes]:
    """The decompressed pieces of the body, in all not much more than `limit`."""
    coding = _header(reply, b"content-encoding").strip().lower()
    if coding in ("", "identity"):
        async for piece in reply.aiter_stream():
            yield piece
        return
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise ToolError(f"The server sent its answer as {coding[:40]!r}, which was not asked for.")
    unfold = zlib.decompressobj(wbits=47)  # gzip or zlib, by the header
    left, received = limit, 0
    try:
        async for piece in reply.aiter_stream():
            waiting = piece
            received += len(piece)
            while waiting and left > 0 and not unfold.eof:
                unfolded = unfold.decompress(waiting, left)
                left -= len(unfolded)
                waiting = unfold.unconsumed_tail
                yield unfolded
            # Real data does not grow by compression: input without output is padding.
            if left <= 0 or unfold.eof or received > limit + 64 * _KIB:
                return
    except zlib.error:
        raise ToolError(f"The server's answer is no valid {coding} data.") from None


def _result(url: str, reply: httpcore.Response, body: _Body) -> dict[str, Any]:
    content_type = _header(reply, b"content-type")
    kind, _, parameters = content_type.lower().partition(";")
    result: dict[str, Any] = {
        "url": _shown(url),
        "status": reply.status,
        "content_type": content_type[:200],
        "bytes": len(body.data),
        "truncated": body.truncated,
    }
    if body.truncated:
        result["content_length"] = _header(reply, b"content-length")[:20] or "unknown"
    if _is_binary(kind, body.data):
        return result | {"binary": True}
    if "json" in kind and not body.truncated:
        try:
            if not encoding.nests_deeper_than(_MOST_LEVELS, body.data):
                return result | {"json": encoding.decode(body.data)}
        except (ValueError, RecursionError):
            pass
    return result | {"text": _text(body.data, parameters)}


def _is_binary(kind: str, data: bytes) -> bool:
    if kind.strip().startswith(_TEXTUAL) or "json" in kind or kind.strip().endswith("+xml"):
        return False
    return b"\0" in data or bool(kind.strip())


def _text(data: bytes, parameters: str) -> str:
    name = parameters.partition("charset=")[2].partition(";")[0].strip(" \"'")
    try:
        charset = codecs.lookup(name).name
    except (LookupError, ValueError):
        charset = ""
    if not charset.startswith(_CHARSETS):
        charset = "utf-8"
    return data.decode(charset, "replace").encode("utf-8", "replace").decode()


def _header(reply: httpcore.Response, wanted: bytes) -> str:
    for name, value in reply.headers:
        if name.lower() == wanted:
            return str(value, "latin-1")
    return ""


def _shown(url: str) -> str:
    return url[:500].encode("utf-8", "replace").decode()


def _unusable(url: str, why: str) -> ToolError:
    return ToolError(
        f"{_shown(url)!r} {why}.",
        recommendations=("Give a whole address, such as https://example.com/page?x=1.",),
    )


@cache
def _tls() -> SSLContext:
    """Created once per process: reading the certificates takes tens of milliseconds."""
    return httpcore.default_ssl_context()

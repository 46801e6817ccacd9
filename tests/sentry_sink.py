"""A stand-in for Sentry's ingest: keeps every envelope that was sent to it, byte for byte."""

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Item = tuple[dict[str, Any], dict[str, Any]]


class SentrySink:
    """Envelopes as they came. `status` is what it answers; where it is to `hold`, nothing."""

    hold = False

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.status = 200
        self.released = threading.Event()
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                sink.bodies.append(body)
                if sink.hold:
                    sink.released.wait(60)
                self.send_response(sink.status)
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def dsn(self) -> str:
        return f"http://public@127.0.0.1:{self._server.server_port}/1"

    @property
    def items(self) -> list[Item]:
        """Every item's header and payload."""
        items: list[Item] = []
        for body in list(self.bodies):
            lines = body.split(b"\n")
            rest = lines[1:]
            while len(rest) >= 2:
                items.append((json.loads(rest[0]), json.loads(rest[1])))
                rest = rest[2:]
        return items

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The payloads of one kind of item."""
        return [payload for header, payload in self.items if header["type"] == kind]

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def sentry_sink() -> Iterator[SentrySink]:
    """A sink that ends with the block."""
    sink = SentrySink()
    try:
        yield sink
    finally:
        sink.close()

"""A stand-in for a model provider on loopback: the SDKs' real clients talk to it over HTTP."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class StandIn:
    """Gives prepared responses in their order; keeps what it was asked."""

    def __init__(self, responses: Sequence[dict[str, Any]]) -> None:
        self._responses = list(responses)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                stand_in.asked.append((self.path, json.loads(body)))
                answer = json.dumps(stand_in._responses[len(stand_in.asked) - 1]).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"


@contextmanager
def provider(*responses: dict[str, Any]) -> Iterator[StandIn]:
    """A running stand-in."""
    stand_in = StandIn(responses)
    thread = threading.Thread(target=stand_in._server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield stand_in
    finally:
        stand_in._server.shutdown()
        thread.join()
        stand_in._server.server_close()

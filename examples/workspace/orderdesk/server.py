"""The HTTP side: GET /orders, GET /health."""

import json
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from orderdesk import __version__, orders


class Handler(BaseHTTPRequestHandler):
    """Answers in JSON."""

    def do_GET(self) -> None:
        """Route by path."""
        if self.path == "/health":
            self._answer({"status": "ok", "version": __version__})
        elif self.path == "/orders":
            found = orders.open_orders(orders.load(Path("data/orders.csv")))
            self._answer([order.__dict__ for order in found])
        else:
            self.send_error(404)

    def _answer(self, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(data)


def main(config: Path = Path("config/app.toml")) -> None:
    """Serve until interrupted."""
    server = tomllib.loads(config.read_text())["server"]
    ThreadingHTTPServer((server["host"], server["port"]), Handler).serve_forever()


if __name__ == "__main__":
    main()

"""One HTTP/1.1 connection that is kept: a request is one write, and its answer as a rule one read.

Each system call lets the other threads of its process run, and then waits until they let the
interpreter go again. Where calls are dispatched meanwhile that takes longer than what is done here.
"""

import http.client
import io
import socket
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from urllib3.connection import HTTPConnection

_ANSWER_BYTES = 1 << 16
_HUNG_UP = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)


class Answer:
    """What a server said; of its content no more than the first 64 KiB."""

    def __init__(self, status: int, headers: Iterable[tuple[str, str]], data: bytes) -> None:
        self.status = status
        self.headers = _Headers((name.lower(), value) for name, value in headers)
        self.data = data

    def close(self) -> None:
        """Nothing is left to be read."""


class _Headers(dict[str, str]):
    """By their names in lower case."""

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)


class KeptConnection:
    """Made by `new` where it is first needed, and where it has to be made anew. For one thread."""

    def __init__(self, new: Callable[[], HTTPConnection]) -> None:
        self._new = new
        self._open: HTTPConnection | None = None

    def ask(self, request: bytes, *, patience_seconds: float) -> Answer:
        """Send a request that may be sent twice, and wait so long for each part of its answer.

        Twice it is sent where the server has hung up since it was last asked, whether or not it
        said so (RFC 9110, section 15.5.9). Raises OSError or HTTPException, and is then closed.
        """
        try:
            if (kept := self._open) is not None:
                with suppress(*_HUNG_UP):
                    answer = self._asked(kept, request, patience_seconds)
                    if answer.status != HTTPStatus.REQUEST_TIMEOUT:  # said as it hung up
                        return answer
                self.close()
            self._open = opened = self._new()
            opened.connect()
            return self._asked(opened, request, patience_seconds)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Hang up."""
        opened, self._open = self._open, None
        if opened is not None:
            opened.close()

    def _asked(self, opened: HTTPConnection, request: bytes, patience_seconds: float) -> Answer:
        sock = opened.sock
        if sock.gettimeout() != patience_seconds:
            sock.settimeout(patience_seconds)
        sock.sendall(request)
        data = sock.recv(_ANSWER_BYTES)
        if not data:
            raise http.client.RemoteDisconnected("the server hung up")
        return _whole(data) or self._read_on(data, sock)

    def _read_on(self, data: bytes, sock: socket.socket) -> Answer:
        """The answer that begins with this: one that is long, comes in pieces, or is the last."""
        response = http.client.HTTPResponse(_Begun(data, sock), method="POST")  # type: ignore[arg-type]
        response.begin()
        content = response.read(_ANSWER_BYTES)
        if response.will_close or not response.isclosed():
            self.close()
        return Answer(response.status, response.headers.items(), content)


def _whole(data: bytes) -> Answer | None:
    """The answer in this, if it is a usual one, all of it, and its server goes on to listen."""
    head, ends, content = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    if not ends or not first.startswith("HTTP/1.1 ") or not first[9:12].isdecimal():
        return None
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    answer = Answer(int(first[9:12]), headers, content)
    is_whole = answer.headers.get("content-length") == str(len(content))
    goes_on = answer.headers.get("connection", "keep-alive").lower() == "keep-alive"
    return answer if is_whole and goes_on else None


class _Begun(io.RawIOBase):
    """A socket of which something has been read already, as http.client wants it."""

    def __init__(self, data: bytes, sock: socket.socket) -> None:
        self._data = memoryview(data)
        self._sock = sock

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        if not self._data:
            return self._sock.recv_into(buffer)
        count = min(len(buffer), len(self._data))
        buffer[:count] = self._data[:count]
        self._data = self._data[count:]
        return count

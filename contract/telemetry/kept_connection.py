"""One HTTP/1.1 connection that is kept: a request is one write, and its answer as a rule one read.

Each system call lets the other threads of its process run, and then waits until they let the
interpreter go again. Where calls are dispatched meanwhile that takes longer than what is done here.
"""

import http.client
import io
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from typing import cast

from typing_extensions import Buffer
from urllib3 import HTTPHeaderDict
from urllib3.connection import HTTPConnection
from urllib3.util import wait_for_read

_ANSWER_BYTES = 1 << 16
_LOOKED_AT_SECONDS = 0.1
"""How long after its last answer a connection is looked at before it is used again."""
_KEPT_SECONDS = 60.0
"""How long it is kept without use: something on the way may have forgotten it."""
_NO_ANSWER = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError, http.client.HTTPException)


class Answer:
    """What a server said; of its content no more than the first 64 KiB."""

    def __init__(self, status: int, headers: Iterable[tuple[str, str]], data: bytes) -> None:
        self.status = status
        self.headers = HTTPHeaderDict(headers)
        self.data = data

    def close(self) -> None:
        """Nothing is left to be read."""


class KeptConnection:
    """Made by `new` where it is first needed, and where it has to be made anew. For one thread."""

    def __init__(self, new: Callable[[], HTTPConnection]) -> None:
        self._new = new
        self._open: HTTPConnection | None = None
        self._answered_at = 0.0

    def ask(self, request: bytes, *, patience_seconds: float) -> Answer:
        """Send a request that may be sent twice, and wait so long for each part of its answer.

        Where the server of a kept connection hangs up without an answer, says that it waited too
        long (RFC 9110, section 15.5.9), or nonsense, it is asked once more, over a new one. Raises
        OSError, http.client.HTTPException or urllib3's HTTPError, and is then closed.
        """
        try:
            if (kept := self._usable()) is not None:
                with suppress(*_NO_ANSWER):
                    answer = self._asked(kept, request, patience_seconds)
                    if answer.status != HTTPStatus.REQUEST_TIMEOUT:
                        return answer
                self.close()
            self._open = opened = self._new()
            opened.connect()
            return self._asked(opened, request, patience_seconds)
        except BaseException:
            self.close()
            raise

    def _usable(self) -> HTTPConnection | None:
        """The connection that is kept, unless its server said something, or hung up, unasked."""
        if self._open is not None:
            idle_seconds = time.monotonic() - self._answered_at
            if idle_seconds > _KEPT_SECONDS or (
                idle_seconds > _LOOKED_AT_SECONDS and wait_for_read(self._open.sock, timeout=0)
            ):
                self.close()
        return self._open

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
        answer = _whole(data) or self._read_on(data, sock)
        self._answered_at = time.monotonic()
        return answer

    def _read_on(self, data: bytes, sock: socket.socket) -> Answer:
        """The answer that begins with this: one that is long, comes in pieces, or is the last."""
        begun = _Begun(data, sock)
        # All that it wants of a socket is a file.
        response = http.client.HTTPResponse(cast("socket.socket", begun), method="POST")
        response.begin()
        content = b""
        with suppress(OSError, http.client.HTTPException):  # it was answered, whatever is missing
            content = response.read(_ANSWER_BYTES)
        is_over = response.isclosed() and not begun.has_more and response.status >= HTTPStatus.OK
        if response.will_close or not is_over:
            self.close()
        return Answer(response.status, response.headers.items(), content)


def _whole(data: bytes) -> Answer | None:
    """The answer in this, if it is a usual one, all of it, and its server goes on to listen."""
    head, ends, content = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest.partition(" ")[0]
    if not ends or version != "HTTP/1.1" or len(status) != 3 or not status.isdecimal():
        return None
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    answer = Answer(int(status), headers, content)
    is_last_word = answer.status >= HTTPStatus.OK
    is_whole = answer.headers.get("content-length") == str(len(content))
    goes_on = answer.headers.get("connection", "keep-alive").lower() == "keep-alive"
    return answer if is_last_word and is_whole and goes_on else None


class _Begun(io.RawIOBase):
    """A socket of which something has been read already, as http.client wants it."""

    def __init__(self, data: bytes, sock: socket.socket) -> None:
        self._data = memoryview(data)
        self._sock = sock

    @property
    def has_more(self) -> bool:
        """Whether something was read that nobody asked for."""
        return bool(self._data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self, buffer_size=1)  # what is left stays here

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        if not self._data:
            self._data = memoryview(self._sock.recv(_ANSWER_BYTES))
        target = memoryview(buffer)
        count = min(len(target), len(self._data))
        target[:count] = self._data[:count]
        self._data = self._data[count:]
        return count

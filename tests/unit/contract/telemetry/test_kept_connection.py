"""A kept connection reads whatever a server may say, and sends again where one hung up."""

import http.client
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest
from urllib3.connection import HTTPConnection

from toolpool.contract.telemetry.kept_connection import Answer, KeptConnection

REQUEST = b"POST /here HTTP/1.1\r\nHost: there\r\nContent-Length: 2\r\n\r\n{}"
WELL = b'HTTP/1.1 200 OK\r\nContent-Length: 7\r\nX-Said: yes\r\n\r\n{"a":1}'
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Said: yes\r\n\r\n"
    b'3\r\n{"a\r\n4\r\n":1}\r\n0\r\n\r\n'
)
AFTER_ANOTHER = b"HTTP/1.1 100 Continue\r\n\r\n" + WELL
LAST = WELL.replace(b"X-Said", b"Connection: close\r\nX-Said")
OLD = WELL.replace(b"HTTP/1.1", b"HTTP/1.0")
CUT_OFF = WELL.replace(b"Content-Length: 7", b"Content-Length: 9")
UNTIL_THE_END = WELL.replace(b"Content-Length: 7\r\n", b"")
HANGS_UP, SILENCE = b"", b"..."


class Server:
    """Says the next of `answers` to each request: pieces, of which an empty one is to hang up."""

    def __init__(self, answers: Sequence[Sequence[bytes]]) -> None:
        self.requests = 0
        self.connections = 0
        self._answers = list(answers)
        self._asked = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def new(self) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self.listener.getsockname()[1], timeout=10)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(ConnectionError):  # whoever asked may hang up
            while connection.recv(len(REQUEST), socket.MSG_WAITALL) == REQUEST:
                self.requests += 1
                for piece in self._answers.pop(0) if self._answers else (WELL,):
                    if piece == HANGS_UP:
                        return
                    if piece != SILENCE:
                        connection.sendall(piece)


@contextmanager
def asking(*answers: Sequence[bytes]) -> Iterator[tuple[Server, KeptConnection]]:
    server = Server(answers)
    kept = KeptConnection(server.new)
    try:
        yield server, kept
    finally:
        kept.close()
        server.close()


def ask(kept: KeptConnection, patience_seconds: float = 10.0) -> Answer:
    return kept.ask(REQUEST, patience_seconds=patience_seconds)


def is_well(answer: Answer) -> bool:
    said = (answer.headers.get("x-said"), answer.headers.get("X-Said"))
    return (answer.status, answer.data, said) == (200, b'{"a":1}', ("yes", "yes"))


@pytest.mark.parametrize("answer", [WELL, CHUNKED, AFTER_ANOTHER])
def test_an_answer_is_the_same_in_whatever_pieces_it_comes(answer: bytes) -> None:
    cuts = range(1, len(answer))
    with asking(*[(answer[:cut], answer[cut:]) for cut in cuts]) as (server, kept):
        assert all(is_well(ask(kept)) for _ in cuts)
        assert (server.requests, server.connections) == (len(cuts), 1)


@pytest.mark.parametrize(
    "answer", [(LAST,), (OLD,), (CUT_OFF, HANGS_UP), (UNTIL_THE_END, HANGS_UP)]
)
def test_after_the_last_answer_of_a_connection_there_is_a_new_one(answer: list[bytes]) -> None:
    with asking(answer, (WELL,)) as (server, kept):
        assert is_well(ask(kept))
        assert is_well(ask(kept))
        assert (server.requests, server.connections) == (2, 2)


def test_a_server_that_hung_up_since_is_asked_again() -> None:
    with asking((WELL, HANGS_UP), (WELL,)) as (server, kept):
        assert is_well(ask(kept))
        assert is_well(ask(kept))
        assert (server.requests, server.connections) == (2, 2)


def test_a_server_that_said_that_it_would_wait_no_longer_is_asked_again() -> None:
    too_late = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with asking((WELL, too_late, HANGS_UP), (WELL,)) as (server, kept):
        assert is_well(ask(kept))
        assert is_well(ask(kept))
        assert (server.requests, server.connections) == (2, 2)


def test_a_server_that_hangs_up_without_an_answer_is_asked_again_once() -> None:
    with asking((WELL,), (HANGS_UP,), (HANGS_UP,)) as (server, kept):
        assert is_well(ask(kept))
        with pytest.raises(http.client.RemoteDisconnected):
            ask(kept)
        assert (server.requests, server.connections) == (3, 2)
        assert is_well(ask(kept))


def test_nobody_who_hung_up_on_the_first_request_is_asked_twice() -> None:
    with asking((HANGS_UP,)) as (server, kept):
        with pytest.raises(http.client.RemoteDisconnected):
            ask(kept)
        assert server.requests == 1


@pytest.mark.parametrize("begun", [SILENCE, WELL[:30], CHUNKED[:-9]])
def test_a_server_that_says_no_more_is_not_waited_for_longer_than_told(begun: bytes) -> None:
    with asking((WELL,), (begun,), (WELL,)) as (server, kept):
        assert is_well(ask(kept))
        with pytest.raises(TimeoutError):
            ask(kept, patience_seconds=0.2)
        assert is_well(ask(kept)), "and whatever it still says is nobody's answer"
        assert (server.requests, server.connections) == (3, 2)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\nContent-Length: 0\r\n\r\n",
        b"\xff\xfe\r\n\r\n",
    ],
)
def test_nonsense_is_an_error_and_ends_the_connection(nonsense: bytes) -> None:
    with asking((nonsense, HANGS_UP)) as (server, kept):
        with pytest.raises(http.client.HTTPException):
            ask(kept)
        assert is_well(ask(kept))
        assert server.connections == 2


def test_of_a_long_answer_the_rest_is_not_read() -> None:
    long = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1_000_000
    with asking((long,)) as (server, kept):
        assert len(ask(kept).data) == 1 << 16
        assert is_well(ask(kept))
        assert server.connections == 2

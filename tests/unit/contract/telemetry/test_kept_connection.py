"""A kept connection reads whatever a server may say, and sends again where one hung up."""

import http.client
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import pytest
from urllib3.connection import HTTPConnection

from tests.waiting import wait_until
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
NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"
HANGS_UP, SILENCE = b"", b"..."
Piece = bytes | threading.Event
"""What a server sends, or waits for."""


class Server:
    """Says the next of `answers` to each request: pieces, of which an empty one is to hang up."""

    def __init__(self, answers: Sequence[Sequence[Piece]]) -> None:
        self.requests = 0
        self.ended = 0
        self.connections = 0
        self._answers = list(answers)
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

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
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection, suppress(ConnectionError):  # whoever asked may hang up
            self._answer(connection)
        self.ended += 1

    def _answer(self, connection: socket.socket) -> None:
        while connection.recv(len(REQUEST), socket.MSG_WAITALL) == REQUEST:
            self.requests += 1
            for piece in self._answers.pop(0) if self._answers else (WELL,):
                if piece == HANGS_UP:
                    return
                if isinstance(piece, threading.Event):
                    piece.wait(10)
                elif piece != SILENCE:
                    connection.sendall(piece)


@contextmanager
def asking(*answers: Sequence[Piece]) -> Iterator[tuple[Server, KeptConnection]]:
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


class Pieces:
    """A connection, and the socket of it, that brings just these pieces, one a read."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)
        self.sock = self
        self.is_closed = False

    def connect(self) -> None:
        pass

    def gettimeout(self) -> float:
        return 10.0

    def sendall(self, data: bytes) -> None:
        assert data == REQUEST

    def recv(self, _: int) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""

    def close(self) -> None:
        self.is_closed = True


def ask_pieces(*pieces: bytes) -> tuple[Answer, Pieces]:
    connection = Pieces(*pieces)
    return ask(KeptConnection(lambda: cast("Any", connection))), connection


@pytest.mark.parametrize("answer", [WELL, CHUNKED, AFTER_ANOTHER])
def test_an_answer_is_the_same_in_whatever_pieces_it_comes(answer: bytes) -> None:
    for cut in range(1, len(answer)):
        found, connection = ask_pieces(answer[:cut], answer[cut:])
        assert is_well(found), cut
        assert not connection.is_closed, cut


@pytest.mark.parametrize("stray", [b"\r\n", b"{}", WELL])
@pytest.mark.parametrize("answer", [WELL, CHUNKED, NO_CONTENT])
def test_after_an_answer_with_more_than_was_asked_for_the_connection_is_not_used(
    answer: bytes, stray: bytes
) -> None:
    for cut in range(1, len(answer)):
        found, connection = ask_pieces(answer[:cut], answer[cut:] + stray)
        assert found.status in (200, 204), cut
        assert connection.is_closed, cut
    assert ask_pieces(answer + stray)[1].is_closed


def test_an_answer_that_is_not_the_last_ends_the_connection() -> None:
    found, connection = ask_pieces(b"HTTP/1.1 103 Early Hints\r\nContent-Length: 0\r\n\r\n", WELL)
    assert (found.status, connection.is_closed) == (103, True)


def test_of_a_header_that_is_repeated_all_values_count() -> None:
    twice = WELL.replace(b"X-Said: yes", b"X-Said: yes\r\nx-said: no")
    assert ask_pieces(twice)[0].headers.get("X-Said") == "yes, no"
    assert ask_pieces(twice[:9], twice[9:])[0].headers.get("X-Said") == "yes, no"


def test_what_breaks_off_after_its_status_was_an_answer() -> None:
    found, connection = ask_pieces(WELL[:-3])
    assert (found.status, connection.is_closed) == (200, True)


def test_what_was_said_unasked_is_no_answer() -> None:
    """As load balancers do that give a connection up."""
    refusal = b"HTTP/1.1 503 Gone\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    given = threading.Event()
    with asking((WELL, given, refusal, HANGS_UP), (WELL,)) as (server, kept):
        assert is_well(ask(kept))
        given.set()
        wait_until(lambda: server.ended == 1, "it has hung up")
        kept._answered_at -= 1
        assert is_well(ask(kept))
        assert (server.requests, server.connections) == (2, 2)


def test_a_connection_that_was_idle_for_a_minute_is_not_used() -> None:
    with asking() as (server, kept):
        assert is_well(ask(kept))
        kept._answered_at -= 61
        assert is_well(ask(kept))
        assert server.connections == 2


@pytest.mark.parametrize(
    "answer", [(LAST,), (OLD,), (CUT_OFF, HANGS_UP), (UNTIL_THE_END, HANGS_UP)]
)
def test_after_the_last_answer_of_a_connection_there_is_a_new_one(answer: Sequence[Piece]) -> None:
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
    with asking((WELL,), (too_late, HANGS_UP), (WELL,)) as (server, kept):
        assert is_well(ask(kept))
        assert is_well(ask(kept))
        assert (server.requests, server.connections) == (3, 2)


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


@pytest.mark.parametrize("begun", [SILENCE, WELL[:30], CHUNKED[:40]])
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


def test_nonsense_over_a_kept_connection_is_asked_about_once_more() -> None:
    with asking((WELL,), (b"nonsense\r\n\r\n",), (WELL,)) as (server, kept):
        assert is_well(ask(kept))
        assert is_well(ask(kept))
        assert (server.requests, server.connections) == (3, 2)

"""The server of the page: whatever scrapers do, it answers the others, and nothing waits for it."""

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest

from tests.scraping import free_port, page
from tests.waiting import eventually, wait_until
from toolpool.contract.settings import Settings
from toolpool.contract.telemetry import scraping
from toolpool.contract.telemetry.scraping import Server, address_of

HOST = "127.0.0.1"


def made(accepted: str) -> tuple[str, bytes]:
    return "text/plain", b"made 1\n"


def is_served(port: int) -> bool:
    try:
        return page(port) == "made 1\n"
    except OSError:
        return False


@pytest.fixture
def port() -> Iterator[int]:
    """A port at which a page is served."""
    port = free_port()
    server = Server(HOST, port, made)
    server.start()
    wait_until(lambda: is_served(port), "it is served")
    yield port
    server.close()


def asked(port: int, request: bytes) -> bytes:
    with socket.create_connection((HOST, port), timeout=10) as connection:
        connection.sendall(request)
        answer = b""
        while more := connection.recv(4096):
            answer += more
    return answer


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /metrics HTTP/1.1", b"200 OK"),
        (b"GET /metrics?name[]=x HTTP/1.1", b"200 OK"),
        (b"HEAD /metrics HTTP/1.1", b"200 OK"),
        (b"GET /else HTTP/1.1", b"404 Not Found"),
        (b"POST /metrics HTTP/1.1", b"405 Method Not Allowed"),
        (b"\xff\xfe", b"405 Method Not Allowed"),
    ],
)
def test_every_request_is_answered(port: int, request_: bytes, status: bytes) -> None:
    answer = asked(port, request_ + b"\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert answer.endswith(b"made 1\n") is (status == b"200 OK" and request_.startswith(b"GET"))


async def test_scrapers_that_hang_are_let_go(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take every place there is, and the next one is answered all the same."""
    monkeypatch.setattr(scraping, "_PATIENCE_SECONDS", 0.3)
    hanging = [await asyncio.open_connection(HOST, port) for _ in range(scraping._PLACES + 10)]
    for _, writer in hanging:
        writer.write(b"GET /metr")
    assert await asyncio.to_thread(is_served, port)
    for _, writer in hanging:
        writer.close()


async def test_a_thousand_scrapes_at_once_are_answered(port: int) -> None:
    async def scrape() -> bytes:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer

    answers = await asyncio.gather(*(scrape() for _ in range(1000)))
    assert all(answer.endswith(b"made 1\n") for answer in answers)


async def test_it_closes_while_somebody_is_being_answered(port: int) -> None:
    other = free_port()
    server = Server(HOST, other, made)
    server.start()
    await eventually(lambda: is_served(other), "it is served")
    _, writer = await asyncio.open_connection(HOST, other)
    writer.write(b"GET /metr")
    began = time.monotonic()
    await asyncio.to_thread(server.close)
    assert time.monotonic() - began < scraping._STOP_SECONDS
    writer.close()
    with socket.create_server((HOST, other)):
        pass  # the port is free again
    server.close()


async def test_a_taken_port_is_logged_once_and_bound_when_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[int] = []
    said: list[str] = []
    monkeypatch.setattr(scraping.log, "warning", lambda text, *more: said.append(text % more))
    listening = scraping._listening
    monkeypatch.setattr(
        scraping, "_listening", lambda *address: tries.append(1) or listening(*address)
    )
    monkeypatch.setattr(scraping, "_TRY_AGAIN_SECONDS", 0.01)
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        server = Server(HOST, port, made)
        server.start()
        await eventually(lambda: len(tries) > 3, "it tries again")
    await eventually(lambda: is_served(port), "it has the port")
    await asyncio.to_thread(server.close)
    assert len(said) == 1
    assert "Give each one on this host its own (TOOLPOOL_METRICS_PORT)" in said[0]
    assert "tool calls are not affected" in said[0]


@pytest.mark.parametrize(
    ("host", "port", "said"),
    [("192.0.2.1", 9646, "TOOLPOOL_METRICS_HOST"), ("no such host", 9646, "TOOLPOOL_METRICS_HOST")],
)
async def test_an_invalid_address_is_logged(
    host: str, port: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(host, port, made)
    server.start()
    await eventually(lambda: caplog.records, "it is said")
    await asyncio.to_thread(server.close)
    assert said in caplog.text


@pytest.mark.parametrize("given", ["tcp://10.0.0.7:9646", "99999", "-1", "http"])
def test_an_invalid_port_is_logged_and_stops_nothing(
    given: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes sets TOOLPOOL_METRICS_PORT where a service has that name."""
    monkeypatch.setenv("TOOLPOOL_METRICS_PORT", given)
    assert address_of(Settings(), None, None) is None
    [said] = [record.getMessage() for record in caplog.records]
    assert given in said and "from 1 to 65535" in said and "not affected" in said


def test_metrics_are_off_unless_a_port_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert address_of(Settings(), None, None) is None
    assert address_of(Settings(), None, 9646) == ("127.0.0.1", 9646)
    monkeypatch.setenv("TOOLPOOL_METRICS_PORT", "9646")
    monkeypatch.setenv("TOOLPOOL_METRICS_HOST", "0.0.0.0")
    assert address_of(Settings(), None, None) == ("0.0.0.0", 9646)
    assert address_of(Settings(), None, 0) is None

"""The server of the page: whatever scrapers do, it answers the others, and nothing waits for it."""

import asyncio
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily

from tests.scraping import free_port, page, parsed, value
from tests.waiting import eventually, wait_until
from toolpool.contract.settings import Settings
from toolpool.contract.telemetry import scraping
from toolpool.contract.telemetry.scraping import Server, address_of

HOST = "127.0.0.1"


REGISTRY = CollectorRegistry()
Gauge("made", "Made.", ["tool"], registry=REGISTRY).labels('quo"te\n').set(1)
MADE = b'made{tool="quo\\"te\\n"} 1.0\n'


class Broken:
    """A collector that cannot collect."""

    def collect(self) -> Iterator[CounterMetricFamily]:
        raise ValueError("a corrupted file")


def is_served(port: int) -> bool:
    try:
        return page(port).encode().endswith(MADE)
    except OSError:
        return False


def connects(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.fixture
def port() -> Iterator[int]:
    """A port at which a page is served."""
    port = free_port()
    server = Server(HOST, port, REGISTRY)
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
        (b"GET /metrics?name[]=made HTTP/1.1", b"200 OK"),
        (b"HEAD /metrics HTTP/1.1", b"200 OK"),
        (b"GET /else HTTP/1.1", b"404 Not Found"),
        (b"POST /metrics HTTP/1.1", b"405 Method Not Allowed"),
        (b"\xff\xfe", b"400 Bad request"),
    ],
)
def test_every_request_is_answered(port: int, request_: bytes, status: bytes) -> None:
    answer = asked(port, request_ + b"\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.0 " + status)
    assert answer.endswith(MADE) is (status == b"200 OK" and request_.startswith(b"GET"))


@pytest.mark.parametrize(
    ("accepted", "content_type"),
    [
        (b"", b"text/plain; version=0.0.4"),
        (b"Accept: text/plain\r\n", b"text/plain; version=0.0.4"),
        (b"Accept: application/openmetrics-text; version=1.0.0\r\n", b"openmetrics-text"),
    ],
)
def test_the_page_is_in_a_form_that_the_scraper_accepts(
    port: int, accepted: bytes, content_type: bytes
) -> None:
    answer = asked(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + accepted + b"\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert content_type in head
    assert value(parsed(body.decode().replace("# EOF\n", "")), "made", tool='quo"te\n') == 1


def test_nothing_is_printed(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither requests nor what goes wrong with a connection."""
    assert is_served(port)
    asked(port, b"\xff\xfe\r\n\r\n")
    with socket.create_connection((HOST, port)) as connection:
        connection.sendall(b"GET /metr")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert is_served(port)
    assert capfd.readouterr().err == ""


def test_a_page_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    registry, port = CollectorRegistry(), free_port()
    registry.register(Broken())
    server = Server(HOST, port, registry, {"/healthz": lambda: ""})
    server.start()
    try:
        wait_until(lambda: connects(port), "it listens")
        request = b"GET %s HTTP/1.1\r\n\r\n"
        assert asked(port, request % b"/metrics").startswith(b"HTTP/1.0 500 ")
        assert asked(port, request % b"/healthz").startswith(b"HTTP/1.0 200 ")
    finally:
        server.close()
    assert "metrics_page_failed" in caplog.text


async def test_scrapers_that_hang_are_let_go(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take every place there is, and the next one is answered all the same."""
    monkeypatch.setattr(scraping, "_CONNECTION_SECONDS", 0.3)
    count = scraping._CONNECTIONS + 10
    hanging = [await asyncio.open_connection(HOST, port) for _ in range(count)]
    for _, writer in hanging:
        writer.write(b"GET /metr")
    assert await asyncio.to_thread(is_served, port)
    for _, writer in hanging:
        writer.close()


async def test_a_scraper_that_sends_its_request_bit_by_bit_is_let_go(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scraping, "_CONNECTION_SECONDS", 0.3)
    reader, writer = await asyncio.open_connection(HOST, port)

    async def drip() -> None:
        writer.write(b"GET /metrics HTTP/1.1\r\n")
        while True:
            writer.write(b"X: y\r\n")
            await asyncio.sleep(0.01)

    dripping = asyncio.create_task(drip())
    with suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 10) == b""
    dripping.cancel()
    writer.close()


@pytest.mark.long
async def test_a_thousand_scrapes_at_once_are_answered(port: int) -> None:
    async def scrape() -> bytes:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer

    answers = await asyncio.gather(*(scrape() for _ in range(1000)))
    assert all(answer.endswith(MADE) for answer in answers)


async def test_it_closes_while_somebody_is_being_answered(port: int) -> None:
    other = free_port()
    server = Server(HOST, other, REGISTRY)
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


def test_a_hanging_scraper_does_not_hold_up_the_exit_of_the_process() -> None:
    port = free_port()
    script = f"""
import socket, time
from prometheus_client import CollectorRegistry
from toolpool.contract.telemetry.scraping import Server
Server("127.0.0.1", {port}, CollectorRegistry()).start()
while True:
    try:
        hanging = socket.create_connection(("127.0.0.1", {port}))
        break
    except OSError:
        time.sleep(0.01)
hanging.sendall(b"GET /metr")
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "")
    assert "Traceback" not in ran.stderr


async def test_a_taken_port_is_logged_once_and_bound_when_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[object] = []
    said: list[str] = []
    monkeypatch.setattr(scraping.log, "warning", lambda text, *more: said.append(text % more))
    listening = scraping._listening
    monkeypatch.setattr(
        scraping, "_listening", lambda *address: tries.append(address) or listening(*address)
    )
    monkeypatch.setattr(scraping, "_TRY_AGAIN_SECONDS", 0.01)
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        server = Server(HOST, port, REGISTRY)
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
    server = Server(host, port, REGISTRY)
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

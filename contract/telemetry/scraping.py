"""Serves the page of metrics over HTTP, from a thread of its own that nothing waits for.

A scraper that hangs takes one of a few places for a few seconds. Where the port cannot be had, that
is said once with what to do, and tried again: whoever has it may leave.
"""

import asyncio
import errno
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from types import MappingProxyType

from toolpool.contract import logs
from toolpool.contract.settings import Settings

log = logs.logger("metrics")

PORT = "TOOLPOOL_METRICS_PORT"
HOST = "TOOLPOOL_METRICS_HOST"

_PLACES = 64
_PATIENCE_SECONDS = 5.0
_TRY_AGAIN_SECONDS = 5.0
_HEAD_BYTES = 16_384
_STOP_SECONDS = 2.0

_UNUSABLE = {
    errno.EADDRINUSE: "another process has it. Give each one on this host its own ({port})",
    errno.EACCES: "this user may not listen there. Take a port from 1024 on ({port})",
    errno.EADDRNOTAVAIL: "this host has no such address. Set {host} to one of its own",
}


def port_of(given: int | str) -> int | None:
    """The port of a setting; None where metrics are off, or it is none, which is said."""
    try:
        port = int(given)
    except ValueError:
        port = -1
    if not 0 <= port <= 65_535:
        log.warning(
            "metrics_port_invalid port=%s: there will be no metrics; set %s to a number from 1 to "
            "65535. A Kubernetes service called toolpool-metrics sets it as well: give it another "
            "name, or its pods enableServiceLinks: false. Tool calls are not affected",
            given, PORT,
        )  # fmt: skip
        return None
    return port or None


class Server:
    """Answers `GET /metrics` with `page`, which is given the header `Accept`.

    Each path of `probes` is answered 200 if its function returns an empty string, else 503 with it.
    """

    def __init__(
        self,
        host: str,
        port: int,
        page: Callable[[str], tuple[str, bytes]],
        probes: Mapping[str, Callable[[], str]] = MappingProxyType({}),
    ) -> None:
        self._probes = probes
        self._address = (host, port)
        self._page = page
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._said = False

    def start(self) -> None:
        """Begin to listen; returns at once."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def close(self) -> None:
        """Let go of the port."""
        if self._loop is not None and self._thread.is_alive():
            with suppress(RuntimeError):  # it has just ended
                self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        loop = self._loop
        assert loop is not None
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        while not self._stopping.is_set():
            try:
                listening = _listening(*self._address)
            except (OSError, OverflowError, UnicodeError) as error:
                self._say(error)
                await self._stopped_within(_TRY_AGAIN_SECONDS)
                continue
            with listening:
                log.info("metrics_served address=%s:%d", *self._address)
                accepting = asyncio.ensure_future(self._accept(listening))
                await self._stopping.wait()
                accepting.cancel()
                await asyncio.wait({accepting})

    async def _stopped_within(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    def _say(self, error: Exception) -> None:
        if self._said:
            return
        self._said = True
        known = _UNUSABLE.get(getattr(error, "errno", None) or 0)
        why = known.format(port=PORT, host=HOST) if known else f"{error}. Look at {HOST} and {PORT}"
        log.warning(
            "metrics_not_served address=%s:%d: %s. It is tried again; tool calls are not affected",
            *self._address, why,
        )  # fmt: skip

    async def _accept(self, listening: socket.socket) -> None:
        """Take connections while there is a place; the others wait in the kernel."""
        places = asyncio.Semaphore(_PLACES)
        answering: set[asyncio.Task[None]] = set()
        try:
            while True:
                await places.acquire()
                await _readable(listening)
                try:
                    # Not the loop's own sock_accept: what it has taken as it is cancelled is lost.
                    connection, _ = listening.accept()
                except BlockingIOError:
                    places.release()
                    continue
                except OSError as error:  # as where this process has no descriptors left
                    places.release()
                    log.warning("metrics_connection_not_taken: %s", error)
                    await asyncio.sleep(1.0)
                    continue
                task = asyncio.ensure_future(self._answer(connection))
                answering.add(task)
                task.add_done_callback(answering.discard)
                task.add_done_callback(partial(_let_go, connection, places))
        finally:
            for task in answering:
                task.cancel()

    async def _answer(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        connection.setblocking(False)
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                head = b""
                while b"\r\n\r\n" not in head:
                    more = await loop.sock_recv(connection, 4096)
                    head += more
                    if not more or len(head) > _HEAD_BYTES:
                        return
                await loop.sock_sendall(connection, self._response(head))
        except (OSError, TimeoutError):
            pass  # a scraper that went away, or hangs
        except Exception:
            log.exception("metrics_page_failed: a fault of toolpool's own")

    def _response(self, head: bytes) -> bytes:
        request, *lines = head.decode("latin-1").split("\r\n")
        method, _, rest = request.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        content_type, body = "text/plain; charset=utf-8", b""
        if method not in ("GET", "HEAD"):
            status = HTTPStatus.METHOD_NOT_ALLOWED
        elif probe := self._probes.get(path):
            fault = probe()
            status = HTTPStatus.SERVICE_UNAVAILABLE if fault else HTTPStatus.OK
            body = f"{fault or 'ok'}\n".encode()
        elif path not in ("/metrics", "/"):
            status, body = HTTPStatus.NOT_FOUND, b"metrics are at /metrics\n"
        else:
            status = HTTPStatus.OK
            accepted = [line[7:].strip() for line in lines if line.lower().startswith("accept:")]
            content_type, body = self._page(", ".join(accepted))
        shown = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        ).encode()
        return shown if method == "HEAD" else shown + body


def address_of(settings: Settings, host: str | None, port: int | None) -> tuple[str, int] | None:
    """Where to listen; None where metrics are off."""
    wanted = port_of(settings.metrics_port if port is None else port)
    return (host or settings.metrics_host, wanted) if wanted is not None else None


async def _readable(listening: socket.socket) -> None:
    """Return when somebody connects."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(listening, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(listening)


def _let_go(connection: socket.socket, places: asyncio.Semaphore, _: object) -> None:
    """It was answered, or given up, even before that began."""
    connection.close()
    places.release()


def _listening(host: str, port: int) -> socket.socket:
    is_any = host in ("", "::")
    listening = socket.create_server(
        (host, port),
        family=socket.AF_INET6 if ":" in host else socket.AF_INET,
        backlog=_PLACES,
        dualstack_ipv6=is_any and ":" in host and socket.has_dualstack_ipv6(),
    )
    listening.setblocking(False)
    return listening

"""A TCP link to a server that goes bad in ways that neither end is told of."""

import asyncio
from contextlib import suppress

from tests.chaos.servers import free_port

_CHUNK = 1 << 16
_COMMANDS = (b"BRPOP",)


class _Connection:
    def __init__(self) -> None:
        self.has_asked: set[bytes] = set()
        self.is_deaf = False


class Link:
    """Carries connections to `target`, a port of this machine; `delay` is seconds each way.

    `deafen` makes those connections half-open: what the server sends is lost, and nothing says so.
    """

    def __init__(self, target: int, *, delay: float = 0.0) -> None:
        self.port = free_port()
        self.delay = delay
        self._target = target
        self._open: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"redis://127.0.0.1:{self.port}/0"

    async def __aenter__(self) -> "Link":
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def deafen(self, command: bytes) -> int:
        """Lose all answers on the connections that have sent `command`; how many there are."""
        found = [one for one in self._open if one.has_asked == {command}]
        for one in found:
            one.is_deaf = True
        return len(found)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = _Connection()
        self._open.add(connection)
        try:
            there, onwards = await asyncio.open_connection("127.0.0.1", self._target)
            ways = [
                asyncio.ensure_future(self._pass_on(connection, reader, onwards, is_reply=False)),
                asyncio.ensure_future(self._pass_on(connection, there, writer, is_reply=True)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                for end in (writer, onwards):
                    with suppress(OSError):
                        end.transport.abort()
        except OSError:
            writer.transport.abort()
        finally:
            self._open.discard(connection)
            self._tasks.discard(task)

    async def _pass_on(
        self,
        connection: _Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        is_reply: bool,
    ) -> None:
        loop = asyncio.get_running_loop()
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def arrive() -> None:
            while True:
                due, chunk = await on_the_way.get()
                await asyncio.sleep(due - loop.time())
                writer.write(chunk)
                await writer.drain()

        arriving = asyncio.ensure_future(arrive())
        try:
            with suppress(OSError):
                while chunk := await reader.read(_CHUNK):
                    if not is_reply:
                        connection.has_asked |= {word for word in _COMMANDS if word in chunk}
                    elif connection.is_deaf:
                        continue
                    on_the_way.put_nowait((loop.time() + self.delay, chunk))
        finally:
            arriving.cancel()
            await asyncio.gather(arriving, return_exceptions=True)

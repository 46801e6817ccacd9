"""A TCP proxy on loopback that loses replies, cuts connections and delays."""

import asyncio
import random
from contextlib import suppress

from tests.chaos.servers import free_port

_CHUNK = 1 << 16
_CHUNKS = 4096


class Proxy:
    """Carries connections to `target` (a port), which may change; all faults are off at first.

    `lose_reply` and `cut` are chances a chunk; a lost reply takes its connection with it, as TCP
    would not lose it otherwise. `delay` (seconds) holds up what the server sends, `way_there` what
    is sent to it; what follows is held up as long, and not one behind the other.
    """

    def __init__(self, target: int, rng: random.Random) -> None:
        self.target = target
        self.port = free_port()
        self.lose_reply = 0.0
        self.cut = 0.0
        self.delay = 0.0
        self.way_there = 0.0
        self.faults = 0
        self._rng = rng
        self._open: set[asyncio.StreamWriter] = set()
        self._carrying: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"redis://127.0.0.1:{self.port}/0"

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.port)

    def cut_all(self) -> None:
        """End every connection now."""
        for writer in list(self._open):
            writer.transport.abort()

    async def close(self) -> None:
        """End every connection and listen no more."""
        self._server.close()
        self.cut_all()
        for task in list(self._carrying):
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        ends = {writer}
        self._open.add(writer)
        try:
            there, onwards = await asyncio.open_connection("127.0.0.1", self.target)
            ends.add(onwards)
            self._open.add(onwards)
            ways = [
                asyncio.ensure_future(self._pass_on(reader, onwards, is_reply=False)),
                asyncio.ensure_future(self._pass_on(there, writer, is_reply=True)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass  # the server is away, or this proxy is closed: the client sees its connection end
        finally:
            for end in ends:
                self._open.discard(end)
                with suppress(OSError):
                    end.transport.abort()
            self._carrying.discard(task)

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_reply: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS)
        arriving = asyncio.ensure_future(_arrive(on_the_way, writer))
        try:
            while chunk := await reader.read(_CHUNK):
                if self._rng.random() < (self.lose_reply if is_reply else self.cut):
                    self.faults += 1
                    return
                held_up = self.delay if is_reply else self.way_there
                await on_the_way.put((loop.time() + held_up, chunk))
                if arriving.done():
                    return
            await on_the_way.join()
        except OSError:
            pass
        finally:
            arriving.cancel()
            await asyncio.gather(arriving, return_exceptions=True)


async def _arrive(
    on_the_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
) -> None:
    """Hand on what was sent, each chunk when it is due, in the order it was sent in."""
    loop = asyncio.get_running_loop()
    with suppress(OSError):
        while True:
            due, chunk = await on_the_way.get()
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            writer.write(chunk)
            await writer.drain()
            on_the_way.task_done()

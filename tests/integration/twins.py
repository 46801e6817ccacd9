"""Two dispatchers over one in-memory server: an agent's host, and one that takes over."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from toolpool import Dispatcher, Hooks
from toolpool.contract.settings import Settings
from toolpool.dispatcher.dispatch import Dispatcher as Connected
from toolpool.dispatcher.transports.memory import MemoryTransport
from toolpool.pool import InMemoryDispatcher
from toolpool.workers.tool import Tool

_numbers = itertools.count(1)


@asynccontextmanager
async def alone(tools: Sequence[Tool], **settings: Any) -> AsyncIterator[InMemoryDispatcher]:
    """A dispatcher with its worker."""
    async with Dispatcher.in_memory(tools, settings=Settings(**settings)) as dispatcher:
        yield dispatcher


@asynccontextmanager
async def second(
    first: InMemoryDispatcher, hooks: Hooks | None = None, **settings: Any
) -> AsyncIterator[Connected]:
    """Another dispatcher on the same server."""
    dispatcher = Connected(
        MemoryTransport(first._server, f"reply:{next(_numbers)}"),
        settings=Settings(**settings),
        envelope=first._background._envelope,
        hooks=hooks,
    )
    async with dispatcher:
        yield dispatcher


class Gate:
    """What a tool of a test waits at, and who came there."""

    def __init__(self) -> None:
        self.came: list[str] = []
        self._open = asyncio.Event()

    async def wait(self, label: str) -> None:
        """Note that somebody is here, and wait until the gate opens."""
        self.came.append(label)
        await self._open.wait()

    def open(self) -> None:
        """Let everybody through."""
        self._open.set()

"""The dispatcher that users import: connected, local or in memory."""

import asyncio
from collections.abc import Collection, Sequence
from types import ModuleType
from typing import Any, Self

from contract.envelope import Envelope
from contract.errors import ToolDeclarationInvalid
from contract.memory import MemoryServer
from contract.settings import Settings
from contract.signing import Keyring, generate_key
from dispatcher.dispatch import Dispatcher as ConnectedDispatcher
from dispatcher.loops import OnLoop
from dispatcher.memory_transport import MemoryTransport
from toolpool.in_memory import InMemoryWorker
from toolpool.local import LocalFleet, ToolSource, as_sources
from workers import inside
from workers.tool import Tool


class Dispatcher(ConnectedDispatcher):
    """See `dispatcher.dispatch.Dispatcher`; `local` and `in_memory` bring the workers along."""

    @classmethod
    def local(
        cls,
        tools: Sequence[ToolSource] = (),
        *,
        settings: Settings | None = None,
    ) -> "LocalDispatcher":
        """A dispatcher with an embedded server and workers of its own, started on entering.

        `tools` are module names, files, modules, or tools of an importable module; none means the
        built-in tools. Everything ends with the `async with` block, or with this process.
        """
        inside.require_outside()
        return LocalDispatcher(as_sources(tools), settings or Settings())

    @classmethod
    def in_memory(
        cls,
        tools: Sequence[Tool | ModuleType],
        *,
        settings: Settings | None = None,
        allow: Collection[str] | None = None,
        on_loop: OnLoop | None = None,
    ) -> "InMemoryDispatcher":
        """A dispatcher and worker inside this process, without a server: for tests.

        Messages are encoded, signed and decoded as on the wire. Child-process tools run in threads.
        """
        return InMemoryDispatcher(_tools_of(tools), settings or Settings(), allow, on_loop)


class LocalDispatcher:
    """What `Dispatcher.local` gives: enter it to get the dispatcher."""

    def __init__(self, sources: Sequence[str], settings: Settings) -> None:
        self._sources = sources
        self._settings = settings
        self._fleet: LocalFleet | None = None
        self._dispatcher: Dispatcher | None = None

    @property
    def description(self) -> str:
        """What was started; empty before that."""
        return self._fleet.description if self._fleet is not None else ""

    async def __aenter__(self) -> Dispatcher:
        self._fleet = await asyncio.to_thread(LocalFleet, self._sources, self._settings)
        try:
            self._dispatcher = Dispatcher.connect(settings=self._fleet.settings)
            return await self._dispatcher.__aenter__()
        except BaseException:
            await asyncio.to_thread(self._fleet.close)
            raise

    async def __aexit__(self, *error: Any) -> None:
        assert self._dispatcher is not None and self._fleet is not None
        try:
            await self._dispatcher.close()
        finally:
            await asyncio.to_thread(self._fleet.close)


class InMemoryDispatcher(Dispatcher):
    """What `Dispatcher.in_memory` gives."""

    def __init__(
        self,
        tools: Sequence[Tool],
        settings: Settings,
        allow: Collection[str] | None,
        on_loop: OnLoop | None = None,
    ) -> None:
        self._server = MemoryServer(loop_memory=settings.loop_memory, loop_kept=settings.loop_kept)
        self._tools = tools
        envelope = Envelope(Keyring([generate_key()]), max_bytes=settings.max_message)
        super().__init__(
            MemoryTransport(self._server),
            settings=settings,
            envelope=envelope,
            tools=allow,
            on_loop=on_loop,
        )
        self._worker = InMemoryWorker(self._server, tools, settings=settings, envelope=envelope)

    async def __aenter__(self) -> Self:
        self._worker.start()
        return await super().__aenter__()

    async def close(self) -> None:
        """See `Dispatcher.close`; the worker's running calls are cancelled too."""
        await super().close()
        await self._worker.close()


def _tools_of(sources: Sequence[Tool | ModuleType]) -> list[Tool]:
    tools: list[Tool] = []
    for source in sources:
        if isinstance(source, Tool):
            tools.append(source)
        elif isinstance(source, ModuleType):
            tools += [value for value in vars(source).values() if isinstance(value, Tool)]
        else:
            raise ToolDeclarationInvalid(
                f"{source!r} is not a tool: in_memory takes @tool functions and modules with them"
            )
    return tools

"""The public dispatcher: connected, local or in memory."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from toolpool.contract.envelope import Envelope
from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.contract.settings import Settings
from toolpool.contract.signing import Keyring, generate_key
from toolpool.dispatcher.dispatch import Dispatcher as ConnectedDispatcher
from toolpool.dispatcher.lifetime import MAKE_ANOTHER, Lifetime, in_a_thread
from toolpool.dispatcher.observer import Observer
from toolpool.dispatcher.observers.observer_setup import Record
from toolpool.dispatcher.policy.hooks import Hooks
from toolpool.dispatcher.transports.memory import MemoryTransport
from toolpool.in_memory import InMemoryWorker
from toolpool.local import LocalFleet, ToolSource, as_sources
from toolpool.workers.credentials.secret_sources import Resolve
from toolpool.workers.running import process_role
from toolpool.workers.tool import Tool

_PARTS = ("analytics", "approvals", "loops")
"""The parts of a dispatcher that its methods use."""


class Dispatcher(ConnectedDispatcher):
    """The public dispatcher: `local` and `in_memory` also start workers."""

    @classmethod
    def local(
        cls,
        tools: Sequence[ToolSource] = (),
        *,
        settings: Settings | None = None,
        hooks: Hooks | None = None,
        observers: Sequence[Observer] = (),
        record: Record | None = None,
    ) -> "LocalDispatcher":
        """A dispatcher with its own embedded server and workers, started on entering.

        `tools` are module names, files, modules, or tools of an importable module; by default the
        built-in tools. Everything ends with the `async with` block, or with this process.
        """
        process_role.require_outside()
        for source in _listed(tools):
            if not isinstance(source, (str, Path, ModuleType, Tool)):
                raise ToolDeclarationInvalid(
                    f"{source!r} is not a tool: local takes names of modules, files, modules, and "
                    "@tool functions"
                )
        settings = settings or Settings()
        return LocalDispatcher(as_sources(tools), settings, hooks, observers, record)

    @classmethod
    def in_memory(
        cls,
        tools: Sequence[Tool | ModuleType],
        *,
        settings: Settings | None = None,
        only: Collection[str] | None = None,
        hooks: Hooks | None = None,
        observers: Sequence[Observer] = (),
        record: Record | None = None,
        secrets: Resolve | None = None,
    ) -> "InMemoryDispatcher":
        """A dispatcher and worker inside this process, without a server: for tests.

        Messages are encoded, signed and decoded as on the wire. Child-process tools run in threads.
        `secrets` provides the secrets of tools in place of the settings: a function of
        `tenant`, `user` and `name`, plain or a coroutine.
        """
        return InMemoryDispatcher(
            _tools_of(tools), settings or Settings(), only, hooks, observers, record, secrets
        )


class LocalDispatcher:
    """The object that `Dispatcher.local` returns. Enter it to get the dispatcher.

    It also has the dispatcher's methods, which raise RuntimeError until it is entered.
    """

    def __init__(
        self,
        sources: Sequence[str],
        settings: Settings,
        hooks: Hooks | None = None,
        observers: Sequence[Observer] = (),
        record: Record | None = None,
    ) -> None:
        self._sources = sources
        self._hooks = hooks
        self._observers = observers
        self._record = record
        self._settings = settings
        self._lifetime = Lifetime()
        self._fleet: LocalFleet | None = None
        self._dispatcher: Dispatcher | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or (name not in _PARTS and not hasattr(Dispatcher, name)):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if self._dispatcher is not None:
            return getattr(self._dispatcher, name)
        if self._lifetime.is_closed:
            raise RuntimeError(f"this dispatcher is closed: {MAKE_ANOTHER}")
        raise RuntimeError(
            "this dispatcher is not entered, so it has no server and no workers yet: use it inside "
            "`async with Dispatcher.local(…) as dispatcher:`"
        )

    @property
    def description(self) -> str:
        """The server and workers that were started; empty before."""
        return self._fleet.description if self._fleet is not None else ""

    async def __aenter__(self) -> Dispatcher:
        self._lifetime.enter()
        try:
            self._fleet = await _started(self._sources, self._settings)
            dispatcher = Dispatcher.connect(
                settings=self._fleet.settings,
                hooks=self._hooks,
                observers=self._observers,
                record=self._record,
            )
            self._dispatcher = await dispatcher.__aenter__()
            self._lifetime.open()
            return self._dispatcher
        except BaseException:
            await self.close()
            raise

    async def __aexit__(self, *error: Any) -> None:
        await self.close()

    async def close(self) -> None:
        """End the dispatcher, then the workers and the server. Idempotent."""
        if not self._lifetime.close():
            return
        try:
            if self._dispatcher is not None:
                await self._dispatcher.close()
        finally:
            if self._fleet is not None:
                await in_a_thread(self._fleet.close)


class InMemoryDispatcher(Dispatcher):
    """The dispatcher that `Dispatcher.in_memory` returns."""

    def __init__(
        self,
        tools: Sequence[Tool],
        settings: Settings,
        only: Collection[str] | None,
        hooks: Hooks | None = None,
        observers: Sequence[Observer] = (),
        record: Record | None = None,
        secrets: Resolve | None = None,
    ) -> None:
        self._server = MemoryServer()
        self._server.events.kept = settings.events_maxlen
        self._tools = tools
        envelope = Envelope(
            Keyring([generate_key()], settings.key_prefix), max_bytes=settings.max_message_bytes
        )
        super().__init__(
            MemoryTransport(self._server),
            settings=settings,
            envelope=envelope,
            only=only,
            hooks=hooks,
            observers=observers,
            record=record,
        )
        self._worker = InMemoryWorker(
            self._server, tools, settings=settings, envelope=envelope, secrets=secrets
        )

    async def _start(self) -> None:
        await self._worker.start()
        await super()._start()

    async def _stop(self) -> None:
        await super()._stop()
        await self._worker.close()


async def _started(sources: Sequence[str], settings: Settings) -> LocalFleet:
    """The fleet, once its workers are ready. If the caller is cancelled, the fleet is ended."""
    made: list[LocalFleet] = []
    is_abandoned = False

    def make() -> LocalFleet:
        made.append(LocalFleet(sources, settings, is_shown=True))
        if is_abandoned:
            made[0].close()
        return made[0]

    try:
        return await asyncio.to_thread(make)
    except asyncio.CancelledError:
        is_abandoned = True
        for fleet in made:
            await in_a_thread(fleet.close)
        raise


def _tools_of(sources: Sequence[Tool | ModuleType]) -> list[Tool]:
    tools: list[Tool] = []
    for source in _listed(sources):
        if isinstance(source, Tool):
            tools.append(source)
        elif isinstance(source, ModuleType):
            tools += [value for value in vars(source).values() if isinstance(value, Tool)]
        else:
            raise ToolDeclarationInvalid(
                f"{source!r} is not a tool: in_memory takes @tool functions and modules with them"
            )
    if not tools:
        raise ToolDeclarationInvalid(
            "there is no tool in what in_memory was given: name @tool functions, or modules that "
            "have some"
        )
    return tools


def _listed(sources: Any) -> Iterable[Any]:
    """The tools in a list. Raises `ToolDeclarationInvalid` if the value is not a list of tools."""
    if isinstance(sources, (str, Path, ModuleType, Tool)) or not isinstance(sources, Iterable):
        raise ToolDeclarationInvalid(f"tools must be a list of tools, not {type(sources).__name__}")
    found: Iterable[Any] = sources
    return found

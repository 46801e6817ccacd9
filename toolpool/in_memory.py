"""A worker in this process over the in-memory server, for tests."""

import asyncio
import itertools
import os
import socket
from collections.abc import Iterable
from functools import partial

import msgspec

from toolpool.contract.envelope import Cancel, CatalogEntry, Envelope, WorkerLease
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.settings import Settings
from toolpool.contract.spec import RunIn, sealed
from toolpool.contract.version import VERSION
from toolpool.workers.credentials.lookup import Credentials
from toolpool.workers.credentials.secret_sources import Resolve, Source, source_of, usable
from toolpool.workers.lifespan import Resources
from toolpool.workers.observers.log import log
from toolpool.workers.running.admission import Admission
from toolpool.workers.running.call_runner import CallRunner
from toolpool.workers.running.executor import Executor
from toolpool.workers.running.limit_notices import LimitNotices
from toolpool.workers.running.message_reader import MessageReader
from toolpool.workers.running.settler import Settler
from toolpool.workers.running.slots import Slots
from toolpool.workers.tool import Tool
from toolpool.workers.tool_loading import Catalog
from toolpool.workers.worker_observer import WorkerObservers

_WORKER = "memory"
_PULSE_SECONDS = 0.25


class InMemoryWorker:
    """Runs the real executor on the caller's own event loop.

    Child-process tools run in threads here, so that a test can define them anywhere. They are not
    killed at their timeout, and a tool that ends its process ends the test's process.
    """

    def __init__(
        self,
        server: MemoryServer,
        tools: Iterable[Tool],
        *,
        settings: Settings,
        envelope: Envelope,
        secrets: Resolve | None = None,
    ) -> None:
        catalog = Catalog(_in_this_process(tool) for tool in tools)
        self._server = server
        self._envelope = envelope
        self._settler = Settler(
            worker=_WORKER,
            ledger=server,
            envelope=envelope,
            keep=settings.result_ttl,
        )
        observers = WorkerObservers([log()], settings=settings, tools=catalog.tools)
        observers.start()
        self._credentials = Credentials(
            _source(secrets, settings), settings, partial(observers.notify, "unresolved")
        )
        admission = Admission(catalog, envelope, settings, server)
        admission.server_time = server.time
        self._resources = Resources(tools)
        self._runner = CallRunner(
            worker=_WORKER,
            catalog=catalog,
            max_result_bytes=settings.max_result_bytes,
            children=None,
            resources=self._resources,
            credentials=self._credentials,
            admission=admission,
        )
        message_reader = MessageReader(envelope, observers)
        message_reader.server_time = self._settler.server_time = server.time
        self._executor = Executor(
            worker=_WORKER,
            catalog=catalog,
            runner=self._runner,
            ledger=server,
            settler=self._settler,
            message_reader=message_reader,
            observers=observers,
            slots=Slots({kind: settings.slots(kind) for kind in (RunIn.LOOP, RunIn.THREAD)}),
            admission=admission,
            limit_notices=LimitNotices(server.rates, _WORKER),
        )
        specs = [tool.spec for tool in catalog.tools.values()]
        names = RedisKeys(settings.key_prefix)
        for spec in specs:
            entry = CatalogEntry(spec=spec, published_at=server.time(), version=VERSION)
            server.catalog[spec.name] = envelope.encode(entry)
        self._slots = {
            names.queue(spec.queue, spec.run_in): settings.slots(spec.run_in) for spec in specs
        }
        self._beats = itertools.count(1)
        self._started_at = server.time()
        self._renew_lease()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Open the tools' resources, then consume the queues and follow cancels.

        Raises what `Resources.open` raises.
        """
        await self._resources.open()
        self._tasks = [
            asyncio.ensure_future(self._consume()),
            asyncio.ensure_future(self._follow_cancels()),
            asyncio.ensure_future(self._pulse()),
        ]

    async def close(self, grace: float = 0.0) -> None:
        """Stop consuming; running calls are cancelled after `grace` seconds."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._executor.drain(grace)
        self._runner.close()
        await self._resources.close()
        self._credentials.close()

    async def _consume(self) -> None:
        while self._slots:
            _, message = await self._server.take(*sorted(self._slots))
            self._executor.receive(message, lambda: None)

    async def _follow_cancels(self) -> None:
        while True:
            _, message = await self._server.take(f"cancel:{_WORKER}")
            self._executor.cancel(self._envelope.decode(Cancel, message).key)

    async def _pulse(self) -> None:
        while True:
            await asyncio.sleep(_PULSE_SECONDS)
            self._renew_lease()
            self._executor.answer_overdue()

    def _renew_lease(self) -> None:
        lease = WorkerLease(
            id=_WORKER,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=VERSION,
            started_at=self._started_at,
            slots=self._slots,
            beat=next(self._beats),
        )
        self._server.leases[_WORKER] = self._envelope.encode(lease)


def _source(secrets: Resolve | None, settings: Settings) -> Source | None:
    if secrets is None:
        return source_of(settings.secrets)
    return Source("secrets=", usable(secrets, "what in_memory was given as secrets="))


def _in_this_process(tool: Tool) -> Tool:
    if tool.spec.run_in is not RunIn.PROCESS:
        return tool
    kind = RunIn.LOOP if tool.is_coroutine else RunIn.THREAD
    spec = sealed(msgspec.structs.replace(tool.spec, run_in=kind))
    return Tool(tool.function, spec, tool.signature, tool.checks, tool.returns, tool.secrets)

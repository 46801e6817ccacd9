"""The part of a worker process beside Celery: the event loop and everything on it."""

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from secrets import token_hex
from typing import Any

from redis.exceptions import RedisError

from toolpool.contract import logs
from toolpool.contract.envelope import Cancel, Envelope, WorkerLease
from toolpool.contract.errors import BrokerUnreachable, MessageRejected, ServerError
from toolpool.contract.ledger.lua_scripts import LuaScripts
from toolpool.contract.ledger.protocols import Settlement
from toolpool.contract.ledger.rate_counters import RedisRates
from toolpool.contract.ledger.redis_ledger import RedisLedger
from toolpool.contract.observer_dispatch import PULSE_SECONDS, guarded
from toolpool.contract.redis_keys import RedisKeys, toolset_queue
from toolpool.contract.server import connection
from toolpool.contract.settings import Settings
from toolpool.contract.spec import BATCH_CALLS, RunIn, ToolSpec
from toolpool.contract.version import VERSION
from toolpool.workers.catalog_publisher import CatalogPublisher, toolset_of
from toolpool.workers.celery.message_guard import MessageValidator
from toolpool.workers.celery.queue_channels import QueueChannel
from toolpool.workers.credentials.lookup import Credentials
from toolpool.workers.credentials.secret_sources import Source
from toolpool.workers.lifespan import CLOSING_SECONDS, Resources
from toolpool.workers.presence import Presence
from toolpool.workers.running import forks
from toolpool.workers.running.admission import Admission
from toolpool.workers.running.call_runner import CallRunner
from toolpool.workers.running.children import started_children
from toolpool.workers.running.claimed_call import ClaimedCall, MessageAhead
from toolpool.workers.running.executor import Executor
from toolpool.workers.running.leak_check import Leftovers
from toolpool.workers.running.limit_notices import LimitNotices
from toolpool.workers.running.message_reader import MessageReader
from toolpool.workers.running.settler import Settler
from toolpool.workers.running.slots import Slots
from toolpool.workers.supervision.loop_watchdog import LoopWatchdog
from toolpool.workers.supervision.stalled_connections import StalledConnections
from toolpool.workers.supervision.supervisor_link import (
    Frame,
    Link,
    LoopTurned,
    MainTurned,
    Recycle,
    Stalled,
    StopNow,
    WorkerExited,
)
from toolpool.workers.tool_loading import Catalog
from toolpool.workers.worker_observer import WorkerFacts, WorkerObserver, WorkerObservers

log = logs.logger("worker")

_LEFT_OUT_AT_MOST = 50
"""How many of the tools that it does not take a worker names in its lease."""
_START_SECONDS = 90.0
_HAND_OVER_SECONDS = 0.001
_FLUSH_SECONDS = 6.0
"""How many seconds longer than its grace period a stop waits for a server that does not answer."""
_LAST_ANSWER_SECONDS = 2.0
_CANCELS_SECONDS = 5
"""How long one read of cancel requests waits, in seconds."""
_OTHER_BROKER_SECONDS = 20.0
"""The patience in seconds for a broker on another server, which the lease does not monitor."""
_SERVER_FORGETS_SECONDS = 5.0
"""How many seconds of its last writes a restarted or promoted server may lose; usually fewer."""


class WorkerService:
    """The service of one worker process. `start` raises `Misconfigured` errors."""

    def __init__(
        self,
        settings: Settings,
        *,
        catalog: Catalog,
        tools: Sequence[str],
        run_in: Sequence[RunIn],
        queues: Sequence[str],
        boot: str | None = None,
        link: Link | None = None,
        observers: Sequence[WorkerObserver] = (),
        secrets: Source | None = None,
    ) -> None:
        self.id = boot or f"{socket.gethostname()}-{os.getpid()}-{token_hex(4)}"
        self._settings = settings
        self._catalog = catalog
        self._tools = tools
        self._slots = Slots({kind: settings.slots(kind) for kind in run_in})
        self._queues = queues
        self._envelope = Envelope(
            connection.keyring(settings), max_bytes=settings.max_message_bytes
        )
        self._observers = WorkerObservers(observers, settings=settings, tools=catalog.tools)
        self._credentials = Credentials(
            secrets, settings, partial(self._observers.notify, "unresolved")
        )
        self._message_reader = MessageReader(self._envelope, self._observers)
        self._names = RedisKeys(settings.key_prefix)
        self._loop = asyncio.new_event_loop()
        # With a failing task factory, the worker could not start any call.
        self._loop.set_task_factory = _refuse_task_factory  # type: ignore[method-assign, assignment]
        self._thread = threading.Thread(target=self._turn, name="tools", daemon=True)
        self._last_turn = time.monotonic()
        self._is_running = False
        self._epoch = ""
        """The server epoch in which it has reported its calls."""
        self._is_stopped = False
        self._link = link
        self._said_at = 0.0
        self._is_worn_out_reported = False
        self._is_ready = False
        self.sign_seconds = min(1.0, settings.worker_stall_timeout / 4)
        """The interval in seconds at which each loop reports that it turns."""
        self._ahead: MessageAhead | None = None
        self._dropped = 0
        self._recycling = False
        self._stop_lock = threading.RLock()
        self.stopping = threading.Event()
        """Set once the stop has begun."""
        served = self._served()
        self._toolset = toolset_of(served)
        taken = {spec.name for spec in served}
        self._resources = Resources(
            tool
            for name, tool in catalog.tools.items()
            if name in taken and tool.spec.run_in is not RunIn.PROCESS
        )
        self._left_out = tuple(sorted(catalog.tools.keys() - taken))
        """The loaded tools that its queues do not serve."""
        self.leaving = threading.Event()
        """Set once a stop was requested, which Celery's thread then begins."""
        self.form = MessageValidator(settings.max_message_bytes)
        self.stalled_connections = StalledConnections(
            patience=settings.lease_ttl, confirmed_at=self._broker_confirmed_at
        )

    @property
    def channels(self) -> list[QueueChannel]:
        """A channel per run mode: its queues, with a prefetch of its slots plus one batch."""
        return [
            QueueChannel(
                tuple(name for queue in self._queues for name in self._queues_of(queue, kind)),
                -(-count // BATCH_CALLS[kind]) + 1,
            )
            for kind, count in self._slots.counts.items()
        ]

    def _queues_of(self, queue: str, kind: RunIn) -> tuple[str, str]:
        """The common queue, and the queue of workers with the same toolset."""
        name = self._names.queue(queue, kind)
        return name, toolset_queue(name, self._toolset.digest)

    def start(self) -> None:
        """Open connections, start children, publish the catalog, take the lease."""
        self._observers.start()
        self._thread.start()
        self._on_loop(self._open(), _START_SECONDS)
        client = connection.open_sync(self._settings)
        self._presence = Presence(
            client=client,
            epochs=self._epochs,
            settings=self._settings,
            envelope=self._envelope,
            describe=self._describe,
            catalog_publisher=CatalogPublisher(
                client, self._served(), envelope=self._envelope, settings=self._settings
            ),
            loop_lag=self._loop_lag,
            observers=self._observers,
        )
        self._executor.lease = self._presence
        for part in (self._message_reader, self._admission, self._settler, self._limit_notices):
            part.server_time = self._presence.clock.time
        self._on_loop(self._follow(), _START_SECONDS)
        self._watchdog = LoopWatchdog(
            thread=self._thread,
            loop_lag=self._loop_lag,
            warn=self._settings.event_loop_timeout / 10,
            limit=self._settings.event_loop_timeout,
            observers=self._observers,
            end_call=self._end_blocking,
        )
        try:
            self._presence.start()
        except (RedisError, OSError) as error:
            raise BrokerUnreachable(connection.unreachable(self._settings, error)) from None
        # From here on calls may run, and a server that restarts may forget them.
        self._epoch = self._presence.epoch
        self._watchdog.start()
        self.stalled_connections.start()
        self._is_running = True
        if self._link is not None:
            self._link.follow(self._told)

    def _end_blocking(self, running: ClaimedCall) -> None:
        """Answer the call that blocks the event loop; on the watchdog's thread, as the worker ends.

        If the server does not accept the answer, the call is recovered like the others.
        """
        outcome = self._runner.outcomes.blocked(running)
        settlement = self._settler.settlement(running.batch, running.call, outcome)
        try:
            asyncio.run(self._settle_now(settlement))
        except Exception as error:  # noqa: BLE001 - the worker has to end in any case
            log.error("blocking_call_not_answered call=%s: %s", running.call.id, error)

    async def _settle_now(self, settlement: Settlement) -> None:
        client = connection.open_async(self._settings)
        try:
            async with asyncio.timeout(_LAST_ANSWER_SECONDS):
                ledger = RedisLedger(LuaScripts(client), self._names)
                give_up_at = time.monotonic() + _LAST_ANSWER_SECONDS
                await ledger.settle([settlement], give_up_at=give_up_at)
        finally:
            await client.aclose()

    def _told(self, frame: Frame) -> None:
        if isinstance(frame, Recycle):
            self._recycle()
        elif isinstance(frame, StopNow) and self._recycling:
            drained = self._executor.drain(self._settings.drain_timeout)
            asyncio.run_coroutine_threadsafe(drained, self._loop)
        elif isinstance(frame, WorkerExited):
            self._observers.notify("worker_down", frame.worker, frame.reason)
        elif isinstance(frame, Stalled):
            self._observers.notify("worker_stalled", frame.worker, frame.reason)

    def _recycle(self) -> None:
        """Drain without a time limit: accept nothing new, and let running calls end."""
        self._recycling = True
        self.leaving.set()
        os.kill(os.getpid(), signal.SIGTERM)

    def main_turned(self, *, consumes: bool = True) -> None:
        """Report a turn of Celery's loop; called from it about once a second.

        `consumes` is False while Celery tries to connect to the broker.
        """
        if consumes and not self._is_ready:
            self._is_ready = True
            facts = self._facts()
            self._observers.notify("ready", facts)
            if self._left_out:
                log.info(
                    "tools_not_taken tools=%s: this worker's --run-in or --queues leave them out",
                    ",".join(self._left_out),
                )
        if self._link is not None:
            self._link.send(MainTurned(consumes=consumes))

    def _facts(self) -> WorkerFacts:
        return WorkerFacts(
            id=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=VERSION,
            tools=tuple(sorted(spec.name for spec in self._served())),
            kinds=tuple(kind.value for kind in self._slots.counts),
            queues=tuple(
                self._names.queue(queue, kind)
                for queue in self._queues
                for kind in self._slots.counts
            ),
            server=connection.described(self._settings),
        )

    def _broker_confirmed_at(self) -> float:
        if self._settings.broker_url:  # the lease says nothing about a separate broker
            return time.monotonic() - _OTHER_BROKER_SECONDS
        return self._presence.renewed_at

    def _loop_lag(self) -> float:
        return time.monotonic() - self._last_turn

    def _describe(self) -> WorkerLease:
        free, counts = self._slots.free(), self._slots.counts
        kinds = [(self._names.queue(q, kind), kind) for q in self._queues for kind in counts]
        return WorkerLease(
            id=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=VERSION,
            started_at=0.0,  # see `Presence`
            slots={queue: counts[kind] for queue, kind in kinds},
            free={queue: free[kind] for queue, kind in kinds},
            received=self._message_reader.received,
            running=self._executor.running,
            abandoned=self._slots.stuck,
            toolset=self._toolset.digest,
            leaving=self._executor.is_leaving,
            ttl=self._settings.lease_ttl,
            stall=self._settings.longest_stall,
            left_out=self._left_out[:_LEFT_OUT_AT_MOST],
        )

    def _served(self) -> list[ToolSpec]:
        """The tools that this worker's queues serve."""
        specs = [tool.spec for tool in self._catalog.tools.values()]
        return [s for s in specs if s.run_in in self._slots.counts and s.queue in self._queues]

    def receive(self, data: bytes, acknowledge: Callable[[], None]) -> None:
        """Accept a message from Celery.

        `acknowledge` is called once its calls are decided, on the event loop's thread or on this.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.data == data:
            ahead.noted(acknowledge)
        else:
            self._loop.call_soon_threadsafe(self._executor.receive, data, acknowledge)

    def receive_ahead(self, data: bytes) -> None:
        """Accept a message that Celery reads next, and then passes to `receive`.

        Celery takes as long for a message as a worker for a short call. If it drops the message,
        or delivers it again, the ledger holds what has run.
        """
        if not self.stopping.is_set():
            self._ahead = MessageAhead(data)
            self._loop.call_soon_threadsafe(self._executor.receive, data, self._ahead.acknowledge)
            # Celery's work would hold the interpreter meanwhile, and can wait.
            self._ahead.wait(_HAND_OVER_SECONDS)

    def reject(self, reason: str) -> None:
        """Count and log a message that was dropped undecoded; thread-safe."""
        self._dropped += 1
        self._loop.call_soon_threadsafe(self._message_reader.refuse, "foreign", reason)

    def stop(self) -> None:
        """Let running calls end within the grace period, settle them, drop the lease. Idempotent.

        Blocks also while another thread stops the service, because the process must not exit before
        that.
        """
        with self._stop_lock:
            if not self.stopping.is_set() and self._thread.is_alive():
                self._stop()

    def _stop(self) -> None:
        self.stopping.set()
        if self._is_running:  # else the children end with this process
            self._watchdog.stop()
            self._observers.notify("draining", self._facts())
            grace = self._settings.drain_timeout + _FLUSH_SECONDS + CLOSING_SECONDS
            try:
                self._on_loop(self._close(), None if self._recycling else grace)
                nothing_runs = not self._slots.are_busy
            except TimeoutError:
                nothing_runs = False
                log.error(
                    "drain_unfinished: the server did not accept the remaining outcomes in time"
                )
            self._presence.stop(nothing_runs=nothing_runs)
            self.stalled_connections.stop()
            self._observers.notify("stopped", self._facts())
            self._observers.close()
        else:
            with suppress(TimeoutError):
                self._on_loop(self._resources.close(), CLOSING_SECONDS)
        self._is_stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)

    async def _open(self) -> None:
        settings = self._settings
        client = connection.open_async(settings)
        await connection.require_fit_server(client, settings)
        scripts = LuaScripts(client, lease_ttl=settings.lease_ttl)
        self._epochs = scripts.epochs
        ledger = RedisLedger(
            scripts,
            self._names,
            dedup_ttl=settings.dedup_ttl,
        )
        self._resources.on_ended = self._recycle
        await self._resources.open()
        self._children = await started_children(
            self._catalog,
            self._slots.counts.get(RunIn.PROCESS, 0),
            self._tools,
            self._queues,
            settings,
        )
        self._settler = Settler(
            worker=self.id,
            ledger=ledger,
            envelope=self._envelope,
            keep=settings.result_ttl,
        )
        self._admission = Admission(self._catalog, self._envelope, settings, ledger)
        self._runner = CallRunner(
            worker=self.id,
            catalog=self._catalog,
            max_result_bytes=settings.max_result_bytes,
            children=self._children,
            resources=self._resources,
            credentials=self._credentials,
            admission=self._admission,
        )
        rates = RedisRates(scripts, self._names, queue_timeout=settings.queue_timeout)
        self._limit_notices = LimitNotices(rates, self.id)
        self._executor = Executor(
            worker=self.id,
            catalog=self._catalog,
            runner=self._runner,
            ledger=ledger,
            settler=self._settler,
            message_reader=self._message_reader,
            slots=self._slots,
            admission=self._admission,
            limit_notices=self._limit_notices,
            observers=self._observers,
            lease_ttl=settings.lease_ttl,
        )

    async def _follow(self) -> None:
        self._tasks = [
            asyncio.ensure_future(self._pulse()),
            asyncio.ensure_future(self._follow_switches()),
            asyncio.ensure_future(self._follow_cancels()),
        ]

    async def _close(self) -> None:
        await self._executor.drain(self._settings.drain_timeout, recycling=self._recycling)
        for task in self._tasks:
            task.cancel()
        closings = [self._resources.close()]
        if self._children is not None:
            closings.append(self._children.close())
        await asyncio.gather(*closings)
        self._runner.close()
        self._credentials.close()

    async def _follow_cancels(self) -> None:
        """Cancel calls at their dispatchers' request, read on a separate connection."""
        client = connection.open_async(self._settings, blocking=True)
        name = self._names.cancel(self.id)
        while True:
            try:
                async with asyncio.timeout(2 * _CANCELS_SECONDS):  # then the connection is dead
                    item: Any = await client.blpop([name], timeout=_CANCELS_SECONDS)
                if item is not None:
                    self._executor.cancel(self._envelope.decode(Cancel, item[1]).key)
            except MessageRejected as error:
                log.warning("cancel_rejected reason=%s: %s", error.reason, error)
            except (ServerError, TimeoutError) as error:
                log.warning("cancels_unread: %s", str(error) or type(error).__name__)
                await asyncio.sleep(1.0)

    async def _follow_switches(self) -> None:
        """Restore switches that were removed without a key. New switches are reported by claims."""
        while True:
            await self._admission.follow_switches()
            await asyncio.sleep(self._settings.lease_interval)

    async def _pulse(self) -> None:
        due, left_behind = time.monotonic(), guarded(Leftovers().look)
        while True:
            self._last_turn = time.monotonic()
            if self._observers.listeners["pulse"]:
                running, stuck = self._executor.running, self._slots.stuck
                self._observers.pulse(lag=self._last_turn - due, running=running, stuck=stuck)
            for left in left_behind(self._last_turn, self._executor.oldest) or ():
                self._observers.notify("left_behind", left)
            forks.end_stray()
            renewed_at = self._executor.lease.renewed_at
            epoch = self._presence.epoch
            if self._epoch and epoch != self._epoch:
                self._epoch = epoch
                self._executor.report_again()
            else:
                self._settler.forget_before(renewed_at - _SERVER_FORGETS_SECONDS)
            self._executor.answer_overdue()
            self._executor.give_back_waiting()
            self._executor.end_exclusive_without_lease()
            self._executor.claim_more()
            self._report_to_supervisor()
            due = time.monotonic() + PULSE_SECONDS
            await asyncio.sleep(PULSE_SECONDS)

    def _report_to_supervisor(self) -> None:
        """Tell the supervisor that the loop turns, and whether a replacement is needed."""
        is_worn_out = self._slots.are_worn_out
        if is_worn_out and not self._is_worn_out_reported and not self.stopping.is_set():
            self._is_worn_out_reported = True
            log.error("worker_worn_out: stuck calls hold half its slots of a kind; draining")
            self._observers.notify("worn_out", self._facts())
            if self._link is None:
                self._recycle()
        now = time.monotonic()
        if self._link is None or now - self._said_at < self.sign_seconds:
            return
        self._said_at = now
        lease = self._describe()
        self._link.send(
            LoopTurned(
                consumed=lease.received + self._dropped,
                free=lease.free,
                worn_out=is_worn_out,
                leased=self._executor.is_leased,
            )
        )

    def _turn(self) -> None:
        asyncio.set_event_loop(self._loop)
        while True:
            try:
                self._loop.run_forever()
                if self._is_stopped:
                    return
                log.error("loop_stopped: a tool stopped the worker's event loop; it continues")
            except BaseException:  # a tool's task raised SystemExit: the loop continues
                log.exception("loop_interrupted")

    def _on_loop(self, work: Coroutine[Any, Any, None], patience: float | None) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(patience)


def _refuse_task_factory(_: object) -> None:
    raise RuntimeError(
        "a tool cannot set the task factory: the event loop is its worker's, and runs other calls"
    )

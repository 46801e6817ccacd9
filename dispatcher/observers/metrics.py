"""Prometheus metrics of a dispatcher: counted where a moment happens, read from another thread."""

import threading
import time
from bisect import bisect_left

from prometheus_client import CollectorRegistry

from toolpool.contract import logs
from toolpool.contract.outcome import Code, ErrorType, Executed
from toolpool.contract.settings import Settings
from toolpool.contract.telemetry import families
from toolpool.contract.telemetry.exposition import Page, aggregate_in
from toolpool.contract.telemetry.metric_store import (
    OK,
    OTHER,
    SECONDS,
    UNKNOWN_TOOL,
    MetricShard,
    ToolNames,
)
from toolpool.contract.telemetry.scraping import Server, address_of
from toolpool.contract.version import VERSION
from toolpool.dispatcher.observer import CallFacts, Ended, HookFailure, Observer, Pulse, Rejected
from toolpool.dispatcher.observers import dispatcher_metrics
from toolpool.dispatcher.observers.first_attempts import FirstAttempts

log = logs.logger("metrics")

_SUM = len(SECONDS) + 1


class _Tool:
    """Where the cells of one tool are that every call writes to."""

    __slots__ = ("first_valid", "label", "ok", "seconds", "unknown")

    def __init__(self, shard: MetricShard, label: str) -> None:
        self.label = label
        self.ok = shard.place(dispatcher_metrics.ENDED, label, OK, OK)
        self.seconds = shard.place(dispatcher_metrics.CALL_SECONDS, label)
        self.first_valid = shard.place(dispatcher_metrics.FIRST_TRIES, label, "valid")
        # At 0 from its first call on: of a counter that begins with 1 nobody sees that it grew.
        self.unknown = shard.place(dispatcher_metrics.EXECUTED_UNKNOWN, label)


class Metrics(Observer):
    """Give one to each dispatcher: `Dispatcher.connect(observers=[Metrics()])`.

    What it counts is in `registry`, a new one where none is given, and is read over HTTP at `host`
    and `port`, which are TOOLPOOL_METRICS_HOST and TOOLPOOL_METRICS_PORT where they are not given;
    port 0 is none. Dispatchers of one process that are given the same registry, or without one the
    same port, are counted together.
    """

    is_quick = True

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        port: int | None = None,
        host: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._address = address_of(settings or Settings(), host, port)
        self.registry = _PORTS.registry(self._address) if registry is None else registry
        self._aggregate = aggregate_in(self.registry, dispatcher_metrics.FAMILIES)
        self._is_open = False
        self._begin()

    def _begin(self) -> None:
        self._shard = shard = MetricShard()
        self._cells = shard.cells
        self._names = ToolNames()
        self._tools: dict[str, _Tool] = {}
        self._tries = FirstAttempts()
        self._workers: set[str] = set()
        self._late = shard.place(dispatcher_metrics.LATE)
        self._batch = shard.place(dispatcher_metrics.BATCH)
        self._lag = shard.place(families.LAG)
        self._dropped = shard.place(families.DROPPED)
        self._waiting = shard.place(dispatcher_metrics.WAITING)
        self._in_flight = shard.place(dispatcher_metrics.IN_FLIGHT)
        self._oldest = shard.place(dispatcher_metrics.OLDEST)
        self._approvals = shard.place(dispatcher_metrics.APPROVALS)
        self._oldest_approval = shard.place(dispatcher_metrics.OLDEST_APPROVAL)
        for hook in dispatcher_metrics.HOOKS:  # at 0 from the start, as below
            shard.place(dispatcher_metrics.HOOK_FAILED, hook)
        self._alive = shard.place(dispatcher_metrics.WORKERS)
        self._cells[shard.place(families.BUILD, VERSION)] = 1.0

    def open(self) -> None:
        """Begin to count, and to be read."""
        if self._is_open:
            log.warning(
                "metrics_shared: two dispatchers have one Metrics(), so of what is no counter only "
                "one is seen. Give each its own; with the same port or registry they are added up"
            )
            return
        self._is_open = True
        self._aggregate.add(self._shard)
        if self._address is not None:
            _PORTS.open(self._address, self.registry)

    def close(self) -> None:
        """Keep what was counted, and let go of the port where nobody else is read at it."""
        if not self._is_open:
            return
        self._is_open = False
        self._aggregate.end(self._shard)
        self._begin()
        if self._address is not None:
            _PORTS.close(self._address, self.registry)

    def rejected(self, rejected: Rejected) -> None:
        """The model has to mend it."""
        label = self._names.of(rejected.tool) if rejected.is_known else UNKNOWN_TOOL
        self._note_rejection(label, rejected.session, rejected.code, rejected.kinds)

    def sent(self, queue: str, calls: int) -> None:
        """A message is in a queue."""
        self._shard.observe(self._batch, dispatcher_metrics.BATCH.buckets, calls)

    def requeued(self, call: CallFacts) -> None:
        """It was sent once more."""
        self._cells[
            self._shard.place(dispatcher_metrics.REDISPATCHED, self._names.of(call.tool))
        ] += 1.0

    def lost(self, call: CallFacts, worker: str) -> None:
        """The worker that ran it is gone."""
        self._cells[self._shard.place(dispatcher_metrics.LOST, self._names.of(call.tool))] += 1.0

    def retried(self, call: CallFacts, pause: float) -> None:
        """It is run again."""
        self._cells[self._shard.place(dispatcher_metrics.RETRIED, self._names.of(call.tool))] += 1.0

    def ended(self, call: CallFacts, ended: Ended) -> None:
        """It has its result."""
        if not ended.is_first:  # else another dispatcher counts it
            return
        tool = self._tools.get(call.tool) or self._tool(call.tool)
        cells, seconds = self._cells, ended.seconds
        cells[tool.seconds + bisect_left(SECONDS, seconds)] += 1.0
        cells[tool.seconds + _SUM] += seconds
        if ended.shared:
            cells[self._shard.place(dispatcher_metrics.SHARED, tool.label, ended.shared)] += 1.0
        if ended.code is None:
            cells[tool.ok] += 1.0
        else:
            if ended.code.error_type is ErrorType.VALIDATION:
                self._note_rejection(tool.label, call.session, ended.code, ended.kinds)
                return
            self._count(tool.label, ended.code)
            if ended.executed is Executed.UNKNOWN:
                cells[tool.unknown] += 1.0
        if self._tries.valid(call.session, tool.label):
            cells[tool.first_valid] += 1.0

    def hook_failed(self, failure: HookFailure) -> None:
        """A hook, policy rule or webhook failed."""
        self._cells[self._shard.place(dispatcher_metrics.HOOK_FAILED, failure.hook)] += 1.0

    def late(self, key: str, worker: str) -> None:
        """A worker's outcome came too late."""
        self._cells[self._late] += 1.0

    def worker_up(self, worker: str) -> None:
        """A worker is seen."""
        self._workers.add(worker)
        self._cells[self._alive] = len(self._workers)

    def worker_down(self, worker: str) -> None:
        """A worker is gone."""
        self._workers.discard(worker)
        self._cells[self._alive] = len(self._workers)

    def pulse(self, pulse: Pulse) -> None:
        """Its event loop turns."""
        shard, cells = self._shard, self._cells
        shard.observe(self._lag, families.LAG.buckets, pulse.lag)
        cells[shard.place(families.STALL)] = time.monotonic()
        cells[self._waiting] = pulse.waiting
        cells[self._in_flight] = pulse.in_flight
        cells[self._oldest] = pulse.oldest_waiting
        cells[self._approvals] = pulse.waiting_approvals
        cells[self._oldest_approval] = pulse.oldest_approval
        cells[self._dropped] = pulse.dropped

    def _tool(self, name: str) -> _Tool:
        label = self._names.of(name)
        tool = self._tools.get(label) or _Tool(self._shard, label)
        self._tools[label] = tool
        return tool

    def _note_rejection(
        self, label: str, session: str | None, code: Code, kinds: tuple[str, ...]
    ) -> None:
        shard, cells = self._shard, self._cells
        self._count(label, code)
        known = {kind if kind in dispatcher_metrics.KEYWORDS else OTHER for kind in kinds}
        for keyword in known or {code.value.partition(".")[2]}:
            cells[shard.place(dispatcher_metrics.FAILED_VALIDATION, label, keyword)] += 1.0
        if self._tries.rejected(session, label):
            cells[shard.place(dispatcher_metrics.FIRST_TRIES, label, "rejected")] += 1.0

    def _count(self, label: str, code: Code) -> None:
        place = self._shard.place(
            dispatcher_metrics.ENDED, label, code.error_type.value, code.value
        )
        self._cells[place] += 1.0


class _Ports:
    """What this process is read at: dispatchers that name the same port are read together."""

    def __init__(self) -> None:
        self._registries: dict[tuple[str, int], CollectorRegistry] = {}
        self._servers: dict[tuple[str, int], tuple[CollectorRegistry, Server]] = {}
        self._users: dict[tuple[str, int], int] = {}
        self._lock = threading.Lock()

    def registry(self, address: tuple[str, int] | None) -> CollectorRegistry:
        """The registry of a port, for whoever brings none."""
        with self._lock:
            if address is None:
                return CollectorRegistry()
            return self._registries.setdefault(address, CollectorRegistry())

    def open(self, address: tuple[str, int], registry: CollectorRegistry) -> None:
        """Serve it there."""
        with self._lock:
            served = self._servers.get(address)
            if served is None:
                server = Server(*address, Page(registry).of)
                self._servers[address] = served = (registry, server)
                self._users[address] = 0
                server.start()
            if served[0] is registry:
                self._users[address] += 1
                return
        log.warning(
            "metrics_port_taken address=%s:%d: this process serves another registry there. Give "
            "both the same registry, or this one a port of its own; tool calls are not affected",
            *address,
        )

    def close(self, address: tuple[str, int], registry: CollectorRegistry) -> None:
        """One of those who are read there has ended."""
        with self._lock:
            served = self._servers.get(address)
            if served is None or served[0] is not registry:
                return
            self._users[address] -= 1
            if self._users[address]:
                return
            del self._servers[address]
        served[1].close()


_PORTS = _Ports()

"""Counts the Prometheus metrics of a dispatcher on its event loop; another thread reads them."""

import threading
import time
from collections.abc import Iterable, Iterator
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from toolpool.contract import logs
from toolpool.contract.outcome import Code, ErrorType, Executed
from toolpool.contract.settings import Settings
from toolpool.contract.telemetry import families
from toolpool.contract.telemetry.families import (
    OK,
    OTHER,
    TOOLS_AT_MOST,
    UNKNOWN_TOOL,
    Family,
    Kind,
    LabelLimit,
    stall_seconds,
)
from toolpool.contract.telemetry.metric_set import MetricSet
from toolpool.contract.telemetry.scraping import Server, address_of
from toolpool.contract.version import VERSION
from toolpool.dispatcher.observer import CallFacts, Ended, HookFailure, Observer, Pulse, Rejected
from toolpool.dispatcher.observers import dispatcher_metrics
from toolpool.dispatcher.observers.first_attempts import FirstAttempts

log = logs.logger("metrics")

_ZEROS = {
    family.name: 0.0
    for family in dispatcher_metrics.FAMILIES
    if family.kind in (Kind.SUM, Kind.MOST)
}


class _Tool:
    """The metrics that every call of a tool updates."""

    __slots__ = ("first_valid", "label", "ok", "seconds", "unknown")

    def __init__(self, made: MetricSet, label: str) -> None:
        self.label = label
        self.ok = made.counter(dispatcher_metrics.ENDED, label, OK, OK).inc
        self.seconds = made.histogram(dispatcher_metrics.CALL_SECONDS, label).observe
        self.first_valid = made.counter(dispatcher_metrics.FIRST_TRIES, label, "valid").inc
        # 0 from its first call on: `increase()` does not see a counter that begins with 1.
        self.unknown = made.counter(dispatcher_metrics.EXECUTED_UNKNOWN, label).inc


class _Collector(Collector):
    """Collects the counters of a registry's dispatchers, and the gauges of those that are open."""

    def __init__(self) -> None:
        self.made = MetricSet(dispatcher_metrics.FAMILIES, in_memory=True)
        self.open: set[Metrics] = set()
        self.labels = LabelLimit(TOOLS_AT_MOST)
        self._tools: dict[str, _Tool] = {}
        for hook in dispatcher_metrics.HOOKS:  # at 0 from the start, as above
            self.made.counter(dispatcher_metrics.HOOK_FAILED, hook)

    def tool(self, name: str) -> _Tool:
        """The metrics of a tool of the catalog."""
        tool = self._tools.get(name)
        if tool is None:
            label = self.labels.of(name)
            tool = self._tools.get(label) or _Tool(self.made, label)
            self._tools[label] = tool
        return tool

    def collect(self) -> Iterator[Metric]:
        """Every family, with no series if nothing has happened yet."""
        for family in dispatcher_metrics.FAMILIES:
            if family.kind is Kind.COUNTER:
                yield from _without_created(self.made.counter(family).collect())
            elif family.kind is Kind.HISTOGRAM:
                yield from _without_created(self.made.histogram(family).collect())
            else:
                yield self._gauge(family)

    describe = collect

    def _gauge(self, family: Family) -> Metric:
        gauge = GaugeMetricFamily(family.name, family.text, labels=family.labels)
        gauges = [metrics.gauges for metrics in self.open.copy()]
        values = [known[family.name] for known in gauges if family.name in known]
        if family.kind is Kind.SINCE:
            values = [stall_seconds(value) for value in values]
        if values:
            labels = (VERSION,) if family is families.BUILD else ()
            gauge.add_metric(labels, sum(values) if family.kind is Kind.SUM else max(values))
        return gauge


class Metrics(Observer):
    """Give one to each dispatcher: `Dispatcher.connect(observers=[Metrics()])`.

    The metrics are in `registry`, by default a new one, and are served over HTTP at `host` and
    `port`, by default TOOLPOOL_METRICS_HOST and TOOLPOOL_METRICS_PORT; port 0 serves nothing.
    Dispatchers of one process with the same registry, or without one with the same port, are
    counted together.
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
        self._collector = _collector_of(self.registry)
        made = self._collector.made
        self._lag = made.histogram(families.LAG)
        self._dropped = made.counter(families.DROPPED)
        self._batch = made.histogram(dispatcher_metrics.BATCH)
        self._late = made.counter(dispatcher_metrics.LATE)
        self._is_open = False
        self._begin()

    def _begin(self) -> None:
        self._tries = FirstAttempts()
        self._workers: set[str] = set()
        self._known_drops = 0
        self.gauges: dict[str, float] = {**_ZEROS, families.BUILD.name: 1.0}
        """The current values of this dispatcher's gauges, by metric name."""

    def open(self) -> None:
        """Start counting, and serve the metrics."""
        if self._is_open:
            log.warning(
                "metrics_shared: two dispatchers have one Metrics(), so its gauges show only one "
                "of them. Give each its own; with the same port or registry they are added up"
            )
            return
        self._is_open = True
        self._collector.open.add(self)
        if self._address is not None:
            _PORTS.open(self._address, self.registry)

    def close(self) -> None:
        """Keep the counters, and release the port unless another dispatcher is served there."""
        if not self._is_open:
            return
        self._is_open = False
        self._collector.open.discard(self)
        self._begin()
        if self._address is not None:
            _PORTS.close(self._address, self.registry)

    def rejected(self, rejected: Rejected) -> None:
        """A call was rejected: the model has to correct it."""
        label = self._collector.labels.of(rejected.tool) if rejected.is_known else UNKNOWN_TOOL
        self._note_rejection(label, rejected.session, rejected.code, rejected.kinds)

    def sent(self, queue: str, calls: int) -> None:
        """A message was sent to a queue."""
        self._batch.observe(calls)

    def requeued(self, call: CallFacts) -> None:
        """The call was sent again."""
        self._count(dispatcher_metrics.REDISPATCHED, self._collector.labels.of(call.tool))

    def lost(self, call: CallFacts, worker: str) -> None:
        """The worker that ran the call was lost."""
        self._count(dispatcher_metrics.LOST, self._collector.labels.of(call.tool))

    def retried(self, call: CallFacts, pause: float) -> None:
        """The pool retries the call."""
        self._count(dispatcher_metrics.RETRIED, self._collector.labels.of(call.tool))

    def ended(self, call: CallFacts, ended: Ended) -> None:
        """The call has its result."""
        if not ended.is_first:  # otherwise another dispatcher counts it
            return
        tool = self._collector.tool(call.tool)
        tool.seconds(ended.seconds)
        if ended.shared:
            self._count(dispatcher_metrics.SHARED, tool.label, ended.shared)
        if ended.code is None:
            tool.ok()
        else:
            if ended.code.error_type is ErrorType.VALIDATION:
                self._note_rejection(tool.label, call.session, ended.code, ended.kinds)
                return
            self._count_failure(tool.label, ended.code)
            if ended.executed is Executed.UNKNOWN:
                tool.unknown()
        if self._tries.valid(call.session, tool.label):
            tool.first_valid()

    def hook_failed(self, failure: HookFailure) -> None:
        """A hook, policy rule or webhook failed."""
        self._count(dispatcher_metrics.HOOK_FAILED, failure.hook)

    def late_outcome(self, key: str, worker: str) -> None:
        """A worker's outcome came too late."""
        self._late.inc()

    def worker_up(self, worker: str) -> None:
        """A worker was found."""
        self._workers.add(worker)
        self.gauges[dispatcher_metrics.WORKERS.name] = len(self._workers)

    def worker_down(self, worker: str) -> None:
        """A worker is gone."""
        self._workers.discard(worker)
        self.gauges[dispatcher_metrics.WORKERS.name] = len(self._workers)

    def pulse(self, pulse: Pulse) -> None:
        """Update the gauges; called every quarter of a second."""
        self._lag.observe(pulse.lag)
        self._dropped.inc(pulse.dropped - self._known_drops)
        self._known_drops = pulse.dropped
        self.gauges |= {
            families.STALL.name: time.monotonic(),
            dispatcher_metrics.WAITING.name: pulse.waiting,
            dispatcher_metrics.IN_FLIGHT.name: pulse.in_flight,
            dispatcher_metrics.OLDEST.name: pulse.oldest_waiting,
            dispatcher_metrics.APPROVALS.name: pulse.waiting_approvals,
            dispatcher_metrics.OLDEST_APPROVAL.name: pulse.oldest_approval,
        }

    def _note_rejection(
        self, label: str, session: str | None, code: Code, kinds: tuple[str, ...]
    ) -> None:
        self._count_failure(label, code)
        known = {kind if kind in dispatcher_metrics.KEYWORDS else OTHER for kind in kinds}
        for keyword in known or {code.value.partition(".")[2]}:
            self._count(dispatcher_metrics.FAILED_VALIDATION, label, keyword)
        if self._tries.rejected(session, label):
            self._count(dispatcher_metrics.FIRST_TRIES, label, "rejected")

    def _count_failure(self, label: str, code: Code) -> None:
        self._count(dispatcher_metrics.ENDED, label, code.error_type.value, code.value)

    def _count(self, family: Family, *labels: str) -> None:
        self._collector.made.counter(family, *labels).inc()


class _Ports:
    """The ports that this process serves; dispatchers with the same port share a registry."""

    def __init__(self) -> None:
        self._registries: dict[tuple[str, int], CollectorRegistry] = {}
        self._servers: dict[tuple[str, int], tuple[CollectorRegistry, Server]] = {}
        self._users: dict[tuple[str, int], int] = {}
        self._lock = threading.Lock()

    def registry(self, address: tuple[str, int] | None) -> CollectorRegistry:
        """The default registry of a port."""
        with self._lock:
            if address is None:
                return CollectorRegistry()
            return self._registries.setdefault(address, CollectorRegistry())

    def open(self, address: tuple[str, int], registry: CollectorRegistry) -> None:
        """Serve a registry at an address."""
        with self._lock:
            served = self._servers.get(address)
            if served is None:
                server = Server(*address, registry)
                self._servers[address] = served = (registry, server)
                self._users[address] = 0
                server.start()
            if served[0] is registry:
                self._users[address] += 1
                return
        log.warning(
            "metrics_port_taken address=%s:%d: this process serves another registry there. Use "
            "the same registry for both, or another port; tool calls are not affected",
            *address,
        )

    def close(self, address: tuple[str, int], registry: CollectorRegistry) -> None:
        """Stop serving the address if no other dispatcher uses it."""
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

_collectors: "WeakKeyDictionary[CollectorRegistry, _Collector]" = WeakKeyDictionary()
_collectors_lock = threading.Lock()


def _collector_of(registry: CollectorRegistry) -> _Collector:
    with _collectors_lock:
        collector = _collectors.get(registry)
        if collector is None:
            collector = _Collector()
            registry.register(collector)
            _collectors[registry] = collector
        return collector


def _without_created(metrics: Iterable[Metric]) -> Iterator[Metric]:
    """Leave out the times at which series were created: they double a counter's series."""
    for metric in metrics:
        metric.samples = [each for each in metric.samples if not each.name.endswith("_created")]
        yield metric

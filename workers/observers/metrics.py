"""Prometheus metrics of a worker process, in the multiprocess mode of `prometheus_client`.

The process writes every value to files that its supervisor reads, so that nothing is lost however
the process ends. `supervision/merged_metrics.py` serves the page.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Literal

from prometheus_client import Gauge, values

from toolpool.contract.telemetry import families
from toolpool.contract.telemetry.families import OK, TOOLS_AT_MOST, UNKNOWN_TOOL, Family, LabelLimit
from toolpool.contract.telemetry.metric_set import MetricSet
from toolpool.workers.observers import worker_metrics
from toolpool.workers.worker_observer import (
    Blocked,
    Received,
    RunEnded,
    RunFacts,
    WorkerObserver,
    WorkerPulse,
)

_REASONS_AT_MOST = 20
_CAUSES_AT_MOST = 50


def count_in_slot(slot: str) -> None:
    """Make all metrics of this process write to the files of `slot`.

    Call it before tools are imported, which may have their own metrics. The next process in the
    slot continues these files, unlike files that are named after a process.
    """
    files = values.MultiProcessValue(partial(str, slot))  # type: ignore[no-untyped-call]
    values.ValueClass = files


class _Tool:
    """The metrics that every call of a tool updates."""

    __slots__ = ("label", "ok", "seconds")

    def __init__(self, made: MetricSet, label: str) -> None:
        self.label = label
        self.ok = made.counter(worker_metrics.RAN, label, OK, OK, "").inc
        self.seconds = made.histogram(worker_metrics.RUN_SECONDS, label).observe


class Metrics(WorkerObserver):
    """Used in every worker whose supervisor serves metrics, after `count_in_slot`."""

    is_quick = True

    def __init__(self) -> None:
        self._made = made = MetricSet(worker_metrics.FAMILIES, in_memory=False)
        self._labels = LabelLimit(TOOLS_AT_MOST)
        self._reasons = LabelLimit(_REASONS_AT_MOST)
        self._causes = LabelLimit(_CAUSES_AT_MOST)
        self._tools: dict[str, _Tool] = {}
        self._queues: dict[str, Callable[[float], None]] = {}
        self._lag = made.histogram(families.LAG)
        self._dropped = made.counter(families.DROPPED)
        self._known_drops = 0
        self._running = _gauge(worker_metrics.RUNNING, "livesum")
        self._stuck = _gauge(worker_metrics.STUCK, "livesum")
        self._turned_at = _gauge(families.STALL, "livemin")
        self._turned_at.set(time.monotonic())

    def started(self, call: RunFacts, received: Received) -> None:
        """The tool is entered."""
        observe = self._queues.get(call.queue)
        if observe is None:
            observe = self._made.histogram(worker_metrics.QUEUE_WAIT, call.queue).observe
            self._queues[call.queue] = observe
        observe(received.seconds)

    def ended(self, call: RunFacts, ended: RunEnded) -> None:
        """The call was answered."""
        name = call.tool if call.run_in else UNKNOWN_TOOL
        tool = self._tools.get(name) or self._tool(name)
        code = ended.code
        if code is None:
            tool.ok()
        else:
            cause = ended.failure.cause if ended.failure is not None else ""
            labels = tool.label, code.error_type.value, code.value, self._causes.of(cause)
            self._count(worker_metrics.RAN, *labels)
        if ended.seconds:
            tool.seconds(ended.seconds)

    def released(self, call: RunFacts) -> None:
        """The call was given back."""
        label = self._labels.of(call.tool) if call.run_in else UNKNOWN_TOOL
        self._count(worker_metrics.RELEASED, label)

    def refused(self, reason: str) -> None:
        """A message was dropped."""
        self._count(worker_metrics.REFUSED, self._reasons.of(reason))

    def blocked(self, blocked: Blocked) -> None:
        """A tool blocks the event loop; counted once, even if it then ends the worker."""
        if not blocked.is_fatal:
            label = self._labels.of(blocked.tool) if blocked.tool else UNKNOWN_TOOL
            self._count(worker_metrics.BLOCKED, label)

    def pulse(self, pulse: WorkerPulse) -> None:
        """Update the gauges; called every quarter of a second."""
        self._lag.observe(pulse.lag)
        self._turned_at.set(time.monotonic())
        self._running.set(pulse.running)
        self._stuck.set(pulse.stuck)
        self._dropped.inc(pulse.dropped - self._known_drops)
        self._known_drops = pulse.dropped

    def _tool(self, name: str) -> _Tool:
        label = self._labels.of(name) if name != UNKNOWN_TOOL else name
        tool = self._tools.get(label) or _Tool(self._made, label)
        self._tools[label] = tool
        return tool

    def _count(self, family: Family, *labels: str) -> None:
        self._made.counter(family, *labels).inc()


def _gauge(family: Family, mode: Literal["livesum", "livemin"]) -> Gauge:
    return Gauge(family.name, family.text, registry=None, multiprocess_mode=mode)

"""Prometheus metrics of a worker process: written into memory that its supervisor reads.

So what a process has counted is there, however it ends, but for the last turn of its event loop,
and no tool finds a port or a directory of ours. The page itself is the supervisor's:
`supervision/metrics.py`.
"""

import mmap
import os
import time
from bisect import bisect_left

from toolpool.contract.telemetry import families
from toolpool.contract.telemetry.metric_store import (
    OK,
    SECONDS,
    SHEET_BYTES,
    UNKNOWN_TOOL,
    MetricShard,
    ToolNames,
)
from toolpool.workers.observers import worker_metrics
from toolpool.workers.worker_observer import (
    Blocked,
    Received,
    RunEnded,
    RunFacts,
    WorkerObserver,
    WorkerPulse,
)

_SUM = len(SECONDS) + 1
_REASONS_AT_MOST = 20
_CAUSES_AT_MOST = 50


class _Tool:
    """Where the cells of one tool are that every call writes to."""

    __slots__ = ("label", "ok", "seconds")

    def __init__(self, shard: MetricShard, label: str) -> None:
        self.label = label
        self.ok = shard.place(worker_metrics.RAN, label, OK, OK, "")
        self.seconds = shard.place(worker_metrics.RUN_SECONDS, label)


class Metrics(WorkerObserver):
    """On in every worker process whose supervisor serves metrics."""

    is_quick = True

    def __init__(self, shard: MetricShard) -> None:
        self._shard = shard
        self._cells = shard.cells
        self._names = ToolNames()
        self._tools: dict[str, _Tool] = {}
        self._queues: dict[str, int] = {}
        self._reasons = ToolNames(_REASONS_AT_MOST)
        self._causes = ToolNames(_CAUSES_AT_MOST)
        self._lag = shard.place(families.LAG)
        self._stall = shard.place(families.STALL)
        self._running = shard.place(worker_metrics.RUNNING)
        self._stuck = shard.place(worker_metrics.STUCK)
        self._dropped = shard.place(families.DROPPED)
        self._cells[self._stall] = time.monotonic()

    def started(self, call: RunFacts, received: Received) -> None:
        """Its tool is entered."""
        at = self._queues.get(call.queue)
        if at is None:
            at = self._queues[call.queue] = self._shard.place(worker_metrics.QUEUE_WAIT, call.queue)
        seconds = received.seconds
        self._cells[at + bisect_left(SECONDS, seconds)] += 1.0
        self._cells[at + _SUM] += seconds

    def ended(self, call: RunFacts, ended: RunEnded) -> None:
        """It was answered."""
        name = call.tool if call.run_in else UNKNOWN_TOOL
        tool = self._tools.get(name) or self._tool(name)
        cells, code = self._cells, ended.code
        if code is None:
            cells[tool.ok] += 1.0
        else:
            cause = ended.failure.cause if ended.failure is not None else ""
            labels = tool.label, code.error_type.value, code.value, self._causes.of(cause)
            cells[self._shard.place(worker_metrics.RAN, *labels)] += 1.0
        seconds = ended.seconds
        if seconds:
            cells[tool.seconds + bisect_left(SECONDS, seconds)] += 1.0
            cells[tool.seconds + _SUM] += seconds

    def released(self, call: RunFacts) -> None:
        """It was given back."""
        label = self._names.of(call.tool) if call.run_in else UNKNOWN_TOOL
        self._cells[self._shard.place(worker_metrics.RELEASED, label)] += 1.0

    def refused(self, reason: str) -> None:
        """A message was dropped."""
        self._cells[self._shard.place(worker_metrics.REFUSED, self._reasons.of(reason))] += 1.0

    def blocked(self, blocked: Blocked) -> None:
        """A tool blocks the event loop; told once more where it ends the worker."""
        if not blocked.is_fatal:
            label = self._names.of(blocked.tool) if blocked.tool else UNKNOWN_TOOL
            self._cells[self._shard.place(worker_metrics.BLOCKED, label)] += 1.0

    def pulse(self, pulse: WorkerPulse) -> None:
        """Its event loop turns."""
        cells = self._cells
        self._shard.observe(self._lag, families.LAG.buckets, pulse.lag)
        cells[self._stall] = time.monotonic()
        cells[self._running] = pulse.running
        cells[self._stuck] = pulse.stuck
        cells[self._dropped] = pulse.dropped

    def _tool(self, name: str) -> _Tool:
        label = self._names.of(name) if name != UNKNOWN_TOOL else name
        tool = self._tools.get(label) or _Tool(self._shard, label)
        self._tools[label] = tool
        return tool


def metrics_on(descriptor: int) -> Metrics:
    """What writes into the memory that a supervisor handed over."""
    os.set_inheritable(descriptor, False)
    memory = mmap.mmap(descriptor, SHEET_BYTES)
    os.close(descriptor)
    return Metrics(MetricShard(memory))

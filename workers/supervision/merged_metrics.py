"""One page of metrics for a supervisor and all its worker processes, those that ended as well.

Each process writes into memory of its own, which is here before the process and after it: what it
counted stays when it is gone, and how it stood does not.
"""

import mmap
import os
import sys
import tempfile
from typing import Self

from toolpool.contract import logs
from toolpool.contract.settings import Settings
from toolpool.contract.telemetry import families
from toolpool.contract.telemetry.metric_store import SHEET_BYTES, MetricAggregate, MetricShard
from toolpool.contract.telemetry.scraping import PORT, Server, address_of
from toolpool.contract.version import VERSION
from toolpool.workers.observers import worker_metrics
from toolpool.workers.supervision.health_probes import Health

log = logs.logger("metrics")


class WorkerSheet:
    """The memory of one process, until `Metrics.ended`. `descriptor` is to be handed over."""

    def __init__(self) -> None:
        self.descriptor = _memory()
        self.shard = MetricShard(mmap.mmap(self.descriptor, SHEET_BYTES))

    def handed_over(self) -> None:
        """The process has its own descriptor now."""
        os.close(self.descriptor)


def _memory() -> int:
    """A descriptor of zeros that two processes can share; it never needs room on a disk later."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("toolpool-metrics")
        os.truncate(descriptor, SHEET_BYTES)
        return descriptor
    with tempfile.TemporaryFile(prefix="toolpool-metrics-") as file:
        file.write(bytes(SHEET_BYTES))
        file.flush()
        return os.dup(file.fileno())


class Metrics:
    """Serves while it is entered, where TOOLPOOL_METRICS_PORT says so; else nothing is counted."""

    def __init__(self, settings: Settings, health: Health) -> None:
        self._probes = {"/healthz": health.fault, "/readyz": health.unready}
        self._address = address_of(settings, None, None)
        self._aggregate = MetricAggregate(worker_metrics.FAMILIES)
        self._own = MetricShard()
        self._processes = self._own.place(worker_metrics.PROCESSES)
        self._failures = self._own.place(worker_metrics.FAILURES)
        self._own.cells[self._own.place(families.BUILD, VERSION)] = 1.0
        self._aggregate.add(self._own)
        self._server: Server | None = None

    def __enter__(self) -> Self:
        if self._address is not None:
            from prometheus_client import CollectorRegistry

            from toolpool.contract.telemetry.exposition import BookCollector, Page

            registry = CollectorRegistry()
            registry.register(BookCollector(self._aggregate))
            self._server = Server(*self._address, Page(registry).of, self._probes)
            self._server.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._server is not None:
            self._server.close()

    def begun(self) -> WorkerSheet | None:
        """Memory for a process that is being started; None where metrics are off."""
        if self._address is None:
            return None
        try:
            made = WorkerSheet()
        except OSError as error:
            log.warning(
                "metrics_not_counted: no memory for a worker process to count in (%s); give this "
                "host more, or set %s=0. Tool calls are not affected", error, PORT,
            )  # fmt: skip
            return None
        self._aggregate.add(made.shard)
        self._own.cells[self._processes] += 1.0
        return made

    def ended(self, made: WorkerSheet | None, code: int) -> None:
        """A process has ended, with this exit code."""
        if made is not None:
            self._aggregate.end(made.shard)
            self._own.cells[self._processes] -= 1.0
            if code != 0:
                self._own.cells[self._failures] += 1.0

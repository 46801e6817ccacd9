"""One page of metrics for a supervisor and all its worker processes, including ended ones.

Worker processes run `prometheus_client` in multiprocess mode: each writes its values to files in a
directory of the supervisor. The files belong to a slot. A process takes the lowest free slot and
continues its counters. So no count is lost, and there are only as many files as processes have run
at once.
"""

import fcntl
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from toolpool.contract import logs
from toolpool.contract.importing import require_package
from toolpool.contract.settings import Settings
from toolpool.contract.telemetry import families
from toolpool.contract.telemetry.families import Family, Kind, stall_seconds
from toolpool.contract.telemetry.scraping import PORT, Server, address_of
from toolpool.contract.version import VERSION
from toolpool.workers.observers import worker_metrics
from toolpool.workers.supervision.health_probes import Health

if TYPE_CHECKING:
    from prometheus_client import Metric

log = logs.logger("metrics")

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the directory in it is private
_UNLOCKED_GRACE_SECONDS = 60.0


class Metrics:
    """Serves metrics while entered, if TOOLPOOL_METRICS_PORT is set; else nothing is counted.

    It is a collector for a registry of `prometheus_client`.
    """

    def __init__(self, settings: Settings, health: Health) -> None:
        self._probes = {"/healthz": health.fault, "/readyz": health.unready}
        self._address = address_of(settings, None, None)
        self._directory: Path | None = None
        self._lock: int | None = None
        self._slots: set[str] = set()
        self._failures = 0
        self._is_full = False
        """Whether the file system was full. If so, no further process is counted."""
        self._reading = threading.Lock()
        self._server: Server | None = None

    def __enter__(self) -> Self:
        if self._address is None:
            return self
        require_package("prometheus_client", "TOOLPOOL_METRICS_PORT")
        try:
            self._directory, self._lock = _made_directory()
        except OSError as error:
            self._log_not_counted(error)
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry()
        registry.register(self)
        self._server = Server(*self._address, registry, self._probes)
        self._server.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._server is not None:
            self._server.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)

    def take_slot(self) -> str | None:
        """A free slot for a process that is being started; None if it is not counted."""
        if self._directory is None or self._is_full:
            return None
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)  # it may have been removed
        except OSError as error:
            self._log_not_counted(error)
            return None
        number = 0
        while (slot := f"slot{number}") in self._slots:
            number += 1
        self._slots.add(slot)
        return slot

    def environment(self, slot: str | None) -> dict[str, str]:
        """Variables for the process that has this slot."""
        return {} if slot is None else {"PROMETHEUS_MULTIPROC_DIR": str(self._directory)}

    def ended(self, slot: str | None, code: int) -> None:
        """Free the slot of a process that ended with this exit code."""
        if slot is None:
            return
        from prometheus_client.multiprocess import mark_process_dead

        with self._reading:
            mark_process_dead(slot, str(self._directory))  # type: ignore[no-untyped-call]
        self._slots.discard(slot)
        self._failures += code != 0
        if code == -signal.SIGBUS and self._directory is not None:
            # The file system is full: the next process would be killed too.
            log.warning(
                "metrics_not_counted: %s is full, which ended a worker process; make room and "
                "start the worker again, or set %s=0", self._directory.parent, PORT,
            )  # fmt: skip
            self._is_full = True

    def collect(self) -> "Iterator[Metric]":
        """Every family of toolpool, then the metrics of tools that use `prometheus_client`."""
        from prometheus_client import Metric
        from prometheus_client.multiprocess import MultiProcessCollector

        with self._reading:
            found = MultiProcessCollector.merge(self._files())  # type: ignore[no-untyped-call]
        merged: dict[str, Metric] = {metric.name: metric for metric in found}
        for family in worker_metrics.FAMILIES:
            name = family.name.removesuffix("_total")
            kind = family.kind.value if family.kind in (Kind.COUNTER, Kind.HISTOGRAM) else "gauge"
            metric = merged.pop(name, None) or Metric(name, family.text, kind)
            self._complete(metric, family)
            yield metric
        yield from merged.values()

    def _complete(self, metric: "Metric", family: Family) -> None:
        """Add the values that only the supervisor knows."""
        if family is families.BUILD:
            metric.add_sample(family.name, {"version": VERSION}, 1.0)
        elif family is worker_metrics.PROCESSES:
            metric.add_sample(family.name, {}, len(self._slots))
        elif family is worker_metrics.FAILURES:
            metric.samples = []
            metric.add_sample(family.name, {}, self._failures)
        elif family is families.STALL:
            turned_at = [sample.value for sample in metric.samples if sample.value]
            metric.samples = []
            for value in turned_at:
                metric.add_sample(family.name, {}, stall_seconds(value))

    def _files(self) -> list[str]:
        """The files of slots. Files of other programs, which tools started, are removed."""
        found = []
        for path in self._directory.glob("*.db") if self._directory is not None else ():
            if not path.stem.rpartition("_")[2].startswith("slot"):
                path.unlink()
            elif path.stat().st_size:  # an empty file is about to be written
                found.append(str(path))
        return found

    def _log_not_counted(self, error: OSError) -> None:
        log.warning(
            "metrics_not_counted: no directory for worker processes to count in (%s); set TMPDIR "
            "to one that can be written, or %s=0. Tool calls are not affected", error, PORT,
        )  # fmt: skip


def _made_directory() -> tuple[Path, int]:
    """A private directory, locked while this process lives. Raises OSError."""
    # In memory: on a full disk, writing to a memory-mapped file kills the process.
    parent = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
    directory = Path(tempfile.mkdtemp(prefix=families.DIRECTORY_PREFIX, dir=parent))
    _remove_abandoned(directory.parent)
    return directory, _locked(directory)


def _remove_abandoned(parent: Path) -> None:
    """Remove the directories of supervisors that were killed."""
    for directory in parent.glob(f"{families.DIRECTORY_PREFIX}*"):
        with suppress(OSError):  # of another user, or in use
            if time.time() - directory.stat().st_mtime > _UNLOCKED_GRACE_SECONDS:
                lock = _locked(directory)
                shutil.rmtree(directory, ignore_errors=True)
                os.close(lock)


def _locked(directory: Path) -> int:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor

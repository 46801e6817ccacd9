"""Observers of a worker: logs, metrics and traces."""

import os
import sys

from toolpool.contract import logs
from toolpool.contract.importing import require_package
from toolpool.contract.settings import Settings
from toolpool.workers.worker_observer import WorkerObserver

_metrics_log = logs.logger("metrics")  # `log` is a module of this package


def observing(settings: Settings, metrics_slot: str | None = None) -> list[WorkerObserver]:
    """The observers that the environment asks for. Raises `Misconfigured` for invalid settings.

    `metrics_slot` names the files that metrics are written to, if a supervisor serves them. Only
    the observers in use are imported.
    """
    observers: list[WorkerObserver] = []
    if os.environ.get("SENTRY_DSN"):
        require_package("sentry_sdk", "SENTRY_DSN")
        from toolpool.workers.observers.sentry import Sentry

        observers.append(Sentry(settings))
    if "opentelemetry.trace" in sys.modules:  # imported by any code that sets up an SDK
        from toolpool.workers.observers.otel import open_telemetry

        if (observer := open_telemetry(settings)) is not None:
            observers.append(observer)
    if metrics_slot is not None:
        from toolpool.workers.observers.metrics import Metrics

        try:
            observers.append(Metrics())
        except OSError as error:
            _metrics_log.warning("metrics_not_counted: %s. Tool calls are not affected", error)
    return observers

"""The Celery application of a worker, and the blocking call that runs one."""

import gc
import math
import os
import signal
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from celery import Celery
from celery.app.log import Logging
from celery.apps import worker as worker_program
from celery.platforms import SecurityWarning  # type: ignore[attr-defined]
from celery.signals import worker_shutting_down
from kombu import Connection, Queue

from toolpool.contract import logs
from toolpool.contract.redis_keys import BATCH_TASK
from toolpool.contract.server import connection
from toolpool.contract.settings import Settings
from toolpool.contract.spec import RunIn
from toolpool.workers.celery.inbox import Inbox
from toolpool.workers.celery.pool import ToolPool
from toolpool.workers.celery.queue_channels import QueueChannel, QueueChannels
from toolpool.workers.credentials.secret_sources import Source, source_of
from toolpool.workers.observers import observing
from toolpool.workers.observers.log import log
from toolpool.workers.running import forks, process_role
from toolpool.workers.service import WorkerService
from toolpool.workers.supervision.supervisor_link import Link
from toolpool.workers.tool_loading import Catalog
from toolpool.workers.worker_observer import load

lines = logs.logger("worker")

_HANGS_SECONDS = 5.0
"""How many seconds after a stop request Celery is given to stop its pool.

It usually takes one or two.
"""


class PoolLogging(Logging):
    """Leaves logging and warnings unchanged: they are configured before Celery starts."""

    def setup(self, *_: object, **__: object) -> Any:
        """Leave logging unchanged."""
        return True


class WorkerApp(Celery):
    """A Celery application with the service that its pool passes messages to."""

    service: WorkerService
    channels: Sequence[QueueChannel]
    has_own_broker: bool
    """Whether the broker is another server than the ledger's."""
    log_cls = "toolpool.workers.celery.app:PoolLogging"
    amqp_cls = "toolpool.workers.celery.inbox:GuardedAMQP"


def make_app(
    settings: Settings, service: WorkerService, channels: Sequence[QueueChannel]
) -> WorkerApp:
    """Configure Celery as a fast, lossy, duplicating transport: the ledger gives the guarantees."""
    app = WorkerApp("toolpool", set_as_current=False)
    app.service = service
    app.channels = channels
    app.has_own_broker = bool(settings.broker_url)
    app.steps["consumer"].add(QueueChannels)
    app.conf.update(
        broker_url=connection.broker_url(settings),
        broker_transport_options=_transport_options(settings),
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        # A demoted primary answers with errors: reconnect, and let running calls continue.
        broker_channel_error_retry=True,
        task_queues=[Queue(name) for name in channels[0].queues],
        task_default_queue=channels[0].queues[0],
        task_acks_late=True,
        task_reject_on_worker_lost=False,
        task_ignore_result=True,
        task_serializer="json",
        accept_content=["json"],
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
    )

    @app.task(name=BATCH_TASK, bind=False)
    def batch(signed: str) -> None:
        raise AssertionError("batches run in ToolPool, not in Celery's tracer")

    return app


def _transport_options(settings: Settings) -> dict[str, bool]:
    """kombu's copies of unacknowledged messages are off. Its read timeouts would make it stall."""
    return {"ack_emulation": False} if connection.is_redis(connection.broker_url(settings)) else {}


def _require_welcome(url: str, timeout: float) -> None:
    """Raises `BrokerUnreachable` if the broker refuses the user.

    A broker that does not answer may still be starting.
    """
    with Connection(url, connect_timeout=timeout) as broker:
        try:
            broker.ensure_connection(max_retries=1, interval_start=0, timeout=math.ceil(timeout))
        except Exception as error:  # noqa: BLE001 - each kind of broker has its own errors
            if connection.is_refusal(error):
                raise connection.broker_fault(url, error) from None


def run_worker(
    settings: Settings,
    *,
    tools: Sequence[str] = (),
    run_in: Sequence[RunIn] = (RunIn.LOOP, RunIn.THREAD, RunIn.PROCESS),
    queues: Sequence[str] = ("default",),
    boot: str | None = None,
    link: Link | None = None,
    observers: Sequence[str] = (),
    metrics_slot: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> int:
    """Run a worker until it is told to stop; returns its exit code. Raises `Misconfigured`.

    `boot` is the id that its supervisor uses, `link` the connection to the supervisor. `observers`
    are `module:name`. `metrics_slot` names the files that metrics are written to. `variables` hold
    secrets of tools; by default those of this process.
    """
    process_role.mark()
    url = connection.broker_url(settings)  # raises before anything is started
    if settings.broker_url:
        _require_welcome(url, settings.connect_timeout)
    forks.refuse()  # before tools are imported, since some copy the function
    if metrics_slot is not None:
        from toolpool.workers.observers.metrics import count_in_slot

        count_in_slot(metrics_slot)  # before tools are imported, since some have metrics
    catalog = Catalog.load(tools)
    watching = load(observers)
    secrets = source_of(settings.secrets, variables)
    logs.restore()  # imported modules may have configured logging
    service = WorkerService(
        settings,
        catalog=catalog,
        tools=tools,
        run_in=run_in,
        queues=queues,
        boot=boot,
        link=link,
        observers=[log(), *observing(settings, metrics_slot), *watching],
        secrets=secrets,
    )
    _say_of_secrets(secrets, catalog)
    # Until Celery has its own handlers, TERM must not leave the lease and the children behind.
    signal.signal(signal.SIGTERM, _exit_at_once)
    _silence_celery()
    try:
        service.start()
        app = make_app(settings, service, service.channels)
        worker = app.Worker(
            pool_cls=ToolPool,
            consumer_cls=Inbox,
            concurrency=service.channels[0].window,
            hostname=f"toolpool@{service.id}",
            loglevel="WARNING",
            quiet=True,
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
        )
        _stop_in_time(service)
        gc.collect()
        gc.freeze()  # exempt the loaded modules from garbage collection
        worker.start()
        return int(worker.exitcode or 0)
    finally:
        service.stop()


def _say_of_secrets(source: Source | None, catalog: Catalog) -> None:
    needy = sorted(tool.name for tool in catalog.tools.values() if tool.secrets)
    if source is not None:
        lines.info("secrets_from source=%s tools=%s", source.name, ",".join(needy))
    elif needy:
        lines.warning(
            "secrets_from_nowhere tools=%s: their calls are not run; set TOOLPOOL_SECRETS",
            ",".join(needy),
        )


def _silence_celery() -> None:
    """Suppress Celery's messages that duplicate ours."""
    # Messages are signed JSON, so Celery's warning about pickle as root does not apply.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    worker_program.safe_say = lambda *_: None  # type: ignore[attr-defined]


def _stop_in_time(service: WorkerService) -> None:
    """Stop `service` even if Celery's thread hangs, for example on a frozen server."""

    def watch() -> None:
        service.leaving.wait()
        if not service.stopping.wait(_HANGS_SECONDS):
            lines.error("stop_forced: Celery's thread hangs")
            service.stop()
            logs.flush()
            os._exit(0)

    def begin(**_: object) -> None:
        service.leaving.set()

    worker_shutting_down.connect(begin, weak=False)
    threading.Thread(target=watch, name="stop", daemon=True).start()


def _exit_at_once(number: int, frame: object) -> None:
    raise SystemExit(0)

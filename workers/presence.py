"""A worker's presence: its lease, renewed from a thread and connection of its own, and its catalog.

The lease stops when the event loop stalls, so that a worker that cannot run calls is seen as gone.
"""

import logging
import threading
import time
from collections.abc import Callable

import redis
from redis.exceptions import RedisError

from contract.envelope import CatalogEntry, Envelope, Offers, WorkerLease
from contract.names import Names
from contract.settings import Settings
from contract.spec import ToolSpec
from contract.version import VERSION

log = logging.getLogger("toolpool.presence")

_WORKERS_KEPT_SECONDS = 86_400
_ANSWERS_ABOUT_LEASE = 4
_RETRY_SECONDS = 0.25
"""After a renewal that failed: without a fresh lease nothing is started."""


class Presence:
    """Keeps `worker:{id}` alive and the worker's tools in the catalog.

    `loop_lag` says how many seconds ago the event loop last turned.
    """

    def __init__(
        self,
        *,
        client: "redis.Redis",
        settings: Settings,
        envelope: Envelope,
        describe: Callable[[], WorkerLease],
        specs: list[ToolSpec],
        loop_lag: Callable[[], float],
    ) -> None:
        self._client = client
        self._settings = settings
        self._envelope = envelope
        self._describe = describe
        self._worker = describe().id
        self._specs = specs
        self._loop_lag = loop_lag
        self._names = Names(settings.key_prefix)
        self.epoch = ""
        """Which server, with which data, confirmed the lease last."""
        self.renewed_at = float("-inf")
        """When the server last confirmed the lease, on the monotonic clock."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def start(self) -> None:
        """Publish the catalog and take the lease, then keep both. Raises RedisError at first."""
        self._publish()
        self._renew()
        self._thread.start()

    def stop(self) -> None:
        """Drop the lease. The catalog stays, so that calls for these tools are still queued."""
        self._stopping.set()
        self._thread.join(self._settings.connect_timeout)
        try:
            self._client.delete(self._names.worker(self._worker), self._names.offers(self._worker))
            self._client.zrem(self._names.workers, self._worker)
        except (RedisError, OSError) as error:
            log.info("lease_not_dropped: %s", error)

    def _keep(self) -> None:
        pause = self._settings.lease_renewed
        while not self._stopping.wait(pause):
            pause = self._settings.lease_renewed
            lag = self._loop_lag()
            if lag > self._settings.lease_gone:
                log.error("lease_withheld: the event loop has not turned for %.1f s", lag)
                continue
            try:
                if not self._renew():
                    self._publish()
            except (RedisError, OSError) as error:
                log.warning("lease_not_renewed: %s", error)
                pause = min(pause, _RETRY_SECONDS)

    def _renew(self) -> bool:
        """Whether the catalog still has our tools."""
        asked_at = time.monotonic()
        body = self._envelope.encode_lease(self._describe())
        pipeline = self._client.pipeline(transaction=False)
        pipeline.info("server")
        pipeline.get(self._names.epoch)
        pipeline.set(
            self._names.worker(self._worker), body, px=int(self._settings.lease_gone * 1000)
        )
        pipeline.zadd(self._names.workers, {self._worker: time.time()})
        pipeline.expire(self._names.workers, _WORKERS_KEPT_SECONDS)
        pipeline.zremrangebyscore(self._names.workers, 0, time.time() - _WORKERS_KEPT_SECONDS)
        # Not only the catalog's version: after a loss of data another worker may be back before us.
        pipeline.exists(self._names.catalog_version)
        for spec in self._specs[:1]:
            pipeline.hexists(self._names.catalog, self._names.catalog_field(spec.name, spec.digest))
        info, random, *answers = pipeline.execute()
        self.epoch = f"{info['run_id']}.{random!r}"
        self.renewed_at = asked_at  # after the epoch: whoever sees the one knows the other
        return all(answers[_ANSWERS_ABOUT_LEASE:])

    def _publish(self) -> None:
        publish(
            self._client,
            self._specs,
            envelope=self._envelope,
            settings=self._settings,
        )
        offers = Offers(worker=self._worker, tools={spec.name: spec.digest for spec in self._specs})
        self._client.set(
            self._names.offers(self._worker),
            self._envelope.encode_offers(offers),
            px=int(self._settings.catalog_kept * 1000),
        )


def publish(
    client: "redis.Redis", specs: list[ToolSpec], *, envelope: Envelope, settings: Settings
) -> None:
    """Put specs into the catalog for `settings.catalog_kept` seconds. Raises RedisError."""
    names = Names(settings.key_prefix)
    now = time.time()
    kept_ms = int(settings.catalog_kept * 1000)
    pipeline = client.pipeline(transaction=True)
    for spec in specs:
        entry = CatalogEntry(spec=spec, published_at=now, version=VERSION)
        field = names.catalog_field(spec.name, spec.digest)
        pipeline.hset(names.catalog, field, envelope.encode_entry(entry))
    pipeline.pexpire(names.catalog, kept_ms)
    pipeline.incr(names.catalog_version)
    pipeline.pexpire(names.catalog_version, kept_ms)
    pipeline.execute()

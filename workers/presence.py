"""A worker's lease, renewed from its own thread and connection.

Renewals stop if the event loop stalls, so that a worker that cannot run calls counts as lost.
"""

import itertools
import threading
import time
from collections.abc import Callable

import msgspec
import redis
from redis.exceptions import RedisError

from toolpool.contract import logs
from toolpool.contract.envelope import ENDED_SAID_SECONDS, Envelope, WorkerLease
from toolpool.contract.fleet_clock import DOUBT_SECONDS, FleetClock, elapsed, fleet_time
from toolpool.contract.ledger.lua_scripts import LuaScript, SeenEpochs, script
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server import connection
from toolpool.contract.settings import Settings
from toolpool.contract.spec import CATALOG_TTL_SECONDS
from toolpool.workers.catalog_publisher import CatalogPublisher
from toolpool.workers.liveness_channel import LivenessChannel
from toolpool.workers.worker_observer import WorkerObservers

log = logs.logger("presence")

_WORKERS_KEPT_SECONDS = 86_400
_ALIVE_SECONDS = 55.0
_WATCHED_INTERVAL_SECONDS = 0.6
_RETRY_SECONDS = 0.25
"""The pause after a failed renewal in seconds.

It is short because no call starts without a fresh lease.
"""


class Presence:
    """Renews `worker:{id}` and keeps the worker's tools in the catalog.

    `loop_lag` returns the seconds since the event loop last turned.
    """

    def __init__(
        self,
        *,
        client: "redis.Redis",
        epochs: SeenEpochs,
        settings: Settings,
        envelope: Envelope,
        describe: Callable[[], WorkerLease],
        catalog_publisher: CatalogPublisher,
        loop_lag: Callable[[], float],
        observers: WorkerObservers,
    ) -> None:
        self._client = client
        self._epochs = epochs
        self._settings = settings
        self._envelope = envelope
        self._describe = describe
        self._worker = describe().id
        self._catalog_publisher = catalog_publisher
        self._loop_lag = loop_lag
        self._observers = observers
        self._is_lost = False
        self._alive_at = 0.0
        self._names = RedisKeys(settings.key_prefix)
        self._beats = itertools.count(1)
        self._began = elapsed()
        self._beat = client.register_script(script(LuaScript.BEAT)[0])
        self.clock = FleetClock(
            connection.keyring(settings),
            settings.key_prefix,
            forgets_after=settings.dedup_ttl,
        )
        self.epoch = ""
        """The server epoch at the last renewal."""
        self.renewed_at = float("-inf")
        """When the server last confirmed the lease, on the monotonic clock."""
        self._stopping = threading.Event()
        self._is_due = threading.Event()
        """Set to renew the lease before its interval is over."""
        self._channel = LivenessChannel(
            client, self._names.liveness(self._worker), self._is_due.set
        )
        self._is_counted = False
        """Whether the server that has the lease counted a subscriber at the last renewal."""
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def start(self) -> None:
        """Publish the tools and take the lease, then renew both in the background.

        Raises RedisError if the first attempt fails.
        """
        # Tools first: a dispatcher that sees the worker must find its tools.
        self._catalog_publisher.stock(b"", fleet_time(self._client, self._settings))
        self._renew()
        self._thread.start()
        self._channel.start()

    def stop(self, *, nothing_runs: bool) -> None:
        """Mark the lease as ended, if nothing runs any more; else it expires, or its supervisor
        marks it once the process has ended.

        The catalog stays: calls are queued for its tools.
        """
        self._stopping.set()
        self._is_due.set()
        self._channel.stop()
        self._thread.join(self._settings.connect_timeout)
        if not nothing_runs:
            return
        try:
            name = self._names.worker(self._worker)
            self._client.set(name, self._lease(self._describe(), ended=True), ex=ENDED_SAID_SECONDS)
        except (RedisError, OSError) as error:
            log.info("lease_end_not_written: %s", error)

    def _keep(self) -> None:
        pause = self._interval
        while True:
            self._is_due.wait(pause)
            self._is_due.clear()
            if self._stopping.is_set():
                return
            pause = self._interval
            lag = self._loop_lag()
            if lag > self._settings.lease_ttl:
                log.error("lease_withheld: the event loop has not turned for %.1f s", lag)
                continue
            try:
                version = self._renew()
                self._catalog_publisher.stock(version, self.clock.time())
                self._report_alive()
            except (RedisError, OSError) as error:
                self._lost(error)
                pause = min(pause, _RETRY_SECONDS)

    @property
    def is_confirmed(self) -> bool:
        """Whether the lease was renewed since the liveness channel last closed.

        Until then, dispatchers may think that this worker is dead: it must not start calls.
        """
        return self.renewed_at > self._channel.closed_at

    @property
    def _interval(self) -> float:
        """The seconds until the next renewal.

        Shorter while dispatchers watch the channel: a worker may not learn that it was closed, and
        only a renewal shows that it is alive.
        """
        most = self._settings.lease_interval
        return min(most, _WATCHED_INTERVAL_SECONDS) if self._is_counted else most

    def _report_alive(self) -> None:
        """Notify observers once a minute, in one worker of the pool."""
        if self._observers.listeners["pool_alive"] and time.monotonic() >= self._alive_at:
            self._alive_at = time.monotonic() + _ALIVE_SECONDS
            if self._client.set(self._names.alive, self._worker, nx=True, ex=int(_ALIVE_SECONDS)):
                self._observers.notify("pool_alive", self._settings.key_prefix)

    def _lost(self, error: Exception) -> None:
        if not self._is_lost:
            self._is_lost = True
            log.warning("server_lost: the lease is not renewed: %s", error, extra=logs.CHANGE)
            self._observers.notify("server_lost", str(error))

    def _back(self, confirmed_before: float) -> None:
        if self._is_lost:
            self._is_lost = False
            seconds = time.monotonic() - confirmed_before
            log.warning(
                "server_back: the lease is renewed again after %.1f s", seconds, extra=logs.CHANGE
            )
            self._observers.notify("server_back", seconds)

    def _lease(self, described: WorkerLease, *, ended: bool = False) -> bytes:
        lease = msgspec.structs.replace(
            described,
            beat=next(self._beats),
            ended=ended,
            subscribed=self._channel.is_open and self._is_counted,
            started_at=self.clock.time() - (elapsed() - self._began),
        )
        return self._envelope.encode(lease)

    def _renew(self) -> bytes:
        """Renew the lease; returns the catalog's version."""
        described = self._describe()
        names = self._names
        while True:
            renewed_at, asked_at = time.monotonic(), elapsed()
            epoch, now_ms, clock, version, subscribers = self._beat(
                keys=[
                    names.epoch,
                    names.worker(self._worker),
                    names.workers,
                    names.catalog_version,
                    names.toolsets,
                    names.catalog,
                ],
                args=[
                    self._epochs.candidate,
                    self._worker,
                    self._lease(described),
                    int(self._settings.lease_ttl * 1000),
                    _WORKERS_KEPT_SECONDS,
                    "" if described.leaving else described.toolset,
                    CATALOG_TTL_SECONDS,
                    *self.clock.agreement(),
                    names.liveness(self._worker),
                ],
            )
            if self.clock.read(int(now_ms) / 1000, clock, asked_at, elapsed()):
                log.warning("server_clock_jumped")
            if self.clock.is_doubtful:
                time.sleep(DOUBT_SECONDS)
            elif not self.clock.is_disputed:
                break
        self.epoch = epoch.decode(errors="replace")
        self._epochs.saw(self.epoch)
        confirmed_before = self.renewed_at
        self.renewed_at = renewed_at  # after the epoch: readers of `renewed_at` see it
        self._back(confirmed_before)
        self._count(int(subscribers))
        return bytes(version)

    def _count(self, subscribers: int) -> None:
        """Renew the lease again if it said the wrong thing about the subscription."""
        is_counted = subscribers > 0
        if is_counted is not self._is_counted:
            self._is_counted = is_counted
            self._is_due.set()
        if subscribers == 0:  # after a failover, it may be subscribed at the old server
            self._channel.reopen()

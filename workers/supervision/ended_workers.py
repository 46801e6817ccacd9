"""Tells dispatchers which workers have ended, so that they need not wait for leases to expire."""

import socket
import time

from redis.exceptions import RedisError

from toolpool.contract import logs
from toolpool.contract.envelope import ENDED_SAID_SECONDS, Envelope, WorkerLease
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server import connection
from toolpool.contract.settings import Settings
from toolpool.contract.version import VERSION

log = logs.logger("supervise")

_GIVEN_UP_SECONDS = 300.0
_PATIENCE_SECONDS = 1.0
_PAUSE_SECONDS = 1.0


class EndedWorkers:
    """Workers whose processes have ended, until this is written to the server."""

    def __init__(self, settings: Settings) -> None:
        # A supervisor must not wait long for a server that is unavailable.
        self._settings = settings.model_copy(update={"connect_timeout": _PATIENCE_SECONDS})
        self._names = RedisKeys(settings.key_prefix)
        self._envelope = Envelope(connection.keyring(settings))
        self._unreported: dict[str, float] = {}
        self._try_at = 0.0

    def note(self, worker: str) -> None:
        """Record that the process of this worker has ended, and with it everything that it ran."""
        self._unreported[worker] = time.monotonic()

    def report(self) -> None:
        """Replace the workers' leases on the server by a report of their end.

        If that fails, it is tried again later.
        """
        now = time.monotonic()
        if not self._unreported or now < self._try_at:
            return
        self._try_at = now + _PAUSE_SECONDS
        try:
            with connection.open_sync(self._settings) as client:
                pipeline = client.pipeline(transaction=False)
                for worker in self._unreported:
                    name = self._names.worker(worker)
                    pipeline.set(name, self._lease(worker), ex=ENDED_SAID_SECONDS)
                pipeline.execute()
        except (RedisError, OSError) as error:
            log.info("worker_ends_not_reported count=%d: %s", len(self._unreported), error)
            for worker, ended_at in list(self._unreported.items()):
                if now - ended_at > _GIVEN_UP_SECONDS:  # their leases expired long ago
                    del self._unreported[worker]
        else:
            self._unreported.clear()

    def _lease(self, worker: str) -> bytes:
        lease = WorkerLease(
            id=worker,
            host=socket.gethostname(),
            pid=0,
            version=VERSION,
            started_at=0.0,
            slots={},
            ended=True,
        )
        return self._envelope.encode(lease)

"""Tells dispatchers which workers have ended: no need to wait for leases that nobody renews."""

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
    """Workers whose processes were seen to end, until the server knows it."""

    def __init__(self, settings: Settings) -> None:
        # A supervisor has other things to do than to wait for a server that is away.
        self._settings = settings.model_copy(update={"connect_timeout": _PATIENCE_SECONDS})
        self._names = RedisKeys(settings.key_prefix)
        self._envelope = Envelope(connection.keyring(settings))
        self._untold: dict[str, float] = {}
        self._try_at = 0.0

    def note(self, worker: str) -> None:
        """The process of this worker is gone, with all that it ran."""
        self._untold[worker] = time.monotonic()

    def tell(self) -> None:
        """Say it, in place of their leases; what the server does not take is said again."""
        now = time.monotonic()
        if not self._untold or now < self._try_at:
            return
        self._try_at = now + _PAUSE_SECONDS
        try:
            with connection.open_sync(self._settings) as client:
                pipeline = client.pipeline(transaction=False)
                for worker in self._untold:
                    name = self._names.worker(worker)
                    pipeline.set(name, self._lease(worker), ex=ENDED_SAID_SECONDS)
                pipeline.execute()
        except (RedisError, OSError) as error:
            log.info("ends_of_workers_not_told count=%d: %s", len(self._untold), error)
            for worker, ended_at in list(self._untold.items()):
                if now - ended_at > _GIVEN_UP_SECONDS:  # their leases have long been gone
                    del self._untold[worker]
        else:
            self._untold.clear()

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
        return self._envelope.encode_lease(lease)

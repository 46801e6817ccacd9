"""Tells dispatchers which workers have ended: no need to wait for leases that nobody renews."""

import logging
import socket
import time

import redis
from redis.exceptions import RedisError

from contract.envelope import Envelope, WorkerLease
from contract.names import Names
from contract.version import VERSION

log = logging.getLogger("toolpool.supervise")

_SAID_SECONDS = 60
_GIVEN_UP_SECONDS = 300.0


class EndedWorkers:
    """Workers whose processes were seen to end, until the server knows it."""

    def __init__(self, names: Names, envelope: Envelope) -> None:
        self._names = names
        self._envelope = envelope
        self._untold: dict[str, float] = {}

    def note(self, worker: str) -> None:
        """The process of this worker is gone, with all that it ran."""
        self._untold[worker] = time.monotonic()

    def tell(self, client: "redis.Redis") -> None:
        """Say it, in place of the workers' leases; what the server does not take is said again."""
        for worker, ended_at in list(self._untold.items()):
            lease = WorkerLease(
                id=worker,
                host=socket.gethostname(),
                pid=0,
                version=VERSION,
                started_at=0.0,
                slots={},
                ended=True,
            )
            body = self._envelope.encode_lease(lease)
            try:
                client.set(self._names.worker(worker), body, ex=_SAID_SECONDS)
            except (RedisError, OSError) as error:
                log.info("end_of_worker_not_told id=%s: %s", worker, error)
                if time.monotonic() - ended_at < _GIVEN_UP_SECONDS:
                    continue
            del self._untold[worker]

"""Reads messages, and drops foreign and late ones."""

import time
from collections.abc import Callable

from toolpool.contract import logs
from toolpool.contract.envelope import Batch, Envelope
from toolpool.contract.errors import MessageRejected
from toolpool.workers.worker_observer import WorkerObservers

log = logs.logger("message_reader")

_LATE_SECONDS = 5.0
"""The tolerance in seconds for clock differences after a message's end."""


class MessageReader:
    """Decodes and counts messages. Not thread-safe."""

    def __init__(self, envelope: Envelope, observers: WorkerObservers) -> None:
        self._envelope = envelope
        self._observers = observers
        self.server_time: Callable[[], float] = time.time
        """The server's clock, Unix time in seconds."""
        self.received = 0
        """The number of messages that reached this worker, including invalid ones."""

    def read(self, data: bytes) -> Batch | None:
        """The batch of a message; None if it was dropped."""
        self.received += 1
        try:
            batch = self._envelope.decode_batch(data)
        except MessageRejected as error:
            self.refuse(error.reason, str(error))
            return None
        if batch.ends_at and self.server_time() > batch.ends_at + _LATE_SECONDS:
            self.refuse("late", "its calls have timed out")
            return None
        return batch

    def refuse(self, reason: str, why: str) -> None:
        """Log a dropped message. `why` is the same for many: repeats are not logged one by one."""
        self._observers.notify("refused", reason)
        log.warning("message_rejected reason=%s: %s", reason, why)

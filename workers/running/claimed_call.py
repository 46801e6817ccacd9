"""An executor's state: the messages it received, the calls it claimed, and what it remembers."""

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from toolpool.contract.envelope import Batch, CallMessage
from toolpool.contract.rates import Limit
from toolpool.contract.spec import RunIn
from toolpool.workers.worker_observer import RunFacts


@dataclass(slots=True, eq=False)
class Delivery:
    """One message. It is acknowledged when its last call is claimed or refused."""

    batch: Batch
    undecided: int
    acknowledge: Callable[[], None]
    size: int = 0
    """The size of the message in bytes."""

    def decided(self, count: int = 1) -> None:
        """Count calls of the message that were claimed or refused."""
        self.undecided -= count
        if self.undecided == 0:
            self.acknowledge()


class MessageAhead:
    """A message that was accepted before Celery has noted it.

    It is acknowledged once its calls are decided and Celery has noted it.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._lock = threading.Lock()
        self._is_decided = False
        self._acknowledge: Callable[[], None] | None = None
        self._is_handled = threading.Lock()
        self._is_handled.acquire()

    def acknowledge(self) -> None:
        """Called on the event loop's thread when its calls are decided."""
        with self._lock:
            self._is_decided, acknowledge = True, self._acknowledge
        if acknowledge is not None:
            acknowledge()
        self._turn(_TURNS_OF_SHORT_CALL)

    def _turn(self, left: int) -> None:
        if left:
            asyncio.get_running_loop().call_soon(self._turn, left - 1)
        else:
            self._is_handled.release()

    def wait(self, seconds: float) -> None:
        """Wait until its calls are decided, and those that take no time have ended."""
        self._is_handled.acquire(timeout=seconds)

    def noted(self, acknowledge: Callable[[], None]) -> None:
        """Called on Celery's thread when it has noted the message."""
        with self._lock:
            self._acknowledge, is_decided = acknowledge, self._is_decided
        if is_decided:
            acknowledge()


class ClaimedCall(msgspec.Struct, eq=False):
    """A claimed call in a slot for `run_in`. Times are on the monotonic clock.

    `enter_by` is until when a call under a limit may enter its tool. `overdue_at` is when the call
    is answered even if its tool cannot be stopped; `answered` says that this was done.
    `stop_requested_at` is when it was first told to stop; `has_ended` says that its outcome is
    known. `begun_at` is when its tool was entered, or when it was sent to a child process;
    `has_entered` says that the tool was entered. A call that was `given_up` before it began goes to
    another worker.
    """

    run_in: RunIn
    call: CallMessage
    batch: Batch
    message_bytes: int
    """The size of the message that brought it."""
    claim_nonce: str
    limits: tuple[Limit, ...]
    deadline: float
    enter_by: float
    overdue_at: float
    claimed_at: float
    task: asyncio.Task[None] | None = None
    is_under_way: bool = False
    begun_at: float | None = None
    has_entered: bool = False
    given_up: bool = False
    answered: bool = False
    has_ended: bool = False
    stop_requested_at: float | None = None
    facts: RunFacts | None = None
    """The facts that observers got at its start."""

    @property
    def begun(self) -> bool:
        """Whether its tool was entered, or it was sent to a child process."""
        return self.begun_at is not None

    @property
    def seconds(self) -> float:
        """Seconds since the call began; 0 if it did not begin."""
        return 0.0 if self.begun_at is None else time.monotonic() - self.begun_at


_TURNS_OF_SHORT_CALL = 3
"""Turns of the loop from a claim until a tool that does nothing is settled."""
_CANCELS_SECONDS = 30.0
_CANCELS_AT_MOST = 1_000
_ENTERED_AT_MOST = 50_000


class EarlyCancels:
    """Cancels of calls that do not run here; their claim may still be in flight."""

    def __init__(self) -> None:
        self._came_at: dict[str, float] = {}

    def note(self, key: str) -> None:
        """Record a cancel."""
        now = time.monotonic()
        self._came_at[key] = now
        for known, came_at in list(self._came_at.items()):  # oldest first
            if now - came_at < _CANCELS_SECONDS and len(self._came_at) <= _CANCELS_AT_MOST:
                break
            del self._came_at[known]

    def take(self, key: str) -> bool:
        """Whether a cancel came during the claim. An older cancel was for another run."""
        came_at = self._came_at.pop(key, None)
        return came_at is not None and time.monotonic() - came_at < _CANCELS_SECONDS


class StartedAttempts:
    """Attempts started here of calls that may not run twice, oldest first.

    They prevent a second start on this worker if a record is lost or forged.
    """

    def __init__(self) -> None:
        self._attempts: OrderedDict[tuple[str, int], None] = OrderedDict()

    def again(self, call: CallMessage) -> bool:
        """Whether this attempt was started here before. Records the attempt as started."""
        if call.rerunnable:
            return False
        attempt = (call.key, call.attempt)
        if attempt in self._attempts:
            return True
        self._attempts[attempt] = None
        if len(self._attempts) > _ENTERED_AT_MOST:
            self._attempts.popitem(last=False)
        return False

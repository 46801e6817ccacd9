"""An executor's state: the messages it received and the calls it claimed."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from toolpool.contract.envelope import Batch, CallMessage
from toolpool.contract.rates import Limit
from toolpool.contract.spec import RunIn
from toolpool.workers.worker_observer import RunFacts


@dataclass(slots=True, eq=False)
class Delivery:
    """One message; acknowledged when its last call is claimed or refused."""

    batch: Batch
    undecided: int
    acknowledge: Callable[[], None]
    size: int = 0
    """In bytes."""

    def decided(self, count: int = 1) -> None:
        """Count calls of the message that were claimed or refused."""
        self.undecided -= count
        if self.undecided == 0:
            self.acknowledge()


@dataclass(slots=True, eq=False)
class ClaimedCall:
    """A claimed call in a slot for `run_in`. Times are on the monotonic clock.

    `overdue_at` is when the call is answered even if its tool cannot be stopped; `answered` says
    that it was. `stop_requested_at` is when it was first told to stop; `has_ended` says that its
    outcome is known. `begun_at` is when its tool was entered, or it was sent to a child process;
    `has_entered` says that the tool was. A call that was `given_up` before it began goes to another
    worker.
    """

    run_in: RunIn
    call: CallMessage
    delivery: Delivery
    claim_nonce: str
    limits: tuple[Limit, ...]
    deadline: float
    overdue_at: float
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
    def batch(self) -> Batch:
        """The batch of the call."""
        return self.delivery.batch

    @property
    def begun(self) -> bool:
        """Whether its tool was entered, or it was sent to a child process."""
        return self.begun_at is not None

    @property
    def seconds(self) -> float:
        """Seconds since it began; 0 if it did not."""
        return 0.0 if self.begun_at is None else time.monotonic() - self.begun_at

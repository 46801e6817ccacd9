"""A call that was accepted and has no outcome yet."""

import asyncio
import time
from dataclasses import dataclass, field
from enum import Enum

from contract.call import ToolCall
from contract.envelope import CallMessage
from contract.ledger import Opening
from contract.outcome import Outcome
from contract.spec import ToolSpec


class Stage(Enum):
    """How far a pending call has come."""

    NEW = "new"
    WAITING = "waiting"  # in the pump: nothing was ever sent
    PUBLISHING = "publishing"  # on its way to the server, not confirmed
    QUEUED = "queued"
    RUNNING = "running"


@dataclass(slots=True, eq=False)
class Pending:
    """Times are on the monotonic clock: `start_by` ends the queue wait, `deadline` everything."""

    call: ToolCall
    spec: ToolSpec
    message: CallMessage
    queue: str
    line: str
    size: int
    start_by: float
    deadline: float
    answer: "asyncio.Future[Outcome]"
    keep: float
    began: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    stage: Stage = Stage.NEW
    epoch: str = ""
    worker: str = ""
    batch: str = ""
    timer: asyncio.TimerHandle | None = None
    askers: int = 1

    @property
    def key(self) -> str:
        """The name of its ledger record."""
        return self.message.key

    @property
    def is_open(self) -> bool:
        """Whether nobody has answered it yet."""
        return not self.answer.done()

    def opening(self, now: float) -> Opening:
        """What the ledger notes about it."""
        deadline = max(0.001, self.deadline - now)
        return Opening(
            key=self.key,
            attempt=self.message.attempt,
            rerunnable=self.message.rerunnable,
            wait=max(0.001, self.start_by - now),
            deadline=deadline,
            keep=deadline + self.keep,
        )

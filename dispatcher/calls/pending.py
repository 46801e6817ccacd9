"""A call that was accepted and has no outcome yet."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import msgspec

from toolpool.contract.call import ToolCall
from toolpool.contract.envelope import CallMessage
from toolpool.contract.ledger.client import Opening
from toolpool.contract.outcome import Executed, Outcome
from toolpool.contract.spec import ToolSpec
from toolpool.dispatcher.observe import CallFacts

_CLOCK_MARGIN_SECONDS = 0.25
"""How exactly the server's clock is known here."""


def root_of(key: str) -> str:
    """What the keys of a call and of its retries have in common."""
    return key.partition(".")[0]


def retry_key(root: str, number: int) -> str:
    """The record of a call's retry, counted from 1; of the call itself for 0."""
    return f"{root}.{number}" if number else root


class Stage(Enum):
    """How far a pending call has come."""

    NEW = "new"
    WAITING = "waiting"  # in the pump: nothing was ever sent
    PUBLISHING = "publishing"  # on its way to the server, not confirmed
    QUEUED = "queued"
    RUNNING = "running"
    STRANDED = "stranded"  # published, but nobody may start it any more


class Waiter(Protocol):
    """Whatever is told that a call was answered."""

    def release(self) -> None:
        """The call was answered."""
        ...


class Latch:
    """Opens when every call it holds is answered: one future for a whole stage of a turn."""

    __slots__ = ("_left", "_open")

    def __init__(self, pendings: "Sequence[Pending]") -> None:
        self._left = 0
        self._open: asyncio.Future[None] | None = None
        for pending in pendings:
            if pending.is_open:
                pending.latches.append(self)
                self._left += 1

    def release(self) -> None:
        """One call was answered."""
        self._left -= 1
        if self._left == 0 and self._open is not None and not self._open.done():
            self._open.set_result(None)

    async def wait(self) -> None:
        """Return when all are answered; cancelling it touches none of them."""
        if self._left:
            self._open = asyncio.get_running_loop().create_future()
            await self._open


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
    keep: float
    began: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    outcome: Outcome | None = None
    latches: "list[Waiter]" = field(default_factory=list)
    stage: Stage = Stage.NEW
    epoch: str = ""
    worker: str = ""
    published_at: float = 0.0
    republished: int = 0
    in_background: bool = False
    retries: int = 0
    ran_before: Executed | None = None
    again: bool = False
    """Whether it may have been asked before, by a dispatcher that is no more."""
    accepted_in: str = ""
    """The server's epoch when it was accepted."""
    is_attached: bool = False
    """Whether another dispatcher asked for it first."""
    is_unwanted: bool = False
    is_news: bool = True
    """Whether its outcome is not one that had been stored before this dispatcher asked."""
    timer: asyncio.TimerHandle | None = None
    work: asyncio.Task[None] | None = None
    """What answers it, where this dispatcher does so itself."""
    root: str = field(init=False)
    """The same for all retries of a call: the name it is asked again by (R18)."""

    def __post_init__(self) -> None:
        self.root = root_of(self.message.key)

    @property
    def key(self) -> str:
        """The name of its ledger record."""
        return self.message.key

    @property
    def facts(self) -> CallFacts:
        """Which call it is, for observers."""
        message = self.message
        return CallFacts(
            call_id=self.call.id,
            tool=self.call.name,
            session=message.session,
            turn=message.turn,
            key=self.root,
            queue=self.queue,
            attempt=message.attempt,
            retry=self.retries,
        )

    @property
    def was_started(self) -> bool:
        """Whether an attempt before this one was started, so that its queue wait is behind it."""
        return self.message.attempt > 1

    @property
    def may_be_known(self) -> bool:
        """Whether the ledger may have it although this dispatcher has not sent it (R18)."""
        return self.message.session is not None and self.message.turn is not None

    @property
    def is_unsent(self) -> bool:
        """Whether this dispatcher has certainly not sent it, so that only another may have."""
        return self.stage in (Stage.NEW, Stage.WAITING) and not self.epoch

    @property
    def nobody_ran_it(self) -> bool:
        """Whether it is known that nobody can have, where the server has no record of it."""
        return self.is_unsent and (self.message.rerunnable or not self.again)

    @property
    def is_open(self) -> bool:
        """Whether nobody has answered it yet."""
        return self.outcome is None

    def start_again(self, *, start_by: float) -> None:
        """Become the next retry of the same call: a new record, nothing sent yet."""
        self.retries += 1
        key = retry_key(self.root, self.retries)
        self.message = msgspec.structs.replace(self.message, key=key, attempt=1)
        self.stage, self.start_by = Stage.NEW, start_by
        self.accepted_in, self.epoch, self.again = self.epoch or self.accepted_in, "", False
        self.worker, self.republished, self.is_news, self.is_attached = "", 0, True, False

    def answer(self, outcome: Outcome) -> None:
        """Note the outcome and wake whoever waits for it. To be called once."""
        self.outcome = outcome
        self.ended = time.monotonic()
        for latch in self.latches:
            latch.release()

    async def wait(self, seconds: float) -> None:
        """Return when it is answered, or after `seconds`."""
        latch = Latch([self])
        try:
            async with asyncio.timeout(seconds):
                await latch.wait()
        except TimeoutError:
            pass
        finally:
            if latch in self.latches:
                self.latches.remove(latch)

    def opening(self, now: float, server_now: float) -> Opening:
        """What the ledger notes about it; `server_now` is the server's time."""
        deadline = max(0.001, self.deadline - now)
        return Opening(
            key=self.key,
            attempt=self.message.attempt,
            rerunnable=self.message.rerunnable,
            wait=max(0.001, self.start_by - now),
            deadline=deadline,
            keep=deadline + self.keep,
            asked_at=server_now - (now - self.began) - _CLOCK_MARGIN_SECONDS,
            again=self.again,
        )

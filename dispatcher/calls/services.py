"""What the parts that move calls are given: the services they share, and the calls themselves."""

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from toolpool.contract.envelope import Envelope, Progress, Question
from toolpool.contract.outcome import Outcome
from toolpool.contract.rates import Limit
from toolpool.contract.settings import Settings
from toolpool.dispatcher.calls.pending import Pending
from toolpool.dispatcher.observer import Observers
from toolpool.dispatcher.transports.base import Transport


@dataclass(frozen=True, slots=True)
class Services:
    """One dispatcher's, for all of its parts."""

    transport: Transport
    envelope: Envelope
    settings: Settings
    observers: Observers


class Calls(Protocol):
    """The calls of one dispatcher, told by its parts what they learn of them."""

    def find(self, key: str) -> Pending | None:
        """The open call of this record; None for one of an earlier retry."""
        ...

    def all_open(self) -> Collection[Pending]:
        """Every call that has no answer yet."""
        ...

    def resolve(self, pending: Pending, outcome: Outcome) -> None:
        """Answer a call; only the first answer counts."""
        ...

    def refuse(self, pending: Pending, outcome: Outcome) -> None:
        """Answer a call that is not sent, or not started any more, by what the ledger has of it."""
        ...

    def settled(self, reply: bytes) -> None:
        """Take a signed outcome that the ledger has."""
        ...

    def known(self, pending: Pending, reply: bytes) -> None:
        """Take a signed outcome that the ledger had before this dispatcher asked."""
        ...

    def denial(self, pending: Pending) -> Outcome | None:
        """Why a call may not be sent any more."""
        ...

    def held_too_long(self, pending: Pending) -> None:
        """A rate limit has held a call until its queue wait was over."""
        ...

    def join(self, pending: Pending) -> None:
        """Go on with a call that another dispatcher has sent."""
        ...

    def unwanted(self, calls: Sequence[Pending]) -> None:
        """Calls were answered while their message was on its way: nobody is to start them."""
        ...

    def decided(self, pending: Pending, decision: bytes) -> None:
        """Somebody decided about a call that waits for approval; `decision` is signed."""
        ...

    def has_to_be_approved(self, pending: Pending) -> None:
        """The ledger says that a person has to approve a call, or has, before it is sent."""
        ...

    def started(self, pending: Pending, worker: str) -> None:
        """A worker has a call."""
        ...

    def released(self, pending: Pending) -> None:
        """A worker gave a call back."""
        ...

    def limited(self, pending: Pending, limits: tuple[Limit, ...]) -> None:
        """A worker took the message of a call, and one of these limits had no place for it."""
        ...

    def passed(self, pending: Pending, reason: str) -> None:
        """A worker took the message of a call and did not claim it; `reason` as in `Passed`."""
        ...

    def waits_again(self, pending: Pending) -> None:
        """A call that was started waits for another worker: its queue wait begins anew."""
        ...

    def progressed(self, pending: Pending, progress: Progress) -> None:
        """A tool says how far it is."""
        ...

    def ended(self, keys: Iterable[str]) -> None:
        """Tools ended whose calls had been answered before."""
        ...

    def asked(self, question: Question) -> None:
        """An operator asks about calls."""
        ...

    def in_background(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Let work go on that ends with this dispatcher at the latest."""
        ...

"""What the parts of `calls` share: the services, and the interface to the open calls."""

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from toolpool.contract.envelope import Envelope, Question
from toolpool.contract.outcome import Outcome
from toolpool.contract.rates import Limit
from toolpool.contract.settings import Settings
from toolpool.dispatcher.calls.pending import PendingCall
from toolpool.dispatcher.observer import Observers
from toolpool.dispatcher.transports.base import Transport


@dataclass(frozen=True, slots=True)
class Services:
    """The services of one dispatcher, shared by all of its parts."""

    transport: Transport
    envelope: Envelope
    settings: Settings
    observers: Observers


class Calls(Protocol):
    """The open calls of one dispatcher, as its parts see and update them."""

    def find(self, key: str) -> PendingCall | None:
        """The open call of this record; None for the record of an earlier retry."""
        ...

    def all_open(self) -> Collection[PendingCall]:
        """Every call that has no answer yet."""
        ...

    def resolve(self, pending: PendingCall, outcome: Outcome) -> None:
        """Answer a call; only the first answer counts."""
        ...

    def refuse(self, pending: PendingCall, outcome: Outcome) -> None:
        """Answer a refused call according to its record in the ledger."""
        ...

    def settled(self, reply: bytes) -> None:
        """Apply a signed outcome from the ledger."""
        ...

    def known(self, pending: PendingCall, reply: bytes) -> None:
        """Apply a signed outcome that the ledger had before this dispatcher asked."""
        ...

    def denial(self, pending: PendingCall) -> Outcome | None:
        """Why a call may not be sent any more; None if it may."""
        ...

    def rate_wait_ended(self, pending: PendingCall) -> None:
        """Answer a call that a rate limit held until its queue wait was over."""
        ...

    def join(self, pending: PendingCall) -> None:
        """Follow a call that another dispatcher has sent."""
        ...

    def abandoned(self, calls: Sequence[PendingCall]) -> None:
        """Keep workers from starting calls that were answered while being sent."""
        ...

    def decided(self, pending: PendingCall, decision: bytes) -> None:
        """Apply the signed decision about a call that waits for approval."""
        ...

    def approval_required(self, pending: PendingCall) -> None:
        """Handle a call that, by the ledger, needs or has an approval before it is sent."""
        ...

    def has_lost_its_worker(self, pending: PendingCall) -> bool:
        """Whether the worker that runs a call seems dead."""
        ...

    def started(self, pending: PendingCall, worker: str) -> None:
        """Record that a worker has claimed a call."""
        ...

    def released(self, pending: PendingCall) -> None:
        """Record that a worker gave a call back."""
        ...

    def limited(self, pending: PendingCall, limits: tuple[Limit, ...]) -> None:
        """Record that a worker received a call's message and one of these limits was exhausted."""
        ...

    def unclaimed(self, pending: PendingCall, reason: str) -> None:
        """Record that a worker received a message without claiming the call; see
        `Unclaimed.reason`.
        """
        ...

    def restart_queue_wait(self, pending: PendingCall) -> None:
        """Let a started call wait for another worker, with a new queue wait."""
        ...

    def ended(self, keys: Iterable[str]) -> None:
        """Record that tools ended whose calls had been answered before."""
        ...

    def asked(self, question: Question) -> None:
        """Answer an operator's request about calls."""
        ...

    def in_background(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start a task that ends with this dispatcher at the latest."""
        ...

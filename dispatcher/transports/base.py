"""The interface between a dispatcher and the server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec

from toolpool.contract.ledger.answers import LedgerAnswer
from toolpool.contract.ledger.approval_steps import ApprovalLedger
from toolpool.contract.ledger.event_stream import EventLog
from toolpool.contract.ledger.failure_memory import FailureMemory
from toolpool.contract.ledger.protocols import (
    CloseReason,
    Closing,
    Opening,
    RecoveryRequest,
    SwitchChange,
)
from toolpool.contract.ledger.rate_counters import RateLedger
from toolpool.contract.ledger.shared_runs import SharedLedger


@dataclass(frozen=True, slots=True)
class Survey:
    """One survey of the server: its epoch, the signed leases of live workers, and the messages on
    each queue (None if the broker does not report them). `clock_jumped`: its clock diverged from
    ours. `subscribed` is how many clients are subscribed to the liveness channel of each worker
    that was asked about; empty if unknown.
    """

    epoch: str | None
    leases: list[bytes]
    depths: dict[str, int] | None
    clock_jumped: bool = False
    subscribed: Mapping[str, int] = field(default_factory=dict)


class TurnNote(msgspec.Struct, frozen=True, gc=False):
    """Records which turn of a session a response was dispatched in.

    `name` identifies the response by its calls. `stop` is the provider's stop reason if not all of
    its calls were run; else empty. A note with `is_answered` says only that the host has the turn's
    answers. A note with an empty `turn` says that notes of this session were dropped.
    """

    session: str
    turn: str
    name: str = ""
    stop: str = ""
    is_answered: bool = False


class NoteBatch(NamedTuple):
    """Notes that are written together; `at` is fleet time."""

    at: float
    notes: Sequence[TurnNote]


NOTED = "shared"
"""The answer for a call that was recorded before as sharing a run."""


class Transport(Protocol):
    """Carries batches out and replies in. Methods raise `ServerUnavailable` past `give_up_at`."""

    id: str
    """The dispatcher's id, as in its reports."""
    reply: str
    """The stream to which workers send this dispatcher's replies."""
    is_full: bool
    """Whether the server was almost out of memory at the last survey: new calls are refused, so
    that the others can end.
    """
    failures: FailureMemory
    """The recorded failures of sessions, for the whole fleet."""
    events: EventLog
    """The event log that every process can follow. It is closed separately, after all else."""
    rates: RateLedger
    """The rate limit counters of the whole fleet."""
    approvals: ApprovalLedger
    """The calls that wait for approval, for the whole fleet."""
    shared: SharedLedger
    """The runs that equal calls share, for the whole fleet."""

    @property
    def epoch(self) -> str | None:
        """The server's epoch at the last survey; None before."""
        ...

    def server_time(self) -> float:
        """The server's clock, extrapolated from the last survey; Unix time in seconds."""
        ...

    async def open(self) -> None:
        """Connect. Raises `Misconfigured` errors that say what to do."""
        ...

    async def publish(
        self,
        openings: Sequence[Opening],
        *,
        nonce: str,
        queue: str,
        message: bytes,
        give_up_at: float,
        tried_in: str | None = None,
    ) -> tuple[str, list[LedgerAnswer]]:
        """Record calls in the ledger and put their signed batch on a queue.

        `tried_in` is the epoch of an earlier attempt that the server may have accepted: in another
        epoch, a call that may not run twice is not recorded again (`MOVED`). Returns the server's
        epoch, and for each call `NEW`, `ATTACHED` or `RUNNING` (opened before), `MOVED`, `RAN`,
        `WAITING` or `APPROVED` (it needs approval, or has it, and the opening does not say so),
        `LAPSED`, or its signed outcome.
        """
        ...

    async def close_calls(
        self, closings: Sequence[Closing], *, end: CloseReason, give_up_at: float
    ) -> list[LedgerAnswer]:
        """End calls.

        Returns for each its outcome, `OTHERS`, `MISSING`, or, if it is left alone, `RUNNING`,
        `ATTACHED`, `WAITING` or `APPROVED`.
        """
        ...

    async def receive(self) -> list[bytes]:
        """Wait for the next signed replies. May raise `ServerError`."""
        ...

    async def catalog(self) -> list[bytes] | None:
        """The signed catalog entries; None if nothing has changed since the last call."""
        ...

    async def toolsets(self, digests: Sequence[str]) -> list[bytes | None]:
        """The signed toolsets of these digests; None for a missing one."""
        ...

    async def toolset_ages(self) -> dict[str, float]:
        """The seconds since a live worker last had each toolset, by digest."""
        ...

    async def recover(
        self, recoveries: Sequence[RecoveryRequest], *, queue: str, give_up_at: float
    ) -> list[LedgerAnswer]:
        """Restart the calls of one queue that may run again, and settle the others as lost.

        Returns for each call `SENT`, `AGAIN`, `RUNNING`, `MOVED`, `UNCLAIMED`, `MISSING`,
        `WAITING`, `APPROVED` or its outcome.
        """
        ...

    async def keep_handle(
        self,
        handle: str,
        body: bytes,
        *,
        owner: str | None,
        call: str,
        keep: float,
        outcome_kept: float,
    ) -> None:
        """Store a handle for `keep` seconds; one without an owner is never listed.

        The outcome of its call, whose key is `call`, is kept for `outcome_kept` seconds.
        """
        ...

    async def handle(self, handle: str) -> bytes | None:
        """The signed content of a handle; None if it is unknown or expired."""
        ...

    async def handles(self, owner: str, newest: int | None = None) -> tuple[list[bytes], int]:
        """The signed contents of an owner's handles, the newest last; and how many older ones
        exist.
        """
        ...

    async def switches(self, *changes: SwitchChange) -> tuple[str, dict[str, bytes]]:
        """Read the kill switches, after applying changes; see `SwitchLedger.switches`."""
        ...

    async def circuits(self) -> list[bytes]:
        """The signed states of circuits."""
        ...

    async def set_circuit(self, name: str, body: bytes, *, keep: float) -> None:
        """Store the state of a circuit; all are kept for `keep` seconds after the last change."""
        ...

    async def try_circuit(self, name: str, holder: str, *, keep: float) -> bool:
        """Whether `holder` has the right to try a tool, for `keep` more seconds."""
        ...

    async def end_trial(self, name: str, holder: str) -> None:
        """Give up the right to try a tool."""
        ...

    async def output(self, handle: str) -> bytes | None:
        """A full output, signed; None for an unknown or expired handle."""
        ...

    async def states(self, keys: Sequence[str]) -> list[str | None]:
        """The states of ledger records: open, claimed, settled, or None if missing."""
        ...

    async def note_shared(self, keys: Sequence[str], keep: float) -> list[str | None]:
        """Record for `keep` seconds that calls share a run, unless they have records.

        Such a call has no record of its own, but must not count as a call that never ran. Returns
        the states of the records, as `states` does; `NOTED` for a call that was recorded before.
        """
        ...

    async def has_ended(self, key: str) -> bool:
        """Whether a worker has reported that the tool of an answered call has ended."""
        ...

    async def outcomes(self, keys: Sequence[str]) -> list[bytes | None]:
        """The signed outcomes of ledger records; None for a missing one."""
        ...

    async def note_turns(self, batches: Sequence[NoteBatch]) -> None:
        """Store notes of turns, in this order.

        Idempotent with the same `at` of each batch.
        """
        ...

    async def turns(self, session: str) -> list[TurnNote]:
        """The notes of a session, the oldest first."""
        ...

    async def send_reply(self, stream: str, body: bytes) -> None:
        """Put a message on a reply stream, once. May raise `ServerError`."""
        ...

    async def survey(
        self, queues: Sequence[str], report: bytes = b"", *, workers: Sequence[str] = ()
    ) -> Survey:
        """The state of workers and queues; also stores a dispatcher's signed report for operators.

        It asks for the subscribers to the liveness channels of these `workers`.

        May raise `ServerError`.
        """
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...

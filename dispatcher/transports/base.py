"""Everything a dispatcher needs from the outside world, behind one small interface."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from toolpool.contract.ledger.approval_steps import ApprovalLedger
from toolpool.contract.ledger.event_stream import EventLog
from toolpool.contract.ledger.failure_memory import LoopLedger
from toolpool.contract.ledger.protocols import CloseReason, Closing, Opening, Recovery, SwitchChange
from toolpool.contract.ledger.rate_counters import RateLedger
from toolpool.contract.ledger.shared_runs import SharedLedger


@dataclass(frozen=True, slots=True)
class Survey:
    """One look at the server: its epoch, the signed leases of living workers, and the messages on
    each queue (None where the broker does not tell). `clock_jumped`: its clock did not go as ours.
    """

    epoch: str | None
    leases: list[bytes]
    depths: dict[str, int] | None
    clock_jumped: bool = False


class TurnNote(NamedTuple):
    """In which turn of a session a response was dispatched, by a name for its calls.

    `stop` is the provider's word where its calls were not all run; empty else. `told` says that the
    host has the turn's answers: nothing else is said of it then. One without a turn stands for
    notes of the session that were dropped.
    """

    session: str
    turn: str
    name: str = ""
    stop: str = ""
    told: bool = False


class Transport(Protocol):
    """Carries batches out and replies in. Methods raise `ServerUnavailable` past `give_up_at`."""

    is_full: bool
    """Whether the server had hardly any memory left when it was last looked at: new calls are
    refused, so that it can end the others."""

    @property
    def id(self) -> str:
        """The dispatcher's, in its reports."""
        ...

    @property
    def reply(self) -> str:
        """Where workers send this dispatcher's replies."""
        ...

    @property
    def epoch(self) -> str | None:
        """The server's epoch when it was last looked at; None before that."""
        ...

    def server_time(self) -> float:
        """The server's clock as it was last seen, and gone on since; Unix time in seconds."""
        ...

    @property
    def loops(self) -> LoopLedger:
        """What failed in a session, for the whole fleet."""
        ...

    @property
    def events(self) -> EventLog:
        """What happens, for every process to follow. To be closed by itself, after all else."""
        ...

    @property
    def rates(self) -> RateLedger:
        """The places under rate limits, for the whole fleet."""
        ...

    @property
    def approvals(self) -> ApprovalLedger:
        """What waits for people, for the whole fleet."""
        ...

    @property
    def shared(self) -> SharedLedger:
        """Which run equal calls share, for the whole fleet."""
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
    ) -> tuple[str, list[bytes]]:
        """Note calls in the ledger and put their signed batch on a queue.

        `tried_in` is the epoch of an earlier try that may have been taken: in another one, what may
        not run twice is not noted anew (`MOVED`).

        Answers as `DispatcherLedger.open`.
        """
        ...

    async def close_calls(
        self, closings: Sequence[Closing], *, end: CloseReason, give_up_at: float
    ) -> list[bytes]:
        """End calls; answers as `DispatcherLedger.close`."""
        ...

    async def receive(self) -> list[bytes]:
        """The next signed replies; waits for them. May raise OSError or RedisError."""
        ...

    async def catalog(self) -> list[bytes] | None:
        """The signed catalog entries; None when nothing has changed since the last call."""
        ...

    async def toolsets(self, digests: Sequence[str]) -> list[bytes | None]:
        """The signed toolsets of these digests; None for one that is gone."""
        ...

    async def toolset_ages(self) -> dict[str, float]:
        """The seconds since a living worker last had each toolset, by its digest."""
        ...

    async def recover(
        self, recoveries: Sequence[Recovery], *, queue: str, give_up_at: float
    ) -> list[bytes]:
        """Start calls of one queue again; answers as `DispatcherLedger.recover`."""
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
        """Store what a handle stands for, for `keep` seconds; one of no owner is never listed.

        The outcome of its call, whose key is `call`, is kept for `outcome_kept` seconds.
        """
        ...

    async def handle(self, handle: str) -> bytes | None:
        """What a handle stands for, signed; None for an unknown or expired one."""
        ...

    async def handles(self, owner: str, newest: int | None = None) -> tuple[list[bytes], int]:
        """What an owner's handles stand for, the newest last; and how many older ones there are."""
        ...

    async def switches(self, change: SwitchChange | None = None) -> tuple[str, dict[str, bytes]]:
        """See `SwitchLedger.switches`."""
        ...

    async def circuits(self) -> list[bytes]:
        """The signed states of circuits."""
        ...

    async def set_circuit(self, name: str, body: bytes, *, keep: float) -> None:
        """Store the state of a circuit; all are kept for `keep` seconds after the last change."""
        ...

    async def try_circuit(self, name: str, holder: str, *, keep: float) -> bool:
        """Whether `holder` is the one that may try a tool, for `keep` seconds more."""
        ...

    async def end_trial(self, name: str, holder: str) -> None:
        """Let others try it."""
        ...

    async def output(self, handle: str) -> bytes | None:
        """A whole output, signed; None for an unknown or expired handle."""
        ...

    async def states(self, keys: Sequence[str]) -> list[str | None]:
        """The states of ledger records: open, claimed, settled, or None for one that is gone."""
        ...

    async def has_ended(self, key: str) -> bool:
        """Whether a worker said that the tool of an answered call has ended."""
        ...

    async def outcomes(self, keys: Sequence[str]) -> list[bytes | None]:
        """The signed outcomes of ledger records; None for one that has none."""
        ...

    async def note_turns(self, notes: Sequence[TurnNote], at: float) -> None:
        """Remember what happens to turns, in this order; `at` is fleet time.

        Repeatable with the same `at`.
        """
        ...

    async def turns(self, session: str) -> list[TurnNote]:
        """What is noted of a session, the oldest first."""
        ...

    async def tell(self, reply: str, body: bytes) -> None:
        """Put a message on a reply stream, once. May raise OSError or RedisError."""
        ...

    async def survey(self, queues: Sequence[str], report: bytes = b"") -> Survey:
        """What lives and what waits; leaves a dispatcher's signed report for operators.

        May raise OSError or RedisError.
        """
        ...

    async def close(self) -> None:
        """Let go of every connection."""
        ...

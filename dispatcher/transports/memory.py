"""The transport over a server in this process, for tests."""

import time
from collections import deque
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from toolpool.contract.ledger.answers import LedgerAnswer, decode_answers
from toolpool.contract.ledger.approval_steps import ApprovalLedger, MemoryApprovals
from toolpool.contract.ledger.event_stream import EventLog
from toolpool.contract.ledger.failure_memory import FailureMemory
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.contract.ledger.protocols import (
    CloseReason,
    Closing,
    Opening,
    RecoveryRequest,
    SwitchChange,
)
from toolpool.contract.ledger.rate_counters import RateLedger
from toolpool.contract.ledger.shared_runs import SharedLedger
from toolpool.dispatcher.transports.base import NOTED, NoteBatch, Survey, TurnNote

_TURNS_KEPT = 10_000
_TURNS: WeakKeyDictionary[MemoryServer, deque[TurnNote]] = WeakKeyDictionary()
"""The notes stored on each server."""


class MemoryTransport:
    """Bytes in, bytes out, no network; `queue` items are signed batches."""

    def __init__(self, server: MemoryServer, reply: str = "reply:memory") -> None:
        self._server = server
        self.id = self.reply = reply
        self.failures: FailureMemory = server.failures
        self.events: EventLog = server.events
        self.rates: RateLedger = server.rates
        self.approvals: ApprovalLedger = MemoryApprovals(server, reply)
        self.shared: SharedLedger = server.shared
        self.is_full = False  # a process has no such limit
        self._catalog: dict[str, bytes] | None = None
        self._turns = _TURNS.setdefault(server, deque(maxlen=_TURNS_KEPT))

    @property
    def epoch(self) -> str | None:
        """The server's epoch; no survey is needed."""
        return self._server.epoch

    def server_time(self) -> float:
        """The server's clock; Unix time in seconds."""
        return self._server.time()

    async def open(self) -> None:
        """Do nothing: there is nothing to connect to."""
        self._server.dispatchers.add(self.reply)

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
        """Record calls in the ledger and put their signed batch on a queue."""
        epoch, answers = await self._server.open(
            openings,
            nonce=nonce,
            reply=self.reply,
            queue=queue,
            message=message,
            give_up_at=give_up_at,
            tried_in=tried_in,
        )
        return epoch, decode_answers(answers)

    async def close_calls(
        self, closings: Sequence[Closing], *, end: CloseReason, give_up_at: float
    ) -> list[LedgerAnswer]:
        """End calls; returns the state of each, or its outcome."""
        return decode_answers(
            await self._server.close(closings, reply=self.reply, end=end, give_up_at=give_up_at)
        )

    async def receive(self) -> list[bytes]:
        """Wait for the next signed replies."""
        return [(await self._server.take(self.reply))[1]]

    async def catalog(self) -> list[bytes] | None:
        """The signed catalog entries; None if nothing has changed since the last call."""
        if self._catalog == self._server.catalog:
            return None
        self._catalog = dict(self._server.catalog)
        return list(self._catalog.values())

    async def toolsets(self, digests: Sequence[str]) -> list[bytes | None]:
        """The signed toolsets of these digests; the one worker has every tool."""
        return [None for _ in digests]

    async def toolset_ages(self) -> dict[str, float]:
        """The seconds since a live worker last had each toolset, by digest."""
        return {}

    async def recover(
        self, recoveries: Sequence[RecoveryRequest], *, queue: str, give_up_at: float
    ) -> list[LedgerAnswer]:
        """Restart the calls of one queue that may run again; settle the others as lost."""
        return decode_answers(
            await self._server.recover(
                recoveries, reply=self.reply, queue=queue, give_up_at=give_up_at
            )
        )

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
        """Store a handle for `keep` seconds; one without an owner is never listed."""
        self._server.handles[handle] = (owner or "", body)
        self._server.hand_over(call, outcome_kept)

    async def handle(self, handle: str) -> bytes | None:
        """The signed content of a handle; None if it is unknown or expired."""
        found = self._server.handles.get(handle)
        return found[1] if found is not None else None

    async def handles(self, owner: str, newest: int | None = None) -> tuple[list[bytes], int]:
        """The signed contents of an owner's handles, newest last; and how many older ones exist."""
        found = [body for whose, body in self._server.handles.values() if whose == owner]
        older = max(0, len(found) - newest) if newest is not None else 0
        return found[older:], older

    async def switches(self, *changes: SwitchChange) -> tuple[str, dict[str, bytes]]:
        """Read the kill switches, after applying changes."""
        return await self._server.switches(*changes)

    async def circuits(self) -> list[bytes]:
        """The signed states of circuits."""
        return list(self._server.circuits.values())

    async def set_circuit(self, name: str, body: bytes, *, keep: float) -> None:
        """Store the state of a circuit; all are kept for `keep` seconds after the last change."""
        self._server.circuits[name] = body

    async def try_circuit(self, name: str, holder: str, *, keep: float) -> bool:
        """Whether `holder` has the right to try a tool, for `keep` more seconds."""
        now = time.monotonic()
        who, until = self._server.trials.get(name, (holder, 0.0))
        if who != holder and until > now:
            return False
        self._server.trials[name] = (holder, now + keep)
        return True

    async def end_trial(self, name: str, holder: str) -> None:
        """Give up the right to try a tool."""
        if self._server.trials.get(name, ("", 0.0))[0] == holder:
            del self._server.trials[name]

    async def output(self, handle: str) -> bytes | None:
        """A full output, signed; None for an unknown or expired handle."""
        return self._server.outputs.get(handle)

    async def states(self, keys: Sequence[str]) -> list[str | None]:
        """The states of ledger records: open, claimed, settled, or None if missing."""
        return [self._server.state(key) for key in keys]

    async def note_shared(self, keys: Sequence[str], keep: float) -> list[str | None]:
        """Record for `keep` seconds that calls share a run, unless they have records."""
        states = await self.states(keys)
        for at, (key, state) in enumerate(zip(keys, states, strict=True)):
            if state is None and self._server.note_shared(key, keep):
                states[at] = NOTED
        return states

    async def has_ended(self, key: str) -> bool:
        """Whether a worker has reported that the tool of an answered call has ended."""
        return key in self._server.ended

    async def outcomes(self, keys: Sequence[str]) -> list[bytes | None]:
        """The signed outcomes of ledger records; None for a missing one."""
        return [self._server.outcome(key) for key in keys]

    async def note_turns(self, batches: Sequence[NoteBatch]) -> None:
        """Store notes of turns, in this order."""
        for batch in batches:
            self._turns += batch.notes

    async def turns(self, session: str) -> list[TurnNote]:
        """The notes of a session, the oldest first."""
        return [note for note in self._turns if note.session == session]

    async def send_reply(self, stream: str, body: bytes) -> None:
        """Put a message on a reply stream, once."""
        await self._server.send_reply(stream, body)

    async def survey(
        self, queues: Sequence[str], report: bytes = b"", *, workers: Sequence[str] = ()
    ) -> Survey:
        """The state of workers and queues. The report is dropped: no command reads it."""
        depths = {queue: self._server.waiting(queue) for queue in queues}
        return Survey(self._server.epoch, list(self._server.leases.values()), depths)

    async def close(self) -> None:
        """Remove this dispatcher from the server."""
        self._server.dispatchers.discard(self.reply)

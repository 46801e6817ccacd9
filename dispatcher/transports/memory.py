"""The transport over a server in this process: for users' own tests, and ours."""

import time
from collections import deque
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from toolpool.contract.ledger.approval_steps import MemoryApprovals
from toolpool.contract.ledger.event_stream import EventLog
from toolpool.contract.ledger.failure_memory import LoopLedger
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.contract.ledger.protocols import CloseReason, Closing, Opening, Recovery, SwitchChange
from toolpool.contract.ledger.rate_counters import RateLedger
from toolpool.contract.ledger.shared_runs import SharedLedger
from toolpool.dispatcher.transports.base import Survey, TurnNote

_TURNS_KEPT = 10_000
_TURNS: WeakKeyDictionary[MemoryServer, deque[TurnNote]] = WeakKeyDictionary()
"""What is noted on each server."""


class MemoryTransport:
    """Bytes in, bytes out, no network; `queue` items are signed batches."""

    def __init__(self, server: MemoryServer, reply: str = "reply:memory") -> None:
        self._server = server
        self._reply = reply
        self.approvals = MemoryApprovals(server, reply)
        self.is_full = False  # a process has no such limit
        self._catalog: dict[str, bytes] | None = None
        self._turns = _TURNS.setdefault(server, deque(maxlen=_TURNS_KEPT))

    @property
    def id(self) -> str:
        """See `Transport.id`."""
        return self._reply

    @property
    def reply(self) -> str:
        """The name of the reply stream."""
        return self._reply

    @property
    def epoch(self) -> str | None:
        """See `Transport.epoch`."""
        return self._server.epoch

    def server_time(self) -> float:
        """See `Transport.server_time`."""
        return self._server.time()

    @property
    def loops(self) -> LoopLedger:
        """See `Transport.loops`."""
        return self._server.loops

    @property
    def events(self) -> EventLog:
        """See `Transport.events`."""
        return self._server.events

    @property
    def shared(self) -> SharedLedger:
        """See `Transport.shared`."""
        return self._server.shared

    @property
    def rates(self) -> RateLedger:
        """See `Transport.rates`."""
        return self._server.rates

    async def open(self) -> None:
        """Nothing to connect."""
        self._server.dispatchers.add(self._reply)

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
        """See `Transport.publish`."""
        return await self._server.open(
            openings,
            nonce=nonce,
            reply=self._reply,
            queue=queue,
            message=message,
            give_up_at=give_up_at,
            tried_in=tried_in,
        )

    async def close_calls(
        self, closings: Sequence[Closing], *, end: CloseReason, give_up_at: float
    ) -> list[bytes]:
        """See `Transport.close_calls`."""
        return await self._server.close(closings, reply=self._reply, end=end, give_up_at=give_up_at)

    async def receive(self) -> list[bytes]:
        """See `Transport.receive`."""
        return [(await self._server.take(self._reply))[1]]

    async def catalog(self) -> list[bytes] | None:
        """See `Transport.catalog`."""
        if self._catalog == self._server.catalog:
            return None
        self._catalog = dict(self._server.catalog)
        return list(self._catalog.values())

    async def toolsets(self, digests: Sequence[str]) -> list[bytes | None]:
        """See `Transport.toolsets`. The one worker has every tool that is there."""
        return [None for _ in digests]

    async def toolset_ages(self) -> dict[str, float]:
        """See `Transport.toolset_ages`."""
        return {}

    async def recover(
        self, recoveries: Sequence[Recovery], *, queue: str, give_up_at: float
    ) -> list[bytes]:
        """See `Transport.recover`."""
        return await self._server.recover(
            recoveries, reply=self._reply, queue=queue, give_up_at=give_up_at
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
        """See `Transport.keep_handle`."""
        self._server.handles[handle] = (owner or "", body)
        self._server.keep_longer(call, outcome_kept)

    async def handle(self, handle: str) -> bytes | None:
        """See `Transport.handle`."""
        found = self._server.handles.get(handle)
        return found[1] if found is not None else None

    async def handles(self, owner: str, newest: int | None = None) -> tuple[list[bytes], int]:
        """See `Transport.handles`."""
        found = [body for whose, body in self._server.handles.values() if whose == owner]
        older = max(0, len(found) - newest) if newest is not None else 0
        return found[older:], older

    async def switches(self, change: SwitchChange | None = None) -> tuple[str, dict[str, bytes]]:
        """See `SwitchLedger.switches`."""
        return await self._server.switches(change)

    async def circuits(self) -> list[bytes]:
        """See `Transport.circuits`."""
        return list(self._server.circuits.values())

    async def set_circuit(self, name: str, body: bytes, *, keep: float) -> None:
        """See `Transport.set_circuit`."""
        self._server.circuits[name] = body

    async def try_circuit(self, name: str, holder: str, *, keep: float) -> bool:
        """See `Transport.try_circuit`."""
        now = time.monotonic()
        who, until = self._server.trials.get(name, (holder, 0.0))
        if who != holder and until > now:
            return False
        self._server.trials[name] = (holder, now + keep)
        return True

    async def end_trial(self, name: str, holder: str) -> None:
        """See `Transport.end_trial`."""
        if self._server.trials.get(name, ("", 0.0))[0] == holder:
            del self._server.trials[name]

    async def output(self, handle: str) -> bytes | None:
        """See `Transport.output`."""
        return self._server.outputs.get(handle)

    async def states(self, keys: Sequence[str]) -> list[str | None]:
        """See `Transport.states`."""
        return [self._server.state(key) for key in keys]

    async def has_ended(self, key: str) -> bool:
        """See `Transport.has_ended`."""
        return key in self._server.ended

    async def outcomes(self, keys: Sequence[str]) -> list[bytes | None]:
        """See `Transport.outcomes`."""
        return [self._server.outcome(key) for key in keys]

    async def note_turns(self, notes: Sequence[TurnNote], at: float) -> None:
        """See `Transport.note_turns`."""
        self._turns += notes

    async def turns(self, session: str) -> list[TurnNote]:
        """See `Transport.turns`."""
        return [note for note in self._turns if note.session == session]

    async def tell(self, reply: str, body: bytes) -> None:
        """See `Transport.tell`."""
        await self._server.tell(reply, body)

    async def survey(self, queues: Sequence[str], report: bytes = b"") -> Survey:
        """See `Transport.survey`. No operator's command reads the report."""
        depths = {queue: self._server.waiting(queue) for queue in queues}
        return Survey(self._server.epoch, list(self._server.leases.values()), depths)

    async def close(self) -> None:
        """Nothing to let go of."""
        self._server.dispatchers.discard(self._reply)

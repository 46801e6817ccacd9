"""PendingCall calls and a transport that a test holds in its hand."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from tests.waiting import eventually
from toolpool.contract.call import ToolCall
from toolpool.contract.envelope import (
    CallMessage,
    Envelope,
    RunsEnded,
    Settled,
    Started,
    WorkerLease,
)
from toolpool.contract.errors import ServerUnavailable
from toolpool.contract.ledger.answers import CallState, LedgerAnswer
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.contract.ledger.protocols import Claim, Opening, Settlement
from toolpool.contract.outcome import Outcome
from toolpool.contract.rates import Limit
from toolpool.contract.redis_keys import RedisKeys, root_of
from toolpool.contract.settings import Settings
from toolpool.contract.signing import Keyring
from toolpool.contract.spec import RunIn, ToolSpec
from toolpool.dispatcher.calls.pending import PendingCall
from toolpool.dispatcher.calls.services import Calls, Services
from toolpool.dispatcher.observer import Observers
from toolpool.dispatcher.transports.base import Transport
from toolpool.dispatcher.transports.memory import MemoryTransport


def pending(
    key: str,
    *,
    flow: str = "s-1",
    run_in: RunIn = RunIn.LOOP,
    size: int = 10,
    wait: float = 10.0,
    deadline: float = 20.0,
    spec: ToolSpec | None = None,
    session: str | None = None,
) -> PendingCall:
    """A call that was accepted just now; of a session, another dispatcher may ask for it too."""
    now = time.monotonic()
    spec = spec or ToolSpec(name="t", run_in=run_in)
    return PendingCall(
        root=root_of(key),
        call=ToolCall(index=0, id=key, name=spec.name, arguments={}),
        spec=spec,
        message=CallMessage(
            key=key,
            id=key,
            tool=spec.name,
            digest=spec.digest,
            arguments={},
            session=session,
            turn=None if session is None else "turn",
            rerunnable=spec.rerunnable,
            retries=spec.retries if spec.rerunnable else 0,
        ),
        queue=RedisKeys().queue(spec.queue, spec.run_in),
        flow=flow,
        size=size,
        start_by=now + wait,
        deadline=now + deadline,
        keep=60.0,
    )


class Told(Calls):
    """Stands for the calls of a dispatcher; notes what its parts say of them."""

    def __init__(self) -> None:
        self.calls: dict[str, PendingCall] = {}
        self.said: list[tuple[str, str]] = []
        """What was said of which call."""
        self.denials: dict[str, Outcome] = {}
        self.lost_workers: set[str] = set()
        self.replies: list[bytes] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.on_answer: Callable[[PendingCall], None] = lambda pending: None

    def words(self, key: str) -> list[str]:
        """What was said of a call."""
        return [word for word, of in self.said if of == key]

    def find(self, key: str) -> PendingCall | None:
        return self.calls.get(key)

    def all_open(self) -> list[PendingCall]:
        return [pending for pending in self.calls.values() if pending.is_open]

    def resolve(self, pending: PendingCall, outcome: Outcome) -> None:
        """As the dispatcher does: answer, then tell the parts."""
        if pending.is_open:
            self.said.append(("answered", pending.key))
            pending.answer(outcome)
            self.on_answer(pending)

    def refuse(self, pending: PendingCall, outcome: Outcome) -> None:
        self.said.append(("refused", pending.key))
        self.resolve(pending, outcome)

    def settled(self, reply: bytes) -> None:
        self.replies.append(reply)

    def has_lost_its_worker(self, pending: PendingCall) -> bool:
        return pending.worker in self.lost_workers

    def known(self, pending: PendingCall, reply: bytes) -> None:
        self.said.append(("known", pending.key))
        self.replies.append(reply)

    def denial(self, pending: PendingCall) -> Outcome | None:
        return self.denials.get(pending.key)

    def rate_wait_ended(self, pending: PendingCall) -> None:
        self.said.append(("held too long", pending.key))

    def join(self, pending: PendingCall) -> None:
        self.said.append(("joined", pending.key))

    def abandoned(self, calls: Sequence[PendingCall]) -> None:
        self.said += [("unwanted", pending.key) for pending in calls]

    def approval_required(self, pending: PendingCall) -> None:
        self.said.append(("to be approved", pending.key))

    def started(self, pending: PendingCall, worker: str) -> None:
        pending.worker = worker
        self.said.append(("started", pending.key))

    def released(self, pending: PendingCall) -> None:
        self.said.append(("released", pending.key))

    def limited(self, pending: PendingCall, limits: tuple[Limit, ...]) -> None:
        self.said.append(("limited", pending.key))

    def unclaimed(self, pending: PendingCall, reason: str) -> None:
        self.said.append((f"unclaimed: {reason}" if reason else "unclaimed", pending.key))

    def ended(self, keys: Iterable[str]) -> None:
        self.said += [("ended", key) for key in keys]

    def in_background(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        self.tasks.append(task := asyncio.ensure_future(work))
        return task


def services(transport: Transport, **settings: Any) -> Services:
    """What the parts of a dispatcher share, with a key of this process's own."""
    envelope = Envelope(Keyring.local())
    return Services(transport, envelope, Settings(**settings), Observers())


class HeldTransport(MemoryTransport):
    """Publishes when the test lets it; `batches` has the keys of every message."""

    def __init__(self) -> None:
        super().__init__(MemoryServer())
        self.batches: list[list[str]] = []
        self.nonces: list[str] = []
        self.fails: list[Exception] = []
        self.fails_for: set[str] = set()
        self._gate = asyncio.Event()
        self._gate.set()

    def hold(self) -> None:
        """Keep publishes under way until `let_go`."""
        self._gate.clear()

    def let_go(self) -> None:
        """Let every publish through."""
        self._gate.set()

    async def publish(
        self, openings: Sequence[Opening], *, nonce: str, give_up_at: float, **options: Any
    ) -> tuple[str, list[LedgerAnswer]]:
        """See `Transport.publish`."""
        self.batches.append([opening.key for opening in openings])
        self.nonces.append(nonce)
        await self._gate.wait()
        if self.fails_for.intersection(opening.key for opening in openings):
            raise ValueError
        if self.fails:
            raise self.fails.pop(0)
        return "epoch", [LedgerAnswer(CallState.NEW)] * len(openings)


class Hand:
    """A worker in the test's hand: it takes what is sent, and ends calls when the test says so."""

    id = "w-1"

    def __init__(self, server: MemoryServer, *queues: str) -> None:
        self._server = server
        self._queues = queues or (RedisKeys().queue("default", RunIn.LOOP),)
        self.envelope = Envelope(Keyring.local())
        self.taken: dict[str, CallMessage] = {}
        """What it runs or has run, by the id of the call."""
        self._replies: dict[str, str] = {}
        lease = WorkerLease(
            id=self.id,
            host="h",
            pid=1,
            version="1",
            started_at=0.0,
            slots=dict.fromkeys(self._queues, 4),
        )
        server.leases[self.id] = self.envelope.encode(lease)

    @property
    def ids(self) -> list[str]:
        """The ids of the calls that it was sent, in order."""
        return list(self.taken)

    async def run(self) -> None:
        """Take calls for ever."""
        while True:
            _, body = await self._server.take(*self._queues)
            batch = self.envelope.decode_batch(body)
            for call in batch.calls:
                claim = Claim(call.key, call.attempt, f"claim-{call.key}")
                (answer,) = await self._server.claim([claim], worker=self.id, give_up_at=0.0)
                if isinstance(answer, float):
                    self.taken[call.id] = call
                    self._replies[call.id] = batch.reply
                    told = Started(batch=batch.id, worker=self.id, keys=(call.key,))
                    self._server.put(batch.reply, self.envelope.encode_reply(told))

    async def end(self, call_id: str, outcome: Outcome | None = None) -> None:
        """Settle a call; it went well where nothing else is said."""
        await eventually(lambda: call_id in self.taken, f"the worker has {call_id}")
        key = self.taken[call_id].key
        outcome = outcome or Outcome(ok=True, data=call_id, worker=self.id)
        body = self.envelope.encode_reply(Settled(key=key, outcome=outcome))
        settlement = Settlement(key, f"end-{key}", 60.0, self._replies[call_id], body)
        await self._server.settle([settlement], give_up_at=0.0)

    def say_ended(self, call_id: str) -> None:
        """Say that nothing of a call runs any more, though it had been answered before."""
        told = RunsEnded(worker=self.id, keys=(self.taken[call_id].key,))
        self._server.put(self._replies[call_id], self.envelope.encode_reply(told))


def away(*, sent: bool) -> ServerUnavailable:
    """What a step raises when no server confirmed it."""
    return ServerUnavailable("open", sent=sent)


async def turns(count: int = 5) -> None:
    """Let everything that can go on do so."""
    for _ in range(count):
        await asyncio.sleep(0)

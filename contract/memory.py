"""A server in this process: the ledger's steps, queues, replies and catalog, without a network.

For users' own tests and `Dispatcher.in_memory`. It takes and gives bytes, as the real one does, and
one behaviour suite holds both to the same answers.
"""

import asyncio
import secrets
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from contract.ledger import (
    ATTACHED,
    ATTEMPTS_AT_MOST,
    MISSING,
    MOVED,
    NEW,
    OTHERS,
    RELEASES_AT_MOST,
    SENT,
    Claim,
    Closing,
    End,
    Hold,
    Opening,
    Recovery,
    Refusal,
    Release,
    Settlement,
)
from contract.loops import MemoryLoops

_REPLIES_AT_MOST = 8
_OTHERS_AHEAD_SECONDS = 0.2


@dataclass(slots=True)
class _Record:
    epoch: str
    opened: str
    attempt: int
    rerunnable: bool
    until: float
    deadline: float
    gone_at: float
    replies: list[str]
    state: str = "open"
    claims: int = 0
    claimed: str = ""
    worker: str = ""
    settled_by: str = ""
    outcome: bytes = b""
    recovered: str = ""
    released: str = ""
    releases: int = 0
    goes_on: str = ""

    def attach(self, reply: str) -> None:
        """Note a reply stream; of more than eight the oldest, likely dead, is dropped."""
        if reply not in self.replies:
            del self.replies[: max(0, len(self.replies) - _REPLIES_AT_MOST + 1)]
            self.replies.append(reply)


@dataclass(slots=True)
class _Inbox:
    items: deque[bytes] = field(default_factory=deque)
    filled: asyncio.Event = field(default_factory=asyncio.Event)


class MemoryServer:
    """Both sides' ledger, and the queues, reply streams and cancel lists between them."""

    def __init__(self, *, loop_memory: int = 32, loop_kept: float = 3600.0) -> None:
        self.epoch = f"memory.{secrets.token_hex(8)}"
        self.catalog: dict[str, bytes] = {}
        self.leases: dict[str, bytes] = {}
        self.dispatchers: set[str] = set()
        """The reply streams of those that live."""
        self.handles: dict[str, tuple[str, bytes]] = {}
        self.switches: dict[str, bytes] = {}
        self.outputs: dict[str, bytes] = {}
        self.loops = MemoryLoops(remembered=loop_memory, kept=loop_kept)
        self._records: dict[str, _Record] = {}
        self._inboxes: defaultdict[str, _Inbox] = defaultdict(_Inbox)

    def put(self, name: str, item: bytes) -> None:
        """Append to a queue, reply stream or cancel list."""
        inbox = self._inboxes[name]
        inbox.items.append(item)
        inbox.filled.set()

    async def take(self, *names: str) -> tuple[str, bytes]:
        """The next item of the first of `names` that has one; waits for it."""
        while True:
            for name in names:
                inbox = self._inboxes[name]
                if inbox.items:
                    return name, inbox.items.popleft()
                inbox.filled.clear()
            waits = [asyncio.ensure_future(self._inboxes[name].filled.wait()) for name in names]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    def waiting(self, name: str) -> int:
        """How many items a queue, stream or list holds."""
        return len(self._inboxes[name].items)

    def state(self, key: str) -> str | None:
        """The state of a record; None where there is none."""
        record = self._find(key)
        return record.state if record is not None else None

    def forget(self) -> None:
        """Lose every record and start another epoch, as a server does that lost its data."""
        self._records.clear()
        self.epoch = f"memory.{secrets.token_hex(8)}"

    async def open(
        self,
        openings: Sequence[Opening],
        *,
        nonce: str,
        reply: str,
        queue: str,
        message: bytes,
        give_up_at: float,
        tried_in: str | None = None,
    ) -> tuple[str, list[bytes]]:
        """See `DispatcherLedger.open`."""
        now = time.monotonic()
        answers: list[bytes] = []
        created = False
        for opening in openings:
            record = self._find(opening.key)
            has_moved = tried_in not in (None, self.epoch) and not opening.rerunnable
            if record is None and has_moved:
                answers.append(MOVED)
            elif record is None:
                self._records[opening.key] = _Record(
                    epoch=self.epoch,
                    opened=nonce,
                    attempt=opening.attempt,
                    rerunnable=opening.rerunnable,
                    until=now + opening.wait,
                    deadline=now + opening.deadline,
                    gone_at=now + opening.keep,
                    replies=[reply],
                )
                created = True
                answers.append(NEW)
            elif record.state == "settled":
                answers.append(record.outcome)
            elif record.opened == nonce:
                answers.append(NEW)
            else:
                record.attach(reply)
                record.until = max(record.until, now + opening.wait)
                record.deadline = max(record.deadline, now + opening.deadline)
                record.gone_at = max(record.gone_at, now + opening.keep)
                answers.append(_running(record) if record.state == "claimed" else ATTACHED)
        if created and message:
            self.put(queue, message)
        return self.epoch, answers

    async def claim(
        self, claims: Sequence[Claim], *, worker: str, give_up_at: float
    ) -> list[float | Refusal]:
        """See `WorkerLedger.claim`."""
        return [self._claim(claim, worker) for claim in claims]

    def _claim(self, claim: Claim, worker: str) -> float | Refusal:
        now = time.monotonic()
        record = self._find(claim.key)
        if record is None:
            return "absent"
        if record.state == "settled":
            return "settled"
        if record.attempt != claim.attempt:
            return "attempt"
        if record.state == "claimed":
            return record.deadline - now if record.claimed == claim.nonce else "claimed"
        if record.until <= now:
            return "expired"
        if not self._may_go(record):
            return "moved"
        record.state, record.claimed, record.worker = "claimed", claim.nonce, worker
        record.claims += 1
        return record.deadline - now

    async def settle(self, settlements: Sequence[Settlement], *, give_up_at: float) -> list[str]:
        """See `WorkerLedger.settle`."""
        return [self._settle(settlement) for settlement in settlements]

    async def hold(self, holds: Sequence[Hold], *, worker: str, give_up_at: float) -> list[str]:
        """See `WorkerLedger.hold`."""
        return [self._hold(hold, worker) for hold in holds]

    def _hold(self, hold: Hold, worker: str) -> str:
        record = self._find(hold.key)
        if record is None:
            return "absent"
        if record.state == "settled":
            return "settled"
        if record.state == "claimed":
            return "held" if record.claimed == hold.claim_nonce else "lost"
        if record.attempt != hold.attempt:
            return "lost"
        record.state, record.claimed, record.worker = "claimed", hold.claim_nonce, worker
        record.claims += 1
        return "held"

    async def keep_output(self, handle: str, body: bytes, *, keep: float) -> None:
        """See `WorkerLedger.keep_output`."""
        self.outputs[handle] = body

    async def tell(self, reply: str, body: bytes) -> None:
        """See `WorkerLedger.tell`."""
        self.put(reply, body)

    def _settle(self, settlement: Settlement) -> str:
        record = self._find(settlement.key)
        if record is None:
            self.put(settlement.reply, settlement.body)
            return "gone"
        if record.state == "settled":
            return "first" if record.settled_by == settlement.nonce else "late"
        self._finish(record, settlement.nonce, settlement.keep, settlement.body, except_reply="")
        return "first"

    async def recover(
        self, recoveries: Sequence[Recovery], *, reply: str, queue: str, give_up_at: float
    ) -> list[bytes]:
        """See `DispatcherLedger.recover`."""
        return [self._recover(recovery, reply, queue) for recovery in recoveries]

    def _recover(self, recovery: Recovery, reply: str, queue: str) -> bytes:
        record = self._find(recovery.key)
        if record is None:
            return MISSING
        if record.state == "settled":
            return record.outcome
        record.attach(reply)
        if record.recovered == recovery.nonce:
            return b"again %d" % record.attempt
        until = max(record.until, time.monotonic() + recovery.wait)
        if record.state == "open":
            if record.attempt > recovery.attempt:
                if record.attempt == recovery.attempt + 1 and self._may_go(record):
                    record.until = until
                    self.put(queue, recovery.next_message)
                return b"again %d" % record.attempt
            if not self._may_go(record):
                if not recovery.had_time:
                    return MOVED
                record.goes_on = self.epoch
            record.until = until
            self.put(queue, recovery.message)
            return SENT
        if not recovery.lost_worker or record.worker != recovery.lost_worker:
            return _running(record)
        if record.rerunnable and record.attempt < ATTEMPTS_AT_MOST:
            record.state, record.worker = "open", ""
            record.attempt += 1
            record.until, record.recovered = until, recovery.nonce
            self.put(queue, recovery.next_message)
            return b"again %d" % record.attempt
        self._finish(record, recovery.nonce, recovery.keep, recovery.lost, except_reply=reply)
        return recovery.lost

    async def release(
        self, releases: Sequence[Release], *, worker: str, give_up_at: float
    ) -> list[str]:
        """See `WorkerLedger.release`."""
        return [self._release(release) for release in releases]

    def _release(self, release: Release) -> str:
        record = self._find(release.key)
        if record is None:
            return "late"
        if record.state != "claimed" or record.claimed != release.claim_nonce:
            ours = (record.released, record.settled_by)
            return "released" if release.claim_nonce in ours else "late"
        record.releases += 1
        if record.releases > RELEASES_AT_MOST:
            self._finish(
                record, release.claim_nonce, release.keep, release.too_often, except_reply=""
            )
            return "released"
        record.state, record.worker, record.released = "open", "", release.claim_nonce
        record.attempt += 1
        record.claims -= not release.entered
        for reply in record.replies:
            self.put(reply, release.notice)
        return "released"

    async def close(
        self, closings: Sequence[Closing], *, reply: str, end: End, give_up_at: float
    ) -> list[bytes]:
        """See `DispatcherLedger.close`."""
        return [self._close(closing, reply, end) for closing in closings]

    def _close(self, closing: Closing, reply: str, end: End) -> bytes:
        record = self._find(closing.key)
        if record is None:
            return MISSING
        if record.state == "settled":
            return record.outcome
        if record.state == "claimed" and end is End.UNSTARTED:
            return _running(record)
        if self._others_wait(record, reply, end):
            record.replies = [other for other in record.replies if other != reply]
            return OTHERS
        if record.state == "claimed":
            body = closing.claimed
            self.put(f"cancel:{record.worker}", closing.cancel)
        elif record.claims == 0 and record.epoch == self.epoch == closing.epoch:
            body = closing.unclaimed
        else:
            body = closing.doubtful
        self._finish(record, closing.nonce, closing.keep, body, except_reply=reply)
        return body

    def _others_wait(self, record: _Record, reply: str, end: End) -> bool:
        now = time.monotonic()
        left = {
            End.CANCEL: 1.0,
            End.UNSTARTED: record.until - now,
            End.DEADLINE: record.deadline - now - _OTHERS_AHEAD_SECONDS,
        }
        return left[end] > 0 and any(
            other in self.dispatchers for other in record.replies if other != reply
        )

    def _finish(
        self, record: _Record, nonce: str, keep: float, body: bytes, *, except_reply: str
    ) -> None:
        record.state, record.settled_by, record.outcome = "settled", nonce, body
        record.gone_at = time.monotonic() + keep
        for reply in record.replies:
            if reply != except_reply:
                self.put(reply, body)

    def _may_go(self, record: _Record) -> bool:
        return record.rerunnable or self.epoch in (record.epoch, record.goes_on)

    def _find(self, key: str) -> _Record | None:
        record = self._records.get(key)
        if record is not None and record.gone_at <= time.monotonic():
            del self._records[key]
            return None
        return record


def _running(record: _Record) -> bytes:
    return b"running " + record.worker.encode()

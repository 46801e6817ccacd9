"""A server in this process: the ledger's steps, queues, replies and catalog, without a network.

For users' own tests and `Dispatcher.in_memory`. It takes and gives bytes, as the real one does, and
one behaviour suite holds both to the same answers.
"""

import secrets
import time
from collections import defaultdict
from collections.abc import Sequence

from toolpool.contract.ledger.approvals import ApprovalsHeld
from toolpool.contract.ledger.base import (
    ATTACHED,
    ATTEMPTS_AT_MOST,
    MISSING,
    MOVED,
    NEW,
    OTHERS,
    RAN,
    RELEASES_AT_MOST,
    SENT,
    UNCLAIMED,
    Claim,
    CloseReason,
    Closing,
    Hold,
    Opening,
    Recovery,
    Refusal,
    Release,
    Settlement,
    again,
    running,
)
from toolpool.contract.ledger.events import MemoryEvents
from toolpool.contract.ledger.inboxes import Inboxes
from toolpool.contract.ledger.loops import MemoryLoops
from toolpool.contract.ledger.rates import MemoryRates
from toolpool.contract.ledger.record import Record
from toolpool.contract.ledger.shared import MemoryShared

_OUTPUTS_BYTES = 32 << 20
_OTHERS_AHEAD_SECONDS = 0.2


class MemoryServer(Inboxes):
    """Both sides' ledger, and the queues, reply streams and cancel lists between them."""

    def __init__(self, *, loop_memory: int = 32, loop_kept: float = 3600.0) -> None:
        super().__init__()
        self.epoch = f"memory.{secrets.token_hex(8)}"
        self.catalog: dict[str, bytes] = {}
        self.leases: dict[str, bytes] = {}
        self.dispatchers: set[str] = set()
        """The reply streams of those that live."""
        self.handles: dict[str, tuple[str, bytes]] = {}
        self.switches: dict[str, bytes] = {}
        self.circuits: dict[str, bytes] = {}
        self.trials: dict[str, tuple[str, float]] = {}
        """Which dispatcher may try the tool of a circuit, and until when."""
        self.outputs: dict[str, bytes] = {}
        self._outputs_of: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self._ran: set[str] = set()
        """What may not run twice and was claimed, whether its record is still there or not."""
        self.loops = MemoryLoops(remembered=loop_memory, kept=loop_kept)
        self.events = MemoryEvents()
        self.rates = MemoryRates(self._is_known, self._is_under_way)
        self.approvals = ApprovalsHeld()
        self._records: dict[str, Record] = {}
        self.shared = MemoryShared(self._find)

    def state(self, key: str) -> str | None:
        """The state of a record; None where there is none."""
        return record.state if (record := self._find(key)) is not None else None

    def _is_known(self, key: str) -> bool:
        record = self._find(key)
        return record is not None and record.anew_at is None

    def _is_under_way(self, key: str) -> bool | None:
        record = self._find(key)
        if record is None:
            return None
        is_open = record.state == "open" and record.until > time.monotonic()
        return record.state == "claimed" or is_open

    def outcome(self, key: str) -> bytes | None:
        """The outcome of a record; None where it has none."""
        return (record.outcome or None) if (record := self._find(key)) is not None else None

    def forget(self) -> None:
        """Lose every record and start another epoch, as a server does that lost its data."""
        self._records.clear()
        self.shared.forget()
        self._ran.clear()
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
        answers: list[bytes] = []
        created = False
        for opening in openings:
            answer = self._open(opening, nonce, reply, tried_in)
            created = created or answer is None
            answers.append(NEW if answer is None else answer)
        if created and message:
            self.put(queue, message)
        return self.epoch, answers

    def _open(self, opening: Opening, nonce: str, reply: str, tried_in: str | None) -> bytes | None:
        """None for a call that has a record only now."""
        now = time.monotonic()
        record = self._find(opening.key)
        anew_at = record.anew_at if record is not None else None
        if anew_at is not None and opening.asked_at > anew_at:
            del self._records[opening.key]
            record = None
        if record is None:
            if not opening.rerunnable and tried_in not in (None, self.epoch):
                return MOVED
            if opening.key in self._ran or (opening.again and not opening.rerunnable):
                self._ran.add(opening.key)
                return RAN
            self._records[opening.key] = Record(
                epoch=self.epoch,
                opened=nonce,
                attempt=opening.attempt,
                rerunnable=opening.rerunnable,
                until=now + opening.wait,
                deadline=now + opening.deadline,
                gone_at=now + opening.keep,
                replies=[reply],
            )
            return None
        if record.state == "settled":
            return record.outcome
        if record.opened == nonce:
            return NEW
        record.attach(reply, self.dispatchers)
        record.until = max(record.until, now + opening.wait)
        record.deadline = max(record.deadline, now + opening.deadline)
        record.gone_at = max(record.gone_at, now + opening.keep)
        return running(record.worker) if record.state == "claimed" else ATTACHED

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
        if not record.rerunnable:
            self._ran.add(claim.key)
        return record.deadline - now

    async def settle(self, settlements: Sequence[Settlement], *, give_up_at: float) -> list[str]:
        """See `WorkerLedger.settle`."""
        return [self._settle(settlement) for settlement in settlements]

    async def hold(self, holds: Sequence[Hold], *, worker: str, give_up_at: float) -> list[str]:
        """See `WorkerLedger.hold`."""
        return [self._hold(hold, worker) for hold in holds]

    def _hold(self, hold: Hold, worker: str) -> str:
        record = self._find(hold.key)
        if not hold.rerunnable:
            self._ran.add(hold.key)
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

    async def keep_output(self, handle: str, body: bytes, *, owner: str, keep: float) -> bool:
        """See `WorkerLedger.keep_output`."""
        kept = self._outputs_of[owner]
        if len(body) > _OUTPUTS_BYTES:
            return False
        while sum(kept.values()) + len(body) > _OUTPUTS_BYTES:
            oldest = next(iter(kept))
            del kept[oldest], self.outputs[oldest]
        self.outputs[handle], kept[handle] = body, len(body)
        return True

    def keep_longer(self, key: str, keep: float) -> None:
        """Keep the outcome of a call for so long, whenever it comes."""
        record = self._find(key)
        if record is not None:
            record.keep = keep
            record.gone_at = max(record.gone_at, time.monotonic() + keep)

    async def tell(self, reply: str, body: bytes) -> None:
        """See `WorkerLedger.tell`."""
        self.put(reply, body)

    def _settle(self, settlement: Settlement) -> str:
        record = self._find(settlement.key)
        if record is None:
            record = self._records[settlement.key] = self._settled_record([settlement.reply])
            self._finish(record, settlement.nonce, settlement.keep, settlement.body, "")
            return "gone"
        if record.state == "settled":
            return "first" if record.settled_by == settlement.nonce else "late"
        self._finish(record, settlement.nonce, settlement.keep, settlement.body, "")
        return "first"

    def _settled_record(self, replies: list[str]) -> Record:
        now = time.monotonic()
        return Record(
            epoch=self.epoch,
            opened="",
            attempt=1,
            rerunnable=False,
            until=now,
            deadline=now,
            gone_at=now,
            replies=replies,
        )

    async def recover(
        self, recoveries: Sequence[Recovery], *, reply: str, queue: str, give_up_at: float
    ) -> list[bytes]:
        """See `DispatcherLedger.recover`."""
        return [self._recover(recovery, reply, queue) for recovery in recoveries]

    def _recover(self, recovery: Recovery, reply: str, queue: str) -> bytes:
        record = self._find(recovery.key)
        if record is None:
            is_sure = recovery.epoch == self.epoch and recovery.key not in self._ran
            return UNCLAIMED if is_sure else MISSING
        if record.state == "settled":
            return record.outcome
        record.attach(reply, self.dispatchers)
        if record.recovered == recovery.nonce:
            return again(record.attempt)
        until = max(record.until, time.monotonic() + recovery.wait)
        if record.state == "open":
            if record.attempt > recovery.attempt:
                if record.attempt == recovery.attempt + 1 and self._may_go(record):
                    record.until = until
                    self.put(queue, recovery.next_message)
                return again(record.attempt)
            if not self._may_go(record):
                if not recovery.had_time:
                    return MOVED
                record.goes_on = self.epoch
            record.until, record.deadline = until, max(record.deadline, until)
            self.put(queue, recovery.message)
            return SENT
        if not recovery.lost_worker or record.worker != recovery.lost_worker:
            return running(record.worker)
        if record.rerunnable and record.attempt < ATTEMPTS_AT_MOST:
            record.state, record.worker = "open", ""
            record.attempt += 1
            record.until, record.recovered = until, recovery.nonce
            self.put(queue, recovery.next_message)
            return again(record.attempt)
        self._finish(record, recovery.nonce, recovery.keep, recovery.lost, reply)
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
            self._finish(record, release.claim_nonce, release.keep, release.too_often, "")
            return "released"
        record.state, record.worker, record.released = "open", "", release.claim_nonce
        record.attempt += 1
        record.claims -= not release.entered
        if not release.entered and not record.claims:
            self._ran.discard(release.key)
        for reply in record.replies:
            self.put(reply, release.notice)
        return "released"

    async def close(
        self, closings: Sequence[Closing], *, reply: str, end: CloseReason, give_up_at: float
    ) -> list[bytes]:
        """See `DispatcherLedger.close`."""
        return [self._close(closing, reply, end) for closing in closings]

    def _close(self, closing: Closing, reply: str, end: CloseReason) -> bytes:
        record = self._find(closing.key)
        if record is None:
            return MISSING if end is CloseReason.UNSTARTED else self._close_absent(closing, end)
        if record.state == "settled":
            return record.outcome
        if end is CloseReason.REFUSED:
            record.attach(reply, self.dispatchers)
            return running(record.worker) if record.state == "claimed" else ATTACHED
        if record.state == "claimed" and end is CloseReason.UNSTARTED:
            return running(record.worker)
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
        self._finish(record, closing.nonce, closing.keep, body, reply)
        return body

    def _close_absent(self, closing: Closing, end: CloseReason) -> bytes:
        """What is settled keeps anybody from running the call after this answer."""
        is_sure = closing.unsent and closing.epoch == self.epoch and closing.key not in self._ran
        body = closing.unclaimed if is_sure else closing.doubtful
        record = self._records[closing.key] = self._settled_record([])
        if is_sure and end is CloseReason.REFUSED and closing.anew_after is not None:
            record.anew_at = time.time() + closing.anew_after
        self._finish(record, closing.nonce, closing.keep, body, "")
        return body

    def _others_wait(self, record: Record, reply: str, end: CloseReason) -> bool:
        now = time.monotonic()
        left = {
            CloseReason.CANCEL: 0.0,
            CloseReason.LEAVE: 1.0,
            CloseReason.UNSTARTED: record.until - now,
            CloseReason.DEADLINE: record.deadline - now - _OTHERS_AHEAD_SECONDS,
            CloseReason.REFUSED: 1.0,
        }
        return left[end] > 0 and any(
            other in self.dispatchers for other in record.replies if other != reply
        )

    def _finish(
        self, record: Record, nonce: str, keep: float, body: bytes, except_reply: str
    ) -> None:
        record.state, record.settled_by, record.outcome = "settled", nonce, body
        record.gone_at = time.monotonic() + max(keep, record.keep)
        for reply in record.replies:
            if reply != except_reply:
                self.put(reply, body)

    def _may_go(self, record: Record) -> bool:
        return record.rerunnable or self.epoch in (record.epoch, record.goes_on)

    def _find(self, key: str) -> Record | None:
        record = self._records.get(key)
        if record is not None and record.gone_at <= time.monotonic():
            del self._records[key]
            return None
        return record

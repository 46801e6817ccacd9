"""The in-memory server: the ledger's steps, queues, replies and catalog without a network.

For users' own tests and `Dispatcher.in_memory`. It accepts and returns bytes like Redis, and one
behaviour suite tests both.
"""

import asyncio
import math
import secrets
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from toolpool.contract.ledger.event_stream import MemoryEvents
from toolpool.contract.ledger.failure_memory import MemoryFailures
from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.contract.ledger.memory_record import Record
from toolpool.contract.ledger.protocols import (
    APPROVED,
    ATTACHED,
    ATTEMPTS_AT_MOST,
    LAPSED,
    LIMITED,
    MISSING,
    MOVED,
    NEW,
    OTHERS,
    RAN,
    RELEASES_AT_MOST,
    SENT,
    STALE,
    STARTED_OR_ENDED,
    UNCLAIMED,
    WAITING,
    Claim,
    ClaimRenewal,
    CloseReason,
    Closing,
    Opening,
    RecoveryRequest,
    Refusal,
    Release,
    Settlement,
    SwitchChange,
    again,
    running,
)
from toolpool.contract.ledger.rate_counters import MemoryRates
from toolpool.contract.ledger.shared_runs import MemoryShared
from toolpool.contract.redis_keys import retry_key, retry_of, root_of

_OUTPUTS_BYTES = 32 << 20
_OTHERS_AHEAD_SECONDS = 0.2
_EARLY_SECONDS = 1.0
"""Dispatchers end waiting calls by their own clocks, which may be ahead by this much."""

REPORT_SECONDS = 3.0
"""How long processes may take to report what was lost with the last epoch."""


@dataclass(slots=True)
class _Inbox:
    items: deque[bytes] = field(default_factory=deque)
    filled: asyncio.Event = field(default_factory=asyncio.Event)


class MemoryServer:
    """Both sides' ledger, and the queues, reply streams and cancel lists between them."""

    def __init__(self) -> None:
        self._inboxes: defaultdict[str, _Inbox] = defaultdict(_Inbox)
        """Queues, reply streams and cancel lists, each created on first use."""
        self.epoch = f"memory.{secrets.token_hex(8)}"
        self.reports_until = 0.0
        self._began = time.time() - time.monotonic()
        self.catalog: dict[str, bytes] = {}
        self.leases: dict[str, bytes] = {}
        self.dispatchers: set[str] = set()
        """The reply streams of living dispatchers."""
        self.handles: dict[str, tuple[str, bytes]] = {}
        self.switch_states: dict[str, bytes] = {}
        self.switch_version = ""
        self.circuits: dict[str, bytes] = {}
        self.trials: dict[str, tuple[str, float]] = {}
        """For each open circuit: the dispatcher that may try the tool, and until when."""
        self.outputs: dict[str, bytes] = {}
        self._outputs_of: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self.shared_until: dict[str, float] = {}
        """The calls that share a run, and until when this is remembered."""
        self.marks: dict[str, float] = {}
        """Until when a call cannot be claimed: it ended, or was claimed and may not run twice."""
        self.ended: set[str] = set()
        """Calls whose tools ended after they were answered."""
        self.failures = MemoryFailures()
        self.events = MemoryEvents()
        self.rates = MemoryRates(self._is_known, self._is_under_way)
        self.records: dict[str, Record] = {}
        """All records by key, including expired ones."""
        self.shared = MemoryShared(self.record)

    def put(self, name: str, item: bytes) -> None:
        """Append to a queue, reply stream or cancel list."""
        inbox = self._inboxes[name]
        inbox.items.append(item)
        inbox.filled.set()

    async def take(self, *names: str) -> tuple[str, bytes]:
        """Wait for an item in one of `names`; returns the queue's name and the item."""
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
        """The length of a queue, stream or list."""
        return len(self._inboxes[name].items)

    def time(self) -> float:
        """Fleet time in seconds since 1970, unaffected by jumps of this host's clock."""
        return self._began + time.monotonic()

    def state(self, key: str) -> str | None:
        """The state of a record; None if there is no record."""
        return record.state if (record := self.record(key)) is not None else None

    def _is_known(self, key: str) -> bool:
        record = self.record(key)
        if record is None or record.state in ("waiting", "approved"):
            return False
        return record.anew_at is None

    def _is_under_way(self, key: str) -> bool | None:
        record = self.record(key)
        if record is None:
            return None
        return record.state == "open" and record.until > time.monotonic()

    def outcome(self, key: str) -> bytes | None:
        """The outcome of a record; None if it has none."""
        return (record.outcome or None) if (record := self.record(key)) is not None else None

    def forget(self) -> None:
        """Drop every record and start another epoch, like a server that has lost its data."""
        self.records.clear()
        self.shared.forget()
        self.marks.clear()
        self.shared_until.clear()
        self.switch_states.clear()
        self.begin_epoch(f"memory.{secrets.token_hex(8)}")

    def begin_epoch(self, epoch: str) -> None:
        """Start another epoch, as a server does after a failover."""
        self.epoch, self.switch_version = epoch, ""
        self.reports_until = time.monotonic() + REPORT_SECONDS

    @property
    def awaits_reports(self) -> bool:
        """Whether processes may still have to report what was lost with the last epoch."""
        return time.monotonic() < self.reports_until

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
        """Create or join the records of calls and publish their message."""
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
        """The answer for one call; None if a record was created for it."""
        now = time.monotonic()
        record = self.asked_anew(opening.key, opening.asked_at)
        if record is None:
            if not opening.rerunnable and tried_in not in (None, self.epoch):
                return MOVED
            is_asked_again = opening.again and not opening.rerunnable
            if (
                opening.approved
                or is_asked_again
                or self.is_marked(
                    opening.key, may_share=opening.rerunnable, asked_at=opening.asked_at
                )
            ):
                self.marks.setdefault(opening.key, math.inf)
                return RAN
            if self.awaits_reports and (not opening.rerunnable or opening.exclusive):
                return MOVED
            self.records[opening.key] = Record(
                epoch="" if self.awaits_reports else self.epoch,
                goes_on=self.epoch,
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
            self._keep_mark_with(opening.key, record)
            return record.outcome
        if record.opened == nonce:
            return NEW
        is_approved = record.state == "approved" and opening.approved
        if is_approved and (refused := self._not_sendable(record)):
            return refused
        record.attach(reply, self.dispatchers)
        if is_approved:
            record.state, record.epoch, record.opened = "open", self.epoch, nonce
            record.attempt, record.until, record.deadline = opening.attempt, 0.0, 0.0
        elif record.state in ("waiting", "approved"):
            return WAITING if record.state == "waiting" else APPROVED
        record.until = max(record.until, now + opening.wait)
        record.deadline = max(record.deadline, now + opening.deadline)
        record.gone_at = max(record.gone_at, now + opening.keep)
        if is_approved:
            return None
        return running(record.worker) if record.state == "claimed" else ATTACHED

    def _not_sendable(self, record: Record) -> bytes | None:
        """Why an approved call may not be sent; None if it may."""
        if not record.rerunnable and record.epoch != self.epoch:
            return MOVED
        return LAPSED if record.expires <= self.time() else None

    def asked_anew(self, key: str, asked_at: float) -> Record | None:
        """The record of a call that was dispatched; an expired temporary refusal is removed.

        An approved call stays approved.
        """
        record = self.record(key)
        if record is None or record.anew_at is None or asked_at <= record.anew_at:
            return record
        record.anew_at = None
        if record.approval == "approved":
            record.state, record.outcome, record.settled_by = "approved", b"", ""
            return record
        del self.records[key]
        return None

    async def claim(
        self,
        claims: Sequence[Claim],
        *,
        worker: str,
        give_up_at: float,
        switches: str | None = None,
        now: float = 0.0,
    ) -> list[float | Refusal]:
        """Claim calls; answers the seconds left for each, or why it was refused."""
        is_stale = switches not in (None, f"{self.epoch} {self.switch_version}")
        return [self._claim(claim, worker, is_stale=is_stale) for claim in claims]

    def _claim(self, claim: Claim, worker: str, *, is_stale: bool) -> float | Refusal:
        now = time.monotonic()
        record = self.record(claim.key)
        if record is None:
            return "absent"
        if record.state == "settled":
            return "settled"
        if record.attempt != claim.attempt:
            return "attempt"
        if record.state == "claimed":
            return record.deadline - now if record.claimed == claim.nonce else "claimed"
        if (refusal := self._not_startable(claim, record, worker, is_stale)) is not None:
            return refusal
        record.state, record.claimed, record.worker = "claimed", claim.nonce, worker
        record.claims += 1
        record.rerunnable = record.rerunnable and claim.rerunnable
        if not record.rerunnable:
            self.marks[claim.key] = math.inf
        return record.deadline - now

    def _not_startable(
        self, claim: Claim, record: Record, worker: str, is_stale: bool
    ) -> Refusal | None:
        """Why an unclaimed call may not be started; None if it may."""
        if record.state != "open":
            return record.state
        if record.approval not in ("", "approved"):
            return record.approval
        if record.until <= time.monotonic():
            return "expired"
        if self.epoch not in (record.epoch, record.goes_on):
            return "moved"  # it may have been cancelled in the meantime
        if record.rerunnable and not claim.rerunnable and record.claims:
            return STARTED_OR_ENDED  # a newer release no longer lets it run twice
        if is_stale:
            return STALE
        reads_mark = claim.approved or not (record.rerunnable and claim.rerunnable)
        if reads_mark and self.has_mark(claim.key):
            return STARTED_OR_ENDED
        if claim.limits and not self.rates.may_start(claim.key, claim.nonce, claim.limits, worker):
            return LIMITED
        return None

    async def switches(self, *changes: SwitchChange) -> tuple[str, dict[str, bytes]]:
        """The version and states of all switches, after these changes."""
        states = self.switch_states
        for change in changes:
            if states.get(change.field, b"") == change.before:
                states[change.field] = change.after
                self.switch_version = new_nonce()
        return f"{self.epoch} {self.switch_version}", dict(states)

    async def settle(self, settlements: Sequence[Settlement], *, give_up_at: float) -> list[str]:
        """Store outcomes; answers `first`, `late` or `gone` for each."""
        return [self._settle(settlement) for settlement in settlements]

    async def renew(
        self, renewals: Sequence[ClaimRenewal], *, worker: str, give_up_at: float
    ) -> list[str]:
        """Renew the claims of running calls: `renewed`, `settled`, `absent` or `lost` for each."""
        return [self._renew(renewal, worker) for renewal in renewals]

    def _renew(self, renewal: ClaimRenewal, worker: str) -> str:
        record = self.record(renewal.key)
        if not renewal.rerunnable:
            self.marks[renewal.key] = math.inf
        if record is None:
            return "absent"
        if record.state == "settled":
            return "settled"
        if record.state == "claimed":
            return "renewed" if record.claimed == renewal.claim_nonce else "lost"
        if record.attempt != renewal.attempt:
            return "lost"
        record.state, record.claimed, record.worker = "claimed", renewal.claim_nonce, worker
        record.claims += 1
        return "renewed"

    async def keep_output(self, handle: str, body: bytes, *, owner: str, keep: float) -> bool:
        """Store a whole output. Returns whether there was room."""
        kept = self._outputs_of[owner]
        if len(body) > _OUTPUTS_BYTES:
            return False
        while sum(kept.values()) + len(body) > _OUTPUTS_BYTES:
            oldest = next(iter(kept))
            del kept[oldest], self.outputs[oldest]
        self.outputs[handle], kept[handle] = body, len(body)
        return True

    def hand_over(self, key: str, keep: float) -> None:
        """Record that a call has a handle, and extend the time for which its outcome is kept."""
        record = self.record(key)
        if record is not None:
            record.is_handed_over = True
            record.keep = max(record.keep, keep)
            record.gone_at = max(record.gone_at, time.monotonic() + keep)

    async def send_reply(self, stream: str, body: bytes) -> None:
        """Put a message on a reply stream."""
        self.put(stream, body)

    async def note_ended(self, keys: Sequence[str], *, keep: float) -> None:
        """Record that the tools of answered calls have ended."""
        self.ended.update(keys)

    def _settle(self, settlement: Settlement) -> str:
        record = self.record(settlement.key)
        if record is None:
            record = self.records[settlement.key] = self._settled_record([settlement.reply])
            self.finish(record, settlement.nonce, settlement.keep, settlement.body, "")
            return "gone"
        if record.state == "settled":
            return "first" if record.settled_by == settlement.nonce else "late"
        self.finish(record, settlement.nonce, settlement.keep, settlement.body, "")
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
        self, recoveries: Sequence[RecoveryRequest], *, reply: str, queue: str, give_up_at: float
    ) -> list[bytes]:
        """Restart or settle calls whose message or worker is lost."""
        return [self._recover(recovery, reply, queue) for recovery in recoveries]

    def _recover(self, recovery: RecoveryRequest, reply: str, queue: str) -> bytes:
        record = self.record(recovery.key)
        if record is None:
            is_sure = recovery.epoch == self.epoch and not self.has_mark(recovery.key)
            return UNCLAIMED if is_sure else MISSING
        if record.state == "settled":
            return record.outcome
        record.attach(reply, self.dispatchers)
        if record.recovered == recovery.nonce:
            return again(record.attempt)
        until = max(record.until, time.monotonic() + recovery.wait)
        if record.state in ("waiting", "approved"):
            return WAITING if record.state == "waiting" else APPROVED
        if record.state == "open":
            if record.attempt > recovery.attempt:
                is_next = record.attempt == recovery.attempt + 1 and self._may_go(record)
                if is_next and recovery.next_message:
                    record.until, record.goes_on = until, self.epoch
                    self.put(queue, recovery.next_message)
                return again(record.attempt)
            if not self._may_go(record) and not recovery.had_time:
                return MOVED
            record.goes_on = self.epoch
            record.until, record.deadline = until, max(record.deadline, until)
            self.put(queue, recovery.message)
            return SENT
        if not recovery.lost_worker or record.worker != recovery.lost_worker:
            return running(record.worker)
        if record.rerunnable and record.attempt < ATTEMPTS_AT_MOST and recovery.next_message:
            record.state, record.worker = "open", ""
            record.attempt += 1
            record.until, record.recovered = until, recovery.nonce
            record.goes_on = self.epoch
            self.put(queue, recovery.next_message)
            return again(record.attempt)
        self.finish(record, recovery.nonce, recovery.keep, recovery.lost, reply)
        return recovery.lost

    async def release(
        self, releases: Sequence[Release], *, worker: str, give_up_at: float
    ) -> list[str]:
        """Give claimed calls back; answers `released` or `late` for each."""
        return [self._release(release) for release in releases]

    def _release(self, release: Release) -> str:
        record = self.record(release.key)
        if record is None:
            return "late"
        if record.state != "claimed" or record.claimed != release.claim_nonce:
            ours = (record.released, record.settled_by)
            return "released" if release.claim_nonce in ours else "late"
        record.releases += 1
        if record.releases > RELEASES_AT_MOST:
            self.finish(record, release.claim_nonce, release.keep, release.too_often, "")
            return "released"
        record.state, record.worker, record.released = "open", "", release.claim_nonce
        record.attempt += 1
        record.claims -= not release.entered
        if not release.entered and not record.claims:
            self.marks.pop(release.key, None)
        for reply in record.replies:
            self.put(reply, release.notice)
        return "released"

    async def close(
        self, closings: Sequence[Closing], *, reply: str, end: CloseReason, give_up_at: float
    ) -> list[bytes]:
        """End calls; answers the outcome or state of each."""
        return [self._close(closing, reply, end) for closing in closings]

    def _close(self, closing: Closing, reply: str, end: CloseReason) -> bytes:
        record = self.record(closing.key)
        if record is None:
            return self._close_absent(closing, reply, end)
        if record.state == "settled":
            return self._close_settled(record, closing, end)
        is_left = record.state == "claimed" or (record.state == "open" and not closing.unsent)
        if end is CloseReason.REJECTED or (end is CloseReason.RESTORED and is_left):
            return running(record.worker) if record.state == "claimed" else record.state.encode()
        if record.state in ("waiting", "approved"):
            return self._close_unsent(record, closing, reply, end)
        if end in (CloseReason.REFUSED, CloseReason.UNAPPROVED, CloseReason.USED):
            record.attach(reply, self.dispatchers)
            return running(record.worker) if record.state == "claimed" else ATTACHED
        if record.state == "claimed" and end in (CloseReason.UNSTARTED, CloseReason.DENIED):
            return running(record.worker)
        if self._others_wait(closing.key, record, reply, end):
            record.replies = [other for other in record.replies if other != reply]
            return OTHERS
        if record.state == "claimed":
            body = closing.claimed
            self.put(f"cancel:{record.worker}", closing.cancel)
        elif (
            record.claims == 0
            and record.epoch == self.epoch == closing.epoch
            and not self.is_marked(closing.key)
        ):
            body = closing.unclaimed
        else:
            body = closing.doubtful
        is_denied = end is CloseReason.DENIED and body is closing.unclaimed
        anew_after = closing.anew_after if is_denied else None
        if anew_after is not None:
            record.anew_at = self.time() + anew_after
        self.finish(record, closing.nonce, closing.keep, body, reply, tells=anew_after is None)
        if closing.leaves_mark and not (record.approval and record.anew_at is not None):
            self._mark_end(closing.key, record)
        return body

    def _close_settled(self, record: Record, closing: Closing, end: CloseReason) -> bytes:
        if end in (CloseReason.CANCEL, CloseReason.REJECTED) and record.anew_at is not None:
            self._end_refused(record, closing)
            return record.outcome
        if end in (CloseReason.REFUSED, CloseReason.REJECTED) and record.anew_at is None:
            # It cannot run before the time of this refusal is over.
            record.gone_at = max(record.gone_at, time.monotonic() + closing.keep)
        self._keep_mark_with(closing.key, record)
        return record.outcome

    def _keep_mark_with(self, key: str, record: Record) -> None:
        """Extend the mark of a settled call to the end of its record, which was read."""
        if 0 < self.marks.get(key, math.inf) < record.gone_at:
            self.marks[key] = record.gone_at

    def _end_refused(self, record: Record, closing: Closing) -> None:
        """End a temporarily refused call for good."""
        is_sure = record.epoch == self.epoch and not self.is_marked(closing.key)
        record.anew_at = None
        record.approval = "cancelled" if record.approval else ""
        kept = max(closing.keep, record.gone_at - time.monotonic())
        body = closing.unclaimed if is_sure else closing.doubtful
        self.finish(record, closing.nonce, kept, body, "", tells=False)
        self.mark_ended(closing.key)

    def _close_unsent(
        self, record: Record, closing: Closing, reply: str, end: CloseReason
    ) -> bytes:
        """End a call that needs approval and was not sent."""
        approval = self._approval_after(record, closing, reply, end)
        if approval is None:
            is_left = end is CloseReason.DEADLINE and record.state == "approved"
            if is_left or end is CloseReason.LEAVE:
                record.replies = [other for other in record.replies if other != reply]
                return OTHERS
            record.attach(reply, self.dispatchers)
            return WAITING if record.state == "waiting" else APPROVED
        if end is CloseReason.REFUSED and closing.anew_after is not None:
            record.anew_at = self.time() + closing.anew_after
        is_current = record.unsent_in == self.epoch or end is CloseReason.USED
        is_sure = is_current and not self.is_marked(closing.key)
        body = closing.unclaimed if is_sure else closing.doubtful
        has_ended_before = end is CloseReason.USED and not is_sure
        record.approval = "cancelled" if has_ended_before else approval
        kept = max(closing.keep, record.gone_at - time.monotonic())
        is_over = record.approval != "approved"
        self.finish(record, closing.nonce, kept, body, reply, tells=is_over)
        if is_over:
            self.mark_ended(closing.key)
        return body

    def _approval_after(
        self, record: Record, closing: Closing, reply: str, end: CloseReason
    ) -> str | None:
        """The final approval state of a call that ends; None if the call continues."""
        # One dispatcher's timeout is not enough: others may wait longer.
        early = _EARLY_SECONDS if record.state == "waiting" else 0.0
        is_over = record.expires <= self.time() + early
        if end in (CloseReason.DEADLINE, CloseReason.UNAPPROVED) and is_over:
            return "expired"
        if end in (CloseReason.CANCEL, CloseReason.RESTORED):
            return "cancelled"
        if end is CloseReason.USED and record.state == "approved":
            return "approved"
        if end is CloseReason.DEADLINE and record.state == "approved":
            return None if self._others_live(closing.key, record, reply, end) else "expired"
        is_for_all = end is CloseReason.REFUSED and record.state == "approved"
        if end not in (CloseReason.LEAVE, CloseReason.REFUSED):
            return None
        # A refusal of an approved call ends this attempt for all: each would leave it to others.
        if not is_for_all and self._others_live(closing.key, record, reply, end):
            return None
        if end is CloseReason.LEAVE or closing.anew_after is None:
            return "cancelled"
        return "approved" if record.state == "approved" else None

    def _close_absent(self, closing: Closing, reply: str, end: CloseReason) -> bytes:
        """Create a settled record, so that the call cannot run after this answer."""
        is_left = end is CloseReason.RESTORED and not closing.unsent
        if is_left or end is CloseReason.UNSTARTED:
            return MISSING
        if self._others_retry(closing.key, reply, end):
            return OTHERS
        is_marked = self.is_marked(closing.key)
        is_new = closing.unsent and closing.epoch == self.epoch and not is_marked
        is_sure = is_new and not self.awaits_reports
        body = closing.unclaimed if is_sure else closing.doubtful
        record = self.records[closing.key] = self._settled_record([])
        record.epoch = "" if self.awaits_reports else self.epoch
        if is_new and end is CloseReason.REFUSED and closing.anew_after is not None:
            record.anew_at = self.time() + closing.anew_after
        self.finish(record, closing.nonce, closing.keep, body, "")
        if closing.leaves_mark or record.anew_at is None:
            self._mark_end(closing.key, record)
        return body

    def _mark_end(self, key: str, record: Record) -> None:
        """Mark a call that ended unclaimed. A negative value marks a temporary refusal."""
        if record.anew_at is None:
            self.mark_ended(key)
        else:
            self.marks[key] = self._began - record.anew_at

    def _others_wait(self, key: str, record: Record, reply: str, end: CloseReason) -> bool:
        now = time.monotonic()
        left = {
            CloseReason.CANCEL: 0.0,
            CloseReason.LEAVE: 1.0,
            CloseReason.UNSTARTED: record.until - now,
            CloseReason.DEADLINE: record.deadline - now - _OTHERS_AHEAD_SECONDS,
            CloseReason.DENIED: 0.0,
            CloseReason.RESTORED: 0.0,
        }
        return left[end] > 0 and self._others_live(key, record, reply, end)

    def _others_retry(self, key: str, reply: str, end: CloseReason) -> bool:
        """Whether others were sent the outcome of the attempt before: they may retry, too."""
        number = retry_of(key) if end is CloseReason.LEAVE else 0
        before = self.record(retry_key(root_of(key), number - 1)) if number else None
        if before is None:
            return False
        before.replies = [other for other in before.replies if other != reply]
        return not self.dispatchers.isdisjoint(before.replies)

    def _others_live(self, key: str, record: Record, reply: str, end: CloseReason) -> bool:
        """Whether others wait for the call, or may ask for it by its handle."""
        if self._others_retry(key, reply, end) or (
            record.is_handed_over and end is CloseReason.LEAVE
        ):
            return True
        others = (other for other in record.replies if other != reply)
        return not self.dispatchers.isdisjoint(others)

    def finish(
        self,
        record: Record,
        nonce: str,
        keep: float,
        body: bytes,
        except_reply: str,
        *,
        tells: bool = True,
    ) -> None:
        """Settle a record and notify all of its dispatchers except `except_reply`."""
        record.state, record.settled_by, record.outcome = "settled", nonce, body
        record.gone_at = time.monotonic() + max(keep, record.keep)
        for reply in record.replies if tells else ():
            if reply != except_reply:
                self.put(reply, body)

    def is_marked(
        self, key: str, *, may_share: bool = False, asked_at: float | None = None
    ) -> bool:
        """Whether a call that was dispatched at `asked_at` (fleet time), or now, must not run.

        The reason is that it was claimed and may not run twice, that it ended after it was
        dispatched, or that it shares a run. With `may_share`, sharing a run is no obstacle.
        """
        now = time.monotonic()
        if not may_share and self.shared_until.get(key, 0.0) > now:
            return True
        asked = now if asked_at is None else asked_at - self._began
        ends = self.marks.get(key, -math.inf)
        if asked_at is None or ends == -math.inf:
            return ends > asked
        if abs(ends) > asked:
            return True
        del self.marks[key]
        return False

    def has_mark(self, key: str) -> bool:
        """Whether a call has any mark, even a mark that a later request may remove."""
        return key in self.marks or self.is_marked(key)

    def note_shared(self, key: str, keep: float) -> bool:
        """Record for `keep` seconds that a call shares a run.

        Returns whether it was recorded before.
        """
        now = time.monotonic()
        while self.shared_until and next(iter(self.shared_until.values())) <= now:
            del self.shared_until[next(iter(self.shared_until))]
        if self.shared_until.get(key, 0.0) > now:
            return True
        if not self.is_marked(key):
            self.shared_until[key] = now + keep
        return False

    def mark_ended(self, key: str) -> None:
        """Mark a settled call for as long as its record is kept."""
        if not self.is_marked(key, may_share=True):
            self.marks[key] = self.records[key].gone_at

    def _may_go(self, record: Record) -> bool:
        return record.rerunnable or self.epoch in (record.epoch, record.goes_on)

    def record(self, key: str) -> Record | None:
        """A record; None if there is none or it has expired."""
        record = self.records.get(key)
        if record is not None and record.gone_at <= time.monotonic():
            del self.records[key]
            return None
        return record

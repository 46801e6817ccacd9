"""The ledger as a few lines of plain Python: what every step has to answer, and to send.

Written from the design, not from the Lua. Times are left out: a record's queue wait is over or not.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from toolpool.contract.ledger.protocols import CloseReason

ATTEMPTS = 3
RELEASES = 3
ASKERS = 16

Sent = defaultdict[str, list[bytes]]


@dataclass
class Record:
    """One call."""

    epoch: str
    opened: str
    rerun: bool
    over: bool
    askers: list[str]
    attempt: int = 1
    claims: int = 0
    releases: int = 0
    worker: str = ""
    goes_on: str = ""
    """A later epoch in which it may be claimed."""
    claimed: str = ""
    """The nonce of the claim that holds; empty where none does."""
    recovered: str = ""
    released: str = ""
    settled: str = ""
    outcome: bytes | None = None
    never_sent: bool = False
    """Settled by a dispatcher that refused it."""
    anew: bool = False
    """Whoever asks for it later may run it."""
    approval: str = ""
    """How far its approval is, if a person has to approve it."""
    unsent: bool = False
    """Whether it waits for its approval, or for whoever sends it then."""
    decision: bytes = b""
    unsent_in: str = ""
    """The epoch in which it was known that nobody had sent it."""
    lapsed: bool = False
    """Whether the time of its approval is over."""
    handed_over: bool = False

    @property
    def state(self) -> str:
        """As the record has it."""
        if self.outcome is not None:
            return "settled"
        if self.unsent:
            return self.approval
        return "claimed" if self.claimed else "open"

    def attach(self, reply: str, alive: set[str]) -> None:
        """Note who wants to be told; the dead make room, and who finds none is not told."""
        if reply in self.askers:
            return
        if len(self.askers) >= ASKERS:
            self.askers = [asker for asker in self.askers if asker in alive]
        if len(self.askers) < ASKERS:
            self.askers = [*self.askers, reply]

    def reopen(self) -> None:
        """Wait for the next attempt."""
        self.attempt += 1
        self.claimed = self.worker = ""


@dataclass
class Model:
    """Answers as `RedisLedger` does, but for a won claim: `won`."""

    epoch: str
    records: dict[str, Record] = field(default_factory=dict)
    marks: dict[str, str] = field(default_factory=dict)
    """Calls that were claimed and may not run twice (`ran`), or ended unclaimed (`ended`).

    `over`: the record of the latter is gone; it no longer stops who asks later. `refused` for a
    time: it stops who asked before.
    """
    alive: set[str] = field(default_factory=set)
    """Dispatchers that hold a lease."""
    sent: Sent = field(default_factory=lambda: defaultdict(list))
    switches: dict[str, bytes] = field(default_factory=dict)
    changes: int = 0
    """How often a switch was set, or the server came back with another epoch."""
    is_early: bool = False
    """Whether processes have to report yet what the server lost with the last epoch."""

    def open(
        self,
        keys: list[str],
        nonce: str,
        reply: str,
        rerun: bool,
        over: bool,
        message: bytes,
        again: bool = False,
        later: bool = False,
        approved: bool = False,
        exclusive: bool = False,
    ) -> list[bytes]:
        """`later`: asked after everything that happened before this step."""
        answers = []
        is_new = False
        for key in keys:
            record = self._asked_anew(key, later)
            if record is None and (approved or (again and not rerun) or self._stops(key, later)):
                self.marks.setdefault(key, "ran")
                answers.append(b"ran")
            elif record is None and self.is_early and (exclusive or not rerun):
                answers.append(b"moved")
            elif record is None:
                record = self.records[key] = Record(self._known_in(), nonce, rerun, over, [reply])
                record.goes_on = self.epoch
                is_new = True
                answers.append(b"new")
            elif record.outcome is not None:
                self._keep_mark(key)
                answers.append(record.outcome)
            elif record.opened == nonce:
                answers.append(b"new")
            elif record.unsent and not (approved and record.approval == "approved"):
                record.attach(reply, self.alive)
                answers.append(record.approval.encode())
            elif record.unsent and not rerun and record.epoch != self.epoch:
                answers.append(b"moved")
            elif record.unsent and record.lapsed:
                answers.append(b"lapsed")
            elif record.unsent:
                record.attach(reply, self.alive)
                record.unsent, record.epoch, record.opened = False, self.epoch, nonce
                record.over = over
                is_new = True
                answers.append(b"new")
            else:
                record.attach(reply, self.alive)
                record.over = record.over and over
                answers.append(_running(record) if record.claimed else b"open")
        if is_new:
            self.sent["queue"].append(message)
        return answers

    def _known_in(self) -> str:
        """The epoch of a new record; none if it may have been there before the server lost it."""
        return "" if self.is_early else self.epoch

    def _asked_anew(self, key: str, later: bool) -> Record | None:
        """The record of a call that is asked for; a refusal for a time is forgotten after it."""
        record = self.records.get(key)
        if record is None or not (record.anew and later):
            return record
        if record.approval != "approved":
            del self.records[key]
            return None
        record.anew, record.unsent, record.outcome, record.settled = False, True, None, ""
        return record

    def ask(
        self, key: str, nonce: str, reply: str, rerun: bool, again: bool
    ) -> tuple[str, str, str]:
        """The answer, and the state and approval of the record."""
        record = self._asked_anew(key, later=True)
        if record is None and ((again and not rerun) or self._stops(key, later=True)):
            self.marks.setdefault(key, "ran")
            return "ran", "", ""
        if record is None:
            record = self.records[key] = Record(self._known_in(), nonce, rerun, True, [reply])
            record.approval, record.unsent, record.unsent_in = "waiting", True, self._known_in()
        elif record.outcome is None:
            record.attach(reply, self.alive)
        is_new = record.opened == nonce and record.outcome is None
        return "new" if is_new else "", record.state, record.approval

    def decide(
        self, key: str, nonce: str, approved: bool, late: bool, bodies: dict[str, bytes]
    ) -> str:
        """Empty where it is done. `late`: the time that it is good for is over."""
        record = self.records.get(key)
        if record is None:
            return "gone"
        if record.decision == bodies["decision"]:
            return ""
        if record.state != "waiting":
            return record.approval or record.state
        if late or record.lapsed:
            return "expired"
        record.decision = bodies["decision"]
        record.approval = "approved" if approved else "denied"
        for asker in record.askers:
            self.sent[asker].append(bodies["notice"])
        if not approved:
            is_sure = record.unsent_in == self.epoch and not self._is_marked(key)
            self._end(record, nonce, bodies["no" if is_sure else "unknown"])
            self._mark_ended(key)
        return ""

    def confirm(self, key: str) -> str:
        """By a dispatcher that waits for it and has not sent it; its state, or that it ran."""
        record = self.records.get(key)
        if record is None:
            return ""
        if record.unsent and record.outcome is None:
            if record.epoch != self.epoch and key in self.marks:
                return "ran"
            was_unsent = record.unsent_in != "" and record.unsent_in == record.epoch
            if was_unsent and self.alive.issuperset(record.askers):
                record.unsent_in = self.epoch
            record.epoch = self.epoch
        return record.state

    def lapse(self, key: str) -> None:
        """The time of its approval passes."""
        record = self.records.get(key)
        if record is not None and record.unsent and record.outcome is None:
            record.lapsed = True

    def switch(self, field: str, before: bytes, after: bytes) -> dict[str, bytes]:
        """The states after a change, which is made only to the state `before`."""
        if self.switches.get(field, b"") == before:
            self.switches[field] = after
            self.changes += 1
        return dict(self.switches)

    def claim(
        self, key: str, attempt: int, nonce: str, worker: str, read: int | None, approved: bool
    ) -> str:
        """`read` is `changes` when the worker read the switches last; None does not look at it."""
        record = self.records.get(key)
        if record is None:
            return "absent"
        if record.outcome is not None:
            return "settled"
        if record.attempt != attempt:
            return "attempt"
        if record.claimed:
            return "won" if record.claimed == nonce else "claimed"
        if record.unsent or record.approval not in ("", "approved"):
            return record.approval
        if record.over:
            return "expired"
        if self.epoch not in (record.epoch, record.goes_on):
            return "moved"
        if read not in (None, self.changes):
            return "stale"
        if key in self.marks and (approved or not record.rerun):
            return "ran"
        record.claimed, record.worker = nonce, worker
        record.claims += 1
        if not record.rerun:
            self.marks[key] = "ran"
        return "won"

    def renew(self, key: str, attempt: int, nonce: str, worker: str, rerun: bool) -> str:
        record = self.records.get(key)
        if not rerun:
            self.marks[key] = "ran"
        if record is None:
            return "absent"
        if record.outcome is not None:
            return "settled"
        if record.claimed:
            return "renewed" if record.claimed == nonce else "lost"
        if record.attempt != attempt:
            return "lost"
        record.claimed, record.worker, record.unsent = nonce, worker, False
        record.claims += 1
        return "renewed"

    def settle(self, key: str, nonce: str, reply: str, body: bytes) -> str:
        record = self.records.get(key)
        if record is None:
            record = self.records[key] = Record(self.epoch, "", False, False, [reply])
            self._end(record, nonce, body)
            return "gone"
        if record.outcome is not None:
            return "first" if record.settled == nonce else "late"
        self._end(record, nonce, body)
        return "first"

    def close(
        self,
        key: str,
        nonce: str,
        epoch: str,
        reply: str,
        end: CloseReason,
        bodies: dict[str, bytes],
        unsent: bool = False,
        anew: bool = False,
    ) -> bytes:
        record = self.records.get(key)
        if record is None:
            return self._close_absent(key, nonce, epoch, reply, end, bodies, unsent, anew)
        if record.outcome is not None:
            return self._close_settled(key, record, nonce, end, bodies)
        is_left = bool(record.claimed) or not (record.unsent or unsent)
        if end is CloseReason.REJECTED or (end is CloseReason.RESTORED and is_left):
            return _running(record) if record.claimed else record.state.encode()
        if record.unsent:
            return self._close_unsent(key, record, nonce, reply, end, bodies, anew)
        if end in (CloseReason.REFUSED, CloseReason.UNAPPROVED, CloseReason.USED):
            record.attach(reply, self.alive)
            return _running(record) if record.claimed else b"open"
        if record.claimed and end in (CloseReason.UNSTARTED, CloseReason.DENIED):
            return _running(record)
        others = [asker for asker in record.askers if asker != reply]
        is_for_all = end in (CloseReason.CANCEL, CloseReason.DENIED, CloseReason.RESTORED)
        is_over = is_for_all or (end is CloseReason.UNSTARTED and record.over)
        if self._is_wanted(key, record, others, reply, end) and not is_over:
            record.askers = others
            return b"others"
        if record.claimed:
            self.sent[f"cancel:{record.worker}"].append(bodies["cancel"])
            body = bodies["timeout"]
        elif (
            record.claims == 0 and record.epoch == self.epoch == epoch and not self._is_marked(key)
        ):
            body = bodies["no"]
        else:
            body = bodies["unknown"]
        self._end(record, nonce, body, but=reply)
        self._mark_ended(key)
        return body

    def _close_absent(
        self,
        key: str,
        nonce: str,
        epoch: str,
        reply: str,
        end: CloseReason,
        bodies: dict[str, bytes],
        unsent: bool,
        anew: bool,
    ) -> bytes:
        is_left = end is CloseReason.RESTORED and not unsent
        if is_left or end is CloseReason.UNSTARTED:
            return b"missing"
        if self._others_retry(key, reply, end):
            return b"others"
        is_new = unsent and epoch == self.epoch and not self._is_marked(key)
        is_sure = is_new and not self.is_early
        record = self.records[key] = Record(self._known_in(), "", False, False, [])
        refusals = (CloseReason.REFUSED, CloseReason.REJECTED)
        record.never_sent = is_sure and end in refusals
        record.anew = is_new and end is CloseReason.REFUSED and anew
        self._end(record, nonce, bodies["no" if is_sure else "unknown"])
        if not record.anew:
            self._mark_ended(key)
        else:
            self.marks[key] = "refused"
        return bodies["no" if is_sure else "unknown"]

    def _close_settled(
        self, key: str, record: Record, nonce: str, end: CloseReason, bodies: dict[str, bytes]
    ) -> bytes:
        assert record.outcome is not None
        if end in (CloseReason.CANCEL, CloseReason.REJECTED) and record.anew:
            is_sure = record.epoch == self.epoch and not self._is_marked(key)
            record.anew, record.approval = False, "cancelled" if record.approval else ""
            body = bodies["no" if is_sure else "unknown"]
            self._end(record, nonce, body, is_told=False)
            self._mark_ended(key)
        else:
            self._keep_mark(key)
        return record.outcome

    def hand_over(self, key: str) -> None:
        """Note that the call has a handle."""
        if (record := self.records.get(key)) is not None:
            record.handed_over = True

    def _is_wanted(
        self, key: str, record: Record, others: list[str], reply: str, end: CloseReason
    ) -> bool:
        is_asked_by_handle = record.handed_over and end is CloseReason.LEAVE
        is_left_to_others = self._others_retry(key, reply, end) or is_asked_by_handle
        return is_left_to_others or bool(self.alive.intersection(others))

    def _others_retry(self, key: str, reply: str, end: CloseReason) -> bool:
        """Whether others that live were sent the end of the first attempt; `a.1` is the retry."""
        before = self.records.get(key.removesuffix(".1")) if key.endswith(".1") else None
        if before is None or end is not CloseReason.LEAVE:
            return False
        before.askers = [asker for asker in before.askers if asker != reply]
        return bool(self.alive.intersection(before.askers))

    def _close_unsent(
        self,
        key: str,
        record: Record,
        nonce: str,
        reply: str,
        end: CloseReason,
        bodies: dict[str, bytes],
        anew: bool,
    ) -> bytes:
        others = [asker for asker in record.askers if asker != reply]
        is_granted = record.approval == "approved"
        is_late = end is CloseReason.DEADLINE and is_granted
        is_left = is_late or end in (CloseReason.LEAVE, CloseReason.REFUSED)
        approval = ""
        if record.lapsed and end in (CloseReason.DEADLINE, CloseReason.UNAPPROVED):
            approval = "expired"
        elif end is CloseReason.USED and record.approval == "approved":
            approval = "approved"
        elif end in (CloseReason.CANCEL, CloseReason.RESTORED):
            approval = "cancelled"
        elif is_left and (
            (end is CloseReason.REFUSED and is_granted)
            or not self._is_wanted(key, record, others, reply, end)
        ):
            if is_late:
                approval = "expired"
            elif end is CloseReason.LEAVE or not anew:
                approval = "cancelled"
            elif record.approval == "approved":
                approval = "approved"
        if approval:
            record.approval = approval
            record.anew = end is CloseReason.REFUSED and anew
            is_current = record.unsent_in == self.epoch or end is CloseReason.USED
            is_sure = is_current and not self._is_marked(key)
            body = bodies["no" if is_sure else "unknown"]
            self._end(record, nonce, body, but=reply, is_told=approval != "approved")
            if approval != "approved":
                self._mark_ended(key)
            return body
        if is_late or end is CloseReason.LEAVE:
            record.askers = others
            return b"others"
        record.attach(reply, self.alive)
        return record.approval.encode()

    def recover(
        self,
        key: str,
        nonce: str,
        lost: str,
        attempt: int,
        had_time: bool,
        reply: str,
        epoch: str,
        bodies: dict[str, bytes],
    ) -> bytes:
        record = self.records.get(key)
        if record is None:
            is_sure = epoch == self.epoch and key not in self.marks
            return b"unclaimed" if is_sure else b"missing"
        if record.outcome is not None:
            return record.outcome
        record.attach(reply, self.alive)
        again = record.recovered == nonce
        if record.unsent and not again:
            return record.approval.encode()
        if not again and not record.claimed:
            if record.attempt > attempt:
                is_next = record.attempt == attempt + 1 and self._may_go(record)
                if is_next and bodies["next message"]:
                    record.goes_on = self.epoch
                    self._send(record, bodies["next message"])
                again = True
            elif not self._may_go(record) and not had_time:
                return b"moved"
            else:
                record.goes_on = self.epoch
                self._send(record, bodies["message"])
                return b"sent"
        elif not again:
            if not lost or record.worker != lost:
                return _running(record)
            if not record.rerun or record.attempt >= ATTEMPTS or not bodies["next message"]:
                self._end(record, nonce, bodies["lost"], but=reply)
                return bodies["lost"]
            record.reopen()
            record.recovered, record.goes_on = nonce, self.epoch
            self._send(record, bodies["next message"])
        return b"again %d" % record.attempt

    def release(self, key: str, nonce: str, entered: bool, notice: bytes, too_often: bytes) -> str:
        record = self.records.get(key)
        if record is None:
            return "late"
        if record.outcome is not None or record.claimed != nonce:
            return "released" if nonce in (record.released, record.settled) else "late"
        record.releases += 1
        if record.releases > RELEASES:
            self._end(record, nonce, too_often)
            return "released"
        record.claims -= not entered
        if not entered and not record.claims:
            self.marks.pop(key, None)
        record.released = nonce
        record.reopen()
        for asker in record.askers:
            self.sent[asker].append(notice)
        return "released"

    def _is_marked(self, key: str) -> bool:
        return self.marks.get(key) in ("ran", "ended")

    def _mark_ended(self, key: str) -> None:
        if not self._is_marked(key):
            self.marks[key] = "ended"

    def _keep_mark(self, key: str) -> None:
        """A settled record was read: its mark is to last as long."""
        if self.marks.get(key) == "over":
            self.marks[key] = "ended"

    def _stops(self, key: str, later: bool) -> bool:
        """Whether a mark stops a request. The first one after its time removes it."""
        if later and self.marks.get(key) in ("over", "refused"):
            del self.marks[key]
        return key in self.marks

    def _may_go(self, record: Record) -> bool:
        return record.rerun or self.epoch in (record.epoch, record.goes_on)

    def _send(self, record: Record, message: bytes) -> None:
        record.over = False
        self.sent["queue"].append(message)

    def _end(
        self, record: Record, nonce: str, body: bytes, but: str = "", *, is_told: bool = True
    ) -> None:
        record.outcome, record.settled, record.claimed, record.unsent = body, nonce, "", False
        for asker in record.askers:
            if is_told and asker != but:
                self.sent[asker].append(body)


def _running(record: Record) -> bytes:
    return b"running " + record.worker.encode()

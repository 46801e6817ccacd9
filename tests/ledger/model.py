"""The ledger as a few lines of plain Python: what every step has to answer, and to send.

Written from the design, not from the Lua. Times are left out: a record's queue wait is over or not.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from toolpool.contract.ledger.base import CloseReason

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
    marks: set[str] = field(default_factory=set)
    """What may not run twice and was claimed, whether its record is there or not."""
    alive: set[str] = field(default_factory=set)
    """Dispatchers that hold a lease."""
    sent: Sent = field(default_factory=lambda: defaultdict(list))
    switches: dict[str, bytes] = field(default_factory=dict)
    changes: int = 0
    """How often a switch was set, or the server came back with another epoch."""

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
    ) -> list[bytes]:
        """`later`: asked after everything that happened before this step."""
        answers = []
        is_new = False
        for key in keys:
            record = self.records.get(key)
            if record is not None and record.anew and later:
                record = None
            if record is None and (key in self.marks or (again and not rerun)):
                self.records.pop(key, None)
                self.marks.add(key)
                answers.append(b"ran")
            elif record is None:
                self.records[key] = Record(self.epoch, nonce, rerun, over, [reply])
                is_new = True
                answers.append(b"new")
            elif record.outcome is not None:
                answers.append(record.outcome)
            elif record.opened == nonce:
                answers.append(b"new")
            else:
                record.attach(reply, self.alive)
                record.over = record.over and over
                answers.append(_running(record) if record.claimed else b"open")
        if is_new:
            self.sent["queue"].append(message)
        return answers

    def switch(self, field: str, before: bytes, after: bytes) -> dict[str, bytes]:
        """The states after a change, which is made only to the state `before`."""
        if self.switches.get(field, b"") == before:
            self.switches[field] = after
            self.changes += 1
        return dict(self.switches)

    def claim(
        self, key: str, attempt: int, nonce: str, worker: str, read: int | None = None
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
        if record.over:
            return "expired"
        if not self._may_go(record):
            return "moved"
        if read not in (None, self.changes):
            return "stale"
        record.claimed, record.worker = nonce, worker
        record.claims += 1
        if not record.rerun:
            self.marks.add(key)
        return "won"

    def hold(self, key: str, attempt: int, nonce: str, worker: str, rerun: bool) -> str:
        record = self.records.get(key)
        if not rerun:
            self.marks.add(key)
        if record is None:
            return "absent"
        if record.outcome is not None:
            return "settled"
        if record.claimed:
            return "held" if record.claimed == nonce else "lost"
        if record.attempt != attempt:
            return "lost"
        record.claimed, record.worker = nonce, worker
        record.claims += 1
        return "held"

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
        if record is None and end is CloseReason.UNSTARTED:
            return b"missing"
        if record is None:
            is_sure = unsent and epoch == self.epoch and key not in self.marks
            record = self.records[key] = Record(self.epoch, "", False, False, [])
            record.never_sent = is_sure and end is CloseReason.REFUSED
            record.anew = record.never_sent and anew
            self._end(record, nonce, bodies["no" if is_sure else "unknown"])
            return bodies["no" if is_sure else "unknown"]
        if record.outcome is not None:
            return record.outcome
        if end in (CloseReason.REFUSED, CloseReason.UNAPPROVED, CloseReason.USED):
            record.attach(reply, self.alive)
            return _running(record) if record.claimed else b"open"
        if record.claimed and end in (CloseReason.UNSTARTED, CloseReason.DENIED):
            return _running(record)
        others = [asker for asker in record.askers if asker != reply]
        is_for_all = end in (CloseReason.CANCEL, CloseReason.DENIED)
        is_over = is_for_all or (end is CloseReason.UNSTARTED and record.over)
        if self.alive.intersection(others) and not is_over:
            record.askers = others
            return b"others"
        if record.claimed:
            self.sent[f"cancel:{record.worker}"].append(bodies["cancel"])
            body = bodies["timeout"]
        elif record.claims == 0 and record.epoch == self.epoch == epoch:
            body = bodies["no"]
        else:
            body = bodies["unknown"]
        self._end(record, nonce, body, but=reply)
        return body

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
        if not again and not record.claimed:
            if record.attempt > attempt:
                is_next = record.attempt == attempt + 1 and self._may_go(record)
                if is_next and bodies["next message"]:
                    self._send(record, bodies["next message"])
                again = True
            elif not self._may_go(record) and not had_time:
                return b"moved"
            else:
                if not self._may_go(record):
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
            record.recovered = nonce
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
            self.marks.discard(key)
        record.released = nonce
        record.reopen()
        for asker in record.askers:
            self.sent[asker].append(notice)
        return "released"

    def _may_go(self, record: Record) -> bool:
        return record.rerun or self.epoch in (record.epoch, record.goes_on)

    def _send(self, record: Record, message: bytes) -> None:
        record.over = False
        self.sent["queue"].append(message)

    def _end(self, record: Record, nonce: str, body: bytes, but: str = "") -> None:
        record.outcome, record.settled, record.claimed = body, nonce, ""
        for asker in record.askers:
            if asker != but:
                self.sent[asker].append(body)


def _running(record: Record) -> bytes:
    return b"running " + record.worker.encode()

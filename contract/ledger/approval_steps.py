"""The ledger steps of calls that need approval: request, read, decide, list."""

import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from toolpool.contract import encoding
from toolpool.contract.approval_messages import ApprovalState
from toolpool.contract.errors import ServerUnavailable
from toolpool.contract.ledger.lua_scripts import CommandSend, LuaScript, LuaScripts, ms_of
from toolpool.contract.ledger.memory_record import Record
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.contract.redis_keys import RedisKeys

_PATIENCE_SECONDS = 5.0
_LOST_REPLY = "before the connection broke; the decision may have been stored: check the approval"
LOOK_AGAIN_SECONDS = 10.0
"""The interval at which dispatchers look for approved calls that were not sent."""


class WaitStep(msgspec.Struct, frozen=True, gc=False):
    """A call to store as waiting. `ends_at` and `asked_at` are Unix time by the server's clock.

    Its record is kept for `kept` seconds while it is not sent, and its outcome for `keep` seconds.
    `tried_in` is the epoch of an earlier attempt that may have been accepted, or empty. `was_lost`:
    the server has lost its record, so another dispatcher may have sent it before.
    """

    key: str
    nonce: str
    request: bytes
    rerunnable: bool
    ends_at: float
    kept: float
    keep: float
    asked_at: float
    again: bool = False
    tried_in: str = ""
    was_lost: bool = False


class DecisionStep(msgspec.Struct, frozen=True, gc=False):
    """A decision to store. All fields except `key` and the times are signed.

    `ends_at` is the expiry of an approval. `notice` informs the dispatchers. A denied call gets the
    outcome `no`, or `doubtful` if the server may have forgotten that it was sent.
    """

    key: str
    nonce: str
    decision: bytes
    notice: bytes
    approved: bool
    ends_at: float
    no: bytes = b""
    doubtful: bytes = b""


class ApprovalRecord(NamedTuple):
    """The record of a call; `state` is empty if there is none. The bytes are signed.

    `answer` is set by `ask`: `new`, `ran` or `moved` (as in open.lua), and by `read`: `ran`.
    """

    key: str
    state: str
    approval: str = ""
    request: bytes = b""
    decision: bytes = b""
    epoch: str = ""
    outcome: bytes = b""
    answer: str = ""

    @property
    def shown(self) -> ApprovalState | None:
        """The public approval state; None if the call never needed approval."""
        if self.approval == "approved" and self.state != "approved":
            return ApprovalState.SENT
        try:
            return ApprovalState(self.approval)
        except ValueError:
            return None


class ApprovalLedger(Protocol):
    """Methods raise `ServerError`. `now` is the server's time."""

    async def ask(self, asking: WaitStep, *, now: float) -> ApprovalRecord:
        """Store a call that waits for approval; an existing record is left as it is."""
        ...

    async def read(
        self, key: str, *, now: float, unsent_in: str | None = None, attaches: bool = False
    ) -> ApprovalRecord:
        """Read a record. `unsent_in`: the epoch in which the caller knows it has not sent the call.

        If that is the server's current epoch, a waiting or approved record is moved to it.
        `attaches`: the caller waits for the call from now on.
        """
        ...

    async def decide(self, deciding: DecisionStep, *, now: float) -> str:
        """Approve or deny a waiting call; empty if done, else its state, or `gone`.

        Raises `ServerUnavailable`, also if the step may have been executed but its reply was lost.
        """
        ...

    async def approved(self, *, now: float) -> list[str]:
        """The approved calls that this dispatcher should send, also those of dead dispatchers."""
        ...

    async def decline(self, key: str, *, now: float) -> None:
        """Leave an approved call to other dispatchers, because the caller does not send it."""
        ...

    async def waiting(self, most: int, *, now: float) -> list[ApprovalRecord]:
        """The calls that wait for approval, earliest expiry first."""
        ...

    async def claim_notice(self, key: str) -> bool:
        """Claim the notification that a request has ended; True for the first caller."""
        ...


class RedisApprovals:
    """The approvals of one tenant on Redis, for the dispatcher that reads `reply`."""

    def __init__(
        self,
        scripts: LuaScripts,
        names: RedisKeys,
        reply: str,
        tenant: str,
        *,
        dedup_ttl: float = 86_400.0,
    ) -> None:
        self._scripts = scripts
        self._names = names
        self._reply = reply
        self._marks_ms = ms_of(dedup_ttl)
        owner = encoding.digest(tenant)
        self._shared = (names.epoch, names.approvals(owner), names.approved(owner))

    async def ask(self, asking: WaitStep, *, now: float) -> ApprovalRecord:
        """Store a call that waits for approval; an existing record is left as it is."""
        answers = await self._run(
            asking.key,
            "ask",
            now,
            asking.nonce,
            self._reply,
            self._names.ran_prefix,
            self._marks_ms,
            asking.request,
            int(asking.rerunnable),
            ms_of(asking.ends_at),
            ms_of(asking.kept),
            ms_of(asking.keep),
            round(asking.asked_at * 1000),
            int(asking.again),
            asking.tried_in,
            asking.key,
            int(asking.was_lost),
        )
        return self._found(asking.key, answers)

    async def read(
        self, key: str, *, now: float, unsent_in: str | None = None, attaches: bool = False
    ) -> ApprovalRecord:
        """Read a record."""
        marks, reply = self._names.ran_prefix, self._reply if attaches else ""
        answers = await self._run(key, "read", now, unsent_in or "", marks, reply)
        return self._found(key, answers)

    def _found(self, key: str, answers: Sequence[Any]) -> ApprovalRecord:
        epoch, *found = answers
        self._scripts.epochs.saw(bytes(epoch).decode(errors="replace"))
        return _found(key, found)

    async def decide(self, deciding: DecisionStep, *, now: float) -> str:
        """Approve or deny a waiting call; empty if done, else its state, or `gone`."""
        attempt = CommandSend()
        [answer] = await self._run(
            deciding.key,
            "decide",
            now,
            "approved" if deciding.approved else "denied",
            deciding.decision,
            ms_of(deciding.ends_at),
            deciding.nonce,
            deciding.notice,
            deciding.no,
            deciding.doubtful,
            deciding.key,
            self._names.ran_prefix,
            self._marks_ms,
            attempt=attempt,
        )
        if answer != b"done" and attempt.is_repeated:  # dispatchers may have been told of the first
            raise ServerUnavailable(LuaScript.APPROVAL.value, sent=True, reason=_LOST_REPLY)
        return "" if answer == b"done" else bytes(answer).decode(errors="replace")

    async def approved(self, *, now: float) -> list[str]:
        """The approved calls to send from this dispatcher."""
        pause = ms_of(LOOK_AGAIN_SECONDS)
        answers = await self._run("", "approved", now, self._reply, pause, self._names.call_prefix)
        return [bytes(answer).decode(errors="replace") for answer in answers]

    async def decline(self, key: str, *, now: float) -> None:
        """Leave an approved call to other dispatchers."""
        await self._run(key, "decline", now, self._reply, key)

    async def waiting(self, most: int, *, now: float) -> list[ApprovalRecord]:
        """The calls that wait for approval, earliest expiry first."""
        answers = await self._run("", "list", now, self._names.call_prefix, most)
        return [
            _found(bytes(answers[i]).decode(errors="replace"), [b"", *answers[i + 1 : i + 7]])
            for i in range(0, len(answers), 7)
        ]

    async def claim_notice(self, key: str) -> bool:
        """Claim the notification that a request has ended; True for the first caller."""
        [answer] = await self._run(key, "tell", 0.0)
        return bool(answer == b"first")

    async def _run(
        self,
        key: str,
        what: str,
        now: float,
        *arguments: str | bytes | int,
        attempt: CommandSend | None = None,
    ) -> list[Any]:
        return await self._scripts.run(
            LuaScript.APPROVAL,
            [*self._shared, self._names.call(key)],
            [what, self._scripts.epochs.candidate, round(now * 1000), *arguments],
            give_up_at=time.monotonic() + _PATIENCE_SECONDS,
            attempt=attempt,
        )


def _found(key: str, answers: Sequence[Any]) -> ApprovalRecord:
    answer, state, approval, request, decision, epoch, outcome = map(bytes, answers)
    words = [word.decode(errors="replace") for word in (state, approval, epoch, answer)]
    return ApprovalRecord(key, words[0], words[1], request, decision, words[2], outcome, words[3])


class MemoryApprovals:
    """Approvals in memory, for the dispatcher that reads `reply`."""

    def __init__(self, server: MemoryServer, reply: str) -> None:
        self._server = server
        self._reply = reply

    async def ask(self, asking: WaitStep, *, now: float) -> ApprovalRecord:
        """Store a call that waits for approval; an existing record is left as it is."""
        server, key = self._server, asking.key
        record = server.asked_anew(key, asking.asked_at)
        if record is None and not asking.rerunnable and asking.tried_in not in ("", server.epoch):
            return ApprovalRecord(key, "", answer="moved")
        is_asked_again = asking.again and not asking.rerunnable
        if record is None and (is_asked_again or server.is_marked(key, asked_at=asking.asked_at)):
            server.marks.setdefault(key, math.inf)
            return ApprovalRecord(key, "", answer="ran")
        if record is None:
            is_known_unsent = not (asking.was_lost or server.awaits_reports)
            record = server.records[key] = Record(
                epoch="" if server.awaits_reports else server.epoch,
                opened=asking.nonce,
                attempt=1,
                rerunnable=asking.rerunnable,
                until=0.0,
                deadline=0.0,
                gone_at=time.monotonic() + asking.kept,
                replies=[self._reply],
                state="waiting",
                keep=asking.keep,
                approval="waiting",
                request=asking.request,
                expires=asking.ends_at,
                asker=self._reply,
                unsent_in=server.epoch if is_known_unsent else "",
            )
        elif record.state != "settled":
            record.attach(self._reply, server.dispatchers)
            if record.asker not in server.dispatchers:
                record.asker = self._reply
        is_new = record.opened == asking.nonce and record.state != "settled"
        return _of(key, record)._replace(answer="new" if is_new else "")

    async def read(
        self, key: str, *, now: float, unsent_in: str | None = None, attaches: bool = False
    ) -> ApprovalRecord:
        """Read a record."""
        server = self._server
        record = server.record(key)
        if record is None:
            return ApprovalRecord(key, "")
        answer, epoch = "", server.epoch
        if record.state in ("waiting", "approved"):
            alive = [reply for reply in record.replies if reply in server.dispatchers]
            are_all_alive = len(alive) == len(record.replies)
            if attaches:
                record.replies = alive if record.epoch == epoch else record.replies
                record.attach(self._reply, server.dispatchers)
            if unsent_in == epoch != record.epoch and server.has_mark(key):
                answer = "ran"
            elif unsent_in == epoch != record.epoch:
                # A dispatcher that is not alive may have sent the call before the server lost that
                # information.
                if are_all_alive and record.unsent_in and record.unsent_in == record.epoch:
                    record.unsent_in = epoch
                record.epoch = epoch
        return _of(key, record)._replace(answer=answer)

    async def decide(self, deciding: DecisionStep, *, now: float) -> str:
        """Approve or deny a waiting call; empty if done, else its state, or `gone`."""
        record = self._server.record(deciding.key)
        if record is None:
            return "gone"
        if record.decision == deciding.decision:
            return ""
        if record.state != "waiting":
            return record.approval or record.state
        if now >= record.expires:
            return "expired"
        record.decision = deciding.decision
        for reply in record.replies:
            self._server.put(reply, deciding.notice)
        # A handle that was returned while the call waited may be valid for as long as this.
        kept = deciding.ends_at - now + record.keep
        record.keep = max(kept, record.gone_at - time.monotonic())
        if deciding.approved:
            record.state = record.approval = "approved"
            record.expires = deciding.ends_at
            record.gone_at = time.monotonic() + record.keep
        else:
            record.approval = "denied"
            is_sure = record.unsent_in == self._server.epoch
            is_sure = is_sure and not self._server.is_marked(deciding.key)
            body = deciding.no if is_sure else deciding.doubtful
            self._server.finish(record, deciding.nonce, record.keep, body, "")
            self._server.mark_ended(deciding.key)
        return ""

    async def approved(self, *, now: float) -> list[str]:
        """The approved calls to send from this dispatcher."""
        found: list[str] = []
        for key, record in self._server.records.items():
            if record.state != "approved" or record.look_at > now:
                continue
            record.look_at = now + LOOK_AGAIN_SECONDS
            if record.asker == self._reply or record.asker not in self._server.dispatchers:
                record.asker = self._reply
                found.append(key)
        return found

    async def decline(self, key: str, *, now: float) -> None:
        """Leave an approved call to other dispatchers."""
        record = self._server.record(key)
        if record is not None and record.state == "approved" and record.asker == self._reply:
            record.asker, record.look_at = "", 0.0

    async def waiting(self, most: int, *, now: float) -> list[ApprovalRecord]:
        """The calls that wait for approval, earliest expiry first."""
        records = self._server.records.items()
        found = [(k, r) for k, r in records if r.state == "waiting" and r.expires > now]
        found.sort(key=lambda pair: pair[1].expires)
        return [_of(key, record) for key, record in found[:most]]

    async def claim_notice(self, key: str) -> bool:
        """Claim the notification that a request has ended; True for the first caller."""
        record = self._server.record(key)
        if record is None or record.is_told:
            return False
        record.is_told = True
        return True


def _of(key: str, record: Record) -> ApprovalRecord:
    return ApprovalRecord(
        key,
        record.state,
        record.approval,
        record.request,
        record.decision,
        record.epoch,
        record.outcome,
    )

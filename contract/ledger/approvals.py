"""The records of approvals: what waits for a person, and what was decided, for the whole fleet."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from toolpool.contract import encoding
from toolpool.contract.approval import ApprovalState
from toolpool.contract.ledger.steps import Step, Steps
from toolpool.contract.names import Names

RECORDED = "recorded"
"""In place of a state: there is a record of the call already, so that nobody is asked about it."""
_PATIENCE_SECONDS = 5.0
_SENDING_SECONDS = 10.0
"""How long a dispatcher may take to send what was approved, before another may."""


class Found(NamedTuple):
    """A record; `state` is empty where there is none. The next two are signed, or empty.

    An approved call may have been sent for so many seconds.
    """

    id: str
    state: str
    request: bytes = b""
    decision: bytes = b""
    seconds: float = 0.0


class Followed(NamedTuple):
    """What was decided after the entry that was read before, and what is to be sent from here."""

    last: str
    decided: list[tuple[str, str]]
    granted: list[str]


class ApprovalLedger(Protocol):
    """Every method may raise `ServerAway`, RedisError or OSError."""

    async def ask(self, id: str, request: bytes, *, record: str, good: float, kept: float) -> Found:
        """Note a request that is good for so many seconds, and kept for more after that.

        One that is known is left as it is. `record` is the key of the call's record: where there is
        one, the state is `RECORDED`.
        """
        ...

    async def look(self, id: str) -> Found:
        """A record, to be waited for here if nobody else does."""
        ...

    async def read(self, id: str) -> Found:
        """A record, by whoever waits for nothing."""
        ...

    async def decide(self, id: str, state: ApprovalState, decision: bytes) -> str:
        """Approve or deny what waits; empty where that was done, else its state, or `gone`."""
        ...

    async def withdraw(self, id: str) -> str:
        """End a request that nobody waits for any more; the state that it had."""
        ...

    async def sent(self, id: str) -> str:
        """An approved call is on its way; the state that it had."""
        ...

    async def is_untold(self, id: str) -> bool:
        """Whether nobody was told what became of a request; to be asked by whoever tells."""
        ...

    async def follow(self, last: str) -> Followed:
        """What was decided since; `last` is empty for whoever begins to follow."""
        ...

    async def waiting(self, most: int) -> list[Found]:
        """What waits, the first to expire first."""
        ...


class RedisApprovals:
    """On a real server, those of one tenant, for the dispatcher that reads `reply`."""

    def __init__(self, steps: Steps, names: Names, reply: str, tenant: str) -> None:
        self._steps = steps
        self._names = names
        self._reply = reply
        owner = encoding.digest(tenant)
        self._shared = (names.approvals(owner), names.approved(owner), names.decisions(owner))

    async def ask(self, id: str, request: bytes, *, record: str, good: float, kept: float) -> Found:
        """See `ApprovalLedger.ask`."""
        times = (_ms(good), _ms(kept))
        record = self._names.call(record)
        return _found(id, await self._run(id, "ask", self._reply, *times, request, record))

    async def look(self, id: str) -> Found:
        """See `ApprovalLedger.look`."""
        return _found(id, await self._run(id, "look", self._reply))

    async def read(self, id: str) -> Found:
        """See `ApprovalLedger.read`."""
        return _found(id, await self._run(id, "look", ""))

    async def decide(self, id: str, state: ApprovalState, decision: bytes) -> str:
        """See `ApprovalLedger.decide`."""
        [answer] = await self._run(id, "decide", state.value, decision)
        return "" if answer == b"done" else bytes(answer).decode()

    async def withdraw(self, id: str) -> str:
        """See `ApprovalLedger.withdraw`."""
        [answer] = await self._run(id, "withdraw")
        return bytes(answer).decode()

    async def sent(self, id: str) -> str:
        """See `ApprovalLedger.sent`."""
        [answer] = await self._run(id, "sent")
        return bytes(answer).decode()

    async def is_untold(self, id: str) -> bool:
        """See `ApprovalLedger.is_untold`."""
        [answer] = await self._run(id, "tell")
        return bool(answer == b"first")

    async def follow(self, last: str) -> Followed:
        """See `ApprovalLedger.follow`."""
        answers = [
            bytes(answer).decode(errors="replace")
            for answer in await self._run(
                None,
                "follow",
                self._reply,
                last,
                self._names.approval_prefix,
                _ms(_SENDING_SECONDS),
            )
        ]
        count = int(answers[1])
        pairs = answers[2 : 2 + 2 * count]
        decided = list(zip(pairs[::2], pairs[1::2], strict=True))
        return Followed(answers[0], decided, answers[2 + 2 * count :])

    async def waiting(self, most: int) -> list[Found]:
        """See `ApprovalLedger.waiting`."""
        answers = await self._run(None, "list", self._names.approval_prefix, most)
        return [
            _found(bytes(answers[i]).decode(errors="replace"), answers[i + 1 : i + 5])
            for i in range(0, len(answers), 5)
        ]

    async def _run(self, id: str | None, *arguments: str | bytes | int) -> list[Any]:
        keys = [*self._shared]
        if id is not None:
            keys.append(self._names.approval(id))
        give_up_at = time.monotonic() + _PATIENCE_SECONDS
        return await self._steps.run(Step.APPROVAL, keys, arguments, give_up_at=give_up_at)


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _found(id: str, answers: Sequence[Any]) -> Found:
    state, request, decision, ms = answers
    name = bytes(state).decode(errors="replace")
    return Found(id, name, bytes(request), bytes(decision), int(float(ms)) / 1000)


@dataclass(slots=True)
class _Entry:
    """Times are on the monotonic clock."""

    request: bytes
    expires: float
    gone_at: float
    reply: str
    state: ApprovalState = ApprovalState.WAITING
    decision: bytes = b""
    taken: float = 0.0
    first: float = 0.0
    is_told: bool = False


@dataclass(slots=True)
class ApprovalsHeld:
    """What all dispatchers of one server in memory share."""

    entries: dict[str, _Entry] = field(default_factory=dict)
    decided: list[tuple[str, str]] = field(default_factory=list)


class MemoryApprovals:
    """In this process, beside the calls of its server."""

    def __init__(self, held: ApprovalsHeld, server: "_Server", reply: str) -> None:
        self._held = held
        self._server = server
        self._reply = reply

    async def ask(self, id: str, request: bytes, *, record: str, good: float, kept: float) -> Found:
        """See `ApprovalLedger.ask`."""
        if self._entry(id) is None:
            if self._server.state(record) is not None:
                return Found(id, RECORDED)
            now = time.monotonic()
            entry = _Entry(request, now + good, now + good + kept, self._reply)
            self._held.entries[id] = entry
        return await self.look(id)

    async def look(self, id: str) -> Found:
        """See `ApprovalLedger.look`."""
        entry = self._entry(id)
        if entry is not None and entry.reply not in self._server.dispatchers:
            entry.reply = self._reply
        if entry is not None and entry.state is ApprovalState.APPROVED and not entry.first:
            entry.first = time.monotonic()
        return await self.read(id)

    async def read(self, id: str) -> Found:
        """See `ApprovalLedger.read`."""
        entry = self._entry(id)
        if entry is None:
            return Found(id, "")
        seconds = time.monotonic() - entry.first if entry.first else 0.0
        return Found(id, entry.state.value, entry.request, entry.decision, seconds)

    async def decide(self, id: str, state: ApprovalState, decision: bytes) -> str:
        """See `ApprovalLedger.decide`."""
        entry = self._entry(id)
        if entry is None or entry.state is not ApprovalState.WAITING:
            return entry.state.value if entry is not None else "gone"
        entry.state, entry.decision = state, decision
        self._held.decided.append((id, state.value))
        return ""

    async def withdraw(self, id: str) -> str:
        """See `ApprovalLedger.withdraw`."""
        entry = self._entry(id)
        if entry is None:
            return ""
        before = entry.state
        if before is ApprovalState.WAITING:
            entry.state = ApprovalState.WITHDRAWN
            self._held.decided.append((id, entry.state.value))
        return before.value

    async def sent(self, id: str) -> str:
        """See `ApprovalLedger.sent`."""
        entry = self._held.entries.get(id)
        if entry is None:
            return ""
        before = entry.state
        is_late = before is ApprovalState.EXPIRED and entry.first > 0.0
        if before is ApprovalState.APPROVED or is_late:
            entry.state = ApprovalState.SENT
        return before.value

    async def is_untold(self, id: str) -> bool:
        """See `ApprovalLedger.is_untold`."""
        entry = self._held.entries.get(id)
        if entry is None or entry.is_told:
            return False
        entry.is_told = True
        return True

    async def follow(self, last: str) -> Followed:
        """See `ApprovalLedger.follow`."""
        decided, now = self._held.decided, time.monotonic()
        first = int(last) if last else len(decided)
        granted: list[str] = []
        for id in list(self._held.entries):
            entry = self._entry(id)
            if entry is None or entry.state is not ApprovalState.APPROVED or entry.taken > now:
                continue
            if entry.reply == self._reply or entry.reply not in self._server.dispatchers:
                entry.reply, entry.taken = self._reply, now + _SENDING_SECONDS
                granted.append(id)
        return Followed(str(len(decided)), decided[first:], granted)

    async def waiting(self, most: int) -> list[Found]:
        """See `ApprovalLedger.waiting`."""
        found = [(id, self._entry(id)) for id in list(self._held.entries)]
        waits = [(id, e) for id, e in found if e is not None and e.state is ApprovalState.WAITING]
        waits.sort(key=lambda pair: pair[1].expires)
        return [Found(id, e.state.value, e.request, e.decision) for id, e in waits[:most]]

    def _entry(self, id: str) -> _Entry | None:
        entry, now = self._held.entries.get(id), time.monotonic()
        if entry is None or now >= entry.gone_at:
            self._held.entries.pop(id, None)
            return None
        if entry.state in (ApprovalState.WAITING, ApprovalState.APPROVED) and now >= entry.expires:
            entry.state = ApprovalState.EXPIRED
        return entry


class _Server(Protocol):
    """What is asked of the server in memory."""

    dispatchers: set[str]

    def state(self, key: str) -> str | None:
        """The state of a record; None where there is none."""
        ...

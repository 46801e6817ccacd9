"""What the operator commands read from a dispatcher: its report and its answers."""

from typing import ClassVar

import msgspec

from toolpool.contract.envelope import Question, Signed
from toolpool.contract.redis_keys import RedisKeys


class WaitingCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one tool that wait for the same thing; `oldest` is the longest wait in seconds.

    `waits_for` is one of: `turn` (earlier calls of its turn, or the policy), `approval`, `retry`,
    `rate_limit` (also a limit on calls that run at once in the fleet), `concurrency` (of its tool,
    in this dispatcher), `session_limit`, `workers` (not sent: no worker has a free slot), `server`
    (being sent) and `slot` (sent, not started).
    """

    tool: str
    waits_for: str
    count: int
    oldest: float


class EndedCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one tool that ended in one minute (Unix time / 60), and the failed ones by code."""

    minute: int
    tool: str
    calls: int
    failures: dict[str, int]


class DispatcherReport(Signed, frozen=True, kw_only=True, omit_defaults=True):
    """A dispatcher's description of itself, renewed about once a second with its lease.

    `circuits` are the open circuits: seconds until each tool is tried again. `ended` goes back to
    `ended_since` (Unix time), at most an hour.
    """

    purpose: ClassVar[str] = "report"
    id: str
    host: str
    pid: int
    version: str
    tenant: str
    started_at: float
    open: int = 0
    running: int = 0
    waiting: list[WaitingCalls] = msgspec.field(default_factory=list)
    circuits: dict[str, float] = msgspec.field(default_factory=dict)
    ended: list[EndedCalls] = msgspec.field(default_factory=list)
    ended_since: float = 0.0
    refuses_new_calls: bool = False
    """Whether it refuses calls because the server's memory is nearly full."""
    policy: str = ""
    """The digest of its rules and hook; empty if it has none."""


class CallStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An open call as its dispatcher sees it; `key` is that of its ledger record.

    In seconds: `age` since it was accepted, `start_within` and `deadline_in` from now. `cancelled`
    is the code with which the call ended, if the question asked to cancel it.
    """

    call: str
    tool: str
    key: str
    state: str
    age: float
    deadline_in: float | None = None
    session: str | None = None
    turn: str | None = None
    queue: str = ""
    waits_for: str = ""
    start_within: float | None = None
    attempt: int = 1
    retry: int = 0
    worker: str = ""
    background: bool = False
    approval: str = ""
    cancelled: str = ""
    executed: str = ""


class Answer(Signed, frozen=True, kw_only=True):
    """A dispatcher's answer to a question. `more`: the number of calls left out."""

    purpose: ClassVar[str] = "answer"
    question: str
    dispatcher: str
    calls: list[CallStatus]
    more: int = 0


def answer_stream(names: RedisKeys, question: Question) -> str:
    """The stream for the answer.

    It is derived from the id, so that a question cannot name another key to write to.
    """
    return names.reply(question.id)

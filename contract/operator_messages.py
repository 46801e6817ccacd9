"""What the operator commands read from a dispatcher: its report and its answers."""

from typing import TypeVar

import msgspec

from toolpool.contract.envelope import Envelope, Question
from toolpool.contract.errors import MessageRejected
from toolpool.contract.redis_keys import RedisKeys

T = TypeVar("T")

_REPORT = "report"
_ANSWER = "answer"


class WaitingCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one tool that wait for the same thing; `oldest` is the longest wait in seconds.

    `waits_for` is one of: `turn` (calls before it in its turn, or the policy), `approval`, `retry`,
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


class DispatcherReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A dispatcher's description of itself, renewed about once a second with its lease.

    `circuits` are the open circuits: seconds until each tool is tried again. `ended` goes back to
    `ended_since` (Unix time), at most an hour.
    """

    id: str
    host: str
    pid: int
    version: str
    tenant: str
    started_at: float
    open: int = 0
    running: int = 0
    waiting: list[WaitingCalls] = []
    circuits: dict[str, float] = {}
    ended: list[EndedCalls] = []
    ended_since: float = 0.0
    refuses_new_calls: bool = False
    """Whether it refuses calls because the server's memory is nearly full."""
    policy: str = ""
    """The digest of its rules and hook; empty if it has none."""


class CallStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An open call as its dispatcher sees it; `key` is that of its ledger record.

    In seconds: `age` since it was accepted, `start_within` and `deadline_in` from now. `cancelled`
    is the code that it ended with, if the question asked to cancel it.
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


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A dispatcher's answer to a question. `more`: the number of calls left out."""

    question: str
    dispatcher: str
    calls: list[CallStatus]
    more: int = 0


_reports = msgspec.json.Decoder(DispatcherReport)
_answers = msgspec.json.Decoder(Answer)
_encoder = msgspec.json.Encoder()


def signed_report(envelope: Envelope, report: DispatcherReport) -> bytes:
    """Encode and sign the report for storage."""
    return envelope.seal(_REPORT, _encoder.encode(report))


def read_report(envelope: Envelope, data: bytes) -> DispatcherReport:
    """Verify and decode a report. Raises `MessageRejected`."""
    return _read(_reports, envelope.unseal(_REPORT, data))


def signed_answer(envelope: Envelope, answer: Answer) -> bytes:
    """Encode and sign the answer."""
    return envelope.seal(_ANSWER, _encoder.encode(answer))


def read_answer(envelope: Envelope, data: bytes) -> Answer:
    """Verify and decode an answer. Raises `MessageRejected`."""
    return _read(_answers, envelope.unseal(_ANSWER, data))


def answer_stream(names: RedisKeys, question: Question) -> str:
    """The stream for the answer; derived, so that a question cannot name a key to write to."""
    return names.reply(question.id)


def _read(decoder: "msgspec.json.Decoder[T]", body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MessageRejected("malformed", f"the message is malformed: {error}") from None

"""What operators' commands read of a dispatcher: its report, and its answer to a question."""

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
    `rate_limit` (also one on how many run at once in the fleet), `concurrency` (of its tool, in
    this dispatcher), `session_limit`, `workers` (not sent: all slots are taken, or there are none),
    `server` (being sent), and `slot` (sent, and not started).
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

    `circuits` are the open ones: seconds until each tool is tried again. `ended` goes back to
    `ended_since` (Unix time), an hour at most.
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
    """Because the server's memory is nearly full."""
    policy: str = ""
    """The digest of its rules and hook; empty where it has none."""


class CallStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An open call as its dispatcher sees it. Seconds: `age` since it was accepted, `start_within`
    and `deadline_in` from now. `key` is that of its ledger record.

    `cancelled` is the code that it ended with, where the question was to cancel it.
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
    """What a dispatcher says to a question. `more`: how many calls it left out."""

    question: str
    dispatcher: str
    calls: list[CallStatus]
    more: int = 0


_reports = msgspec.json.Decoder(DispatcherReport)
_answers = msgspec.json.Decoder(Answer)
_encoder = msgspec.json.Encoder()


def signed_report(envelope: Envelope, report: DispatcherReport) -> bytes:
    """The report as it is stored."""
    return envelope.seal(_REPORT, _encoder.encode(report))


def read_report(envelope: Envelope, data: bytes) -> DispatcherReport:
    """Raises `MessageRejected` for one that nobody we trust has signed, or of another form."""
    return _read(_reports, envelope.unseal(_REPORT, data))


def signed_answer(envelope: Envelope, answer: Answer) -> bytes:
    """The answer as it is sent."""
    return envelope.seal(_ANSWER, _encoder.encode(answer))


def read_answer(envelope: Envelope, data: bytes) -> Answer:
    """Raises `MessageRejected` as `read_report` does."""
    return _read(_answers, envelope.unseal(_ANSWER, data))


def answer_stream(names: RedisKeys, question: Question) -> str:
    """Where a question is answered: no dispatcher writes to a key that a question names."""
    return names.reply(question.id)


def _read(decoder: "msgspec.json.Decoder[T]", body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MessageRejected("malformed", f"not of the form: {error}") from None

"""Encodes, signs, verifies and decodes the messages between dispatchers and workers.

`docs/wire-format.md` describes the bytes; golden files in `tests/contract/` pin them. Fields added
later have defaults and unknown fields are ignored, so that old and new versions understand each
other.
"""

import re
from functools import cache
from typing import Any, ClassVar, TypeVar

import msgspec

from toolpool.contract import encoding
from toolpool.contract.errors import MessageRejected
from toolpool.contract.outcome import Code, Executed, Outcome, failure
from toolpool.contract.rates import Limit
from toolpool.contract.signing import Keyring
from toolpool.contract.spec import ToolSpec

VERSION = 1

T = TypeVar("T")


class Signed(msgspec.Struct, frozen=True):
    """A value that is stored signed, for one purpose."""

    purpose: ClassVar[str]


SignedT = TypeVar("SignedT", bound=Signed)


class PolicyVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A policy's permission to run a call, and what the policy judged.

    `policy` is the digest of the rules and the hook that decided. It is empty if only the tool's
    declaration required approval. `by` names the rule or hook. `tool` is the tool's `bound_digest`.
    `paths` lead to the arguments that rules compare: names, positions, and None for every element.
    `is_whole` says that a hook or a person saw all arguments.
    """

    policy: str = ""
    by: str = ""
    tool: str = ""
    paths: tuple[tuple[str | int | None, ...], ...] = ()
    is_whole: bool = False


class CallMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One call on its way to a worker.

    `keep` is how long its outcome is kept, in seconds; by default the worker's setting. `key` names
    its ledger record, `digest` the spec that it was validated against. `timeout` bounds the run in
    seconds; `rerunnable` says whether a second start does no harm. `final`: no worker has the
    version of the tool that the call was validated against, so a worker with another version
    validates it again. `retries`: how many retries the pool has left for the call. `trace`: its
    trace headers by name (https://www.w3.org/TR/trace-context/). `approval`: the signed decision of
    the person who approved it, if approval was required. `verdict` is set if a policy judged the
    call: `arguments` are then the judged ones. `limits` are the rate limits under which its
    dispatcher counts it. `idempotency`: what the idempotency key is derived from, if not `key`.
    """

    key: str
    id: str
    tool: str
    digest: str
    arguments: dict[str, Any]
    index: int = 0
    session: str | None = None
    turn: str | None = None
    context: dict[str, Any] | None = None
    attempt: int = 1
    timeout: float = 60.0
    rerunnable: bool = False
    final: bool = False
    keep: float | None = None
    retries: int = 0
    trace: dict[str, str] | None = None
    approval: bytes | None = None
    verdict: PolicyVerdict | None = None
    limits: tuple[Limit, ...] = ()
    idempotency: str = ""
    extensions: dict[str, Any] | None = None


class Batch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Calls that travel in one Celery message.

    A worker takes the batch only between `sent_at` and `ends_at` (Unix time in seconds by the
    server's clock) and discards later copies. 0.0: not set, as by older versions.
    """

    id: str
    reply: str
    calls: tuple[CallMessage, ...]
    tenant: str = "default"
    version: int = VERSION
    sent_at: float = 0.0
    ends_at: float = 0.0


class _Versioned(msgspec.Struct, frozen=True):
    """The only fields that messages of later versions certainly have."""

    version: int = VERSION


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """A worker claimed these calls of a batch."""

    batch: str
    worker: str
    keys: tuple[str, ...]


class Settled(msgspec.Struct, frozen=True, kw_only=True, tag="settled", omit_defaults=True):
    """The first outcome of a call, as stored in the ledger.

    `at` is the fleet time (Unix seconds) at which a shared run ended, or a call was rejected or
    refused; 0.0 for other calls.
    """

    key: str
    outcome: Outcome
    at: float = 0.0


class Released(msgspec.Struct, frozen=True, kw_only=True, tag="released"):
    """A worker gave a claimed call back. The call waits for the attempt after `attempt`."""

    key: str
    attempt: int
    worker: str


class RunsEnded(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """The tools of these calls have now ended. The calls were answered earlier."""

    worker: str
    keys: tuple[str, ...]


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """Progress that a running call reported."""

    key: str
    done: float
    total: float | None = None
    message: str | None = None


class Unclaimed(msgspec.Struct, frozen=True, kw_only=True, tag="passed", omit_defaults=True):
    """A worker received a message with this call and did not claim the call.

    `reason` is `switch` if a kill switch denies the call. If it is empty, the worker lacks this
    version of the tool, or one of the `limits` of the call is exhausted.
    """

    key: str
    attempt: int
    worker: str
    reason: str = ""
    limits: tuple[Limit, ...] = ()


class Question(msgspec.Struct, frozen=True, kw_only=True, tag="asked", omit_defaults=True):
    """An operator asks a dispatcher for its open calls, by call id, record key or session.

    The answer goes to the reply stream `id`. A question that is read after `ends_at` (Unix time by
    the server's clock) is not answered. If `cancel`, the dispatcher cancels the calls before it
    answers.
    """

    id: str
    ends_at: float
    call: str | None = None
    key: str | None = None
    session: str | None = None
    cancel: bool = False


class Decided(msgspec.Struct, frozen=True, kw_only=True, tag="decided"):
    """A call that waited for approval was decided; `decision` is signed."""

    key: str
    decision: bytes


Reply = Started | Settled | Released | Unclaimed | RunsEnded | Progress | Question | Decided


class CatalogEntry(Signed, frozen=True, kw_only=True, omit_defaults=True):
    """A tool as a worker publishes it. `published_at` is Unix time in seconds.

    `removed`: when an operator removed this version.
    """

    purpose: ClassVar[str] = "catalog"
    spec: ToolSpec
    published_at: float
    version: str
    removed: bool = False


class Toolset(Signed, frozen=True, kw_only=True):
    """The tools of one worker release: spec digests by tool name; `digest` identifies the set."""

    purpose: ClassVar[str] = "toolset"
    digest: str
    tools: dict[str, str]


class Switch(Signed, frozen=True, kw_only=True, omit_defaults=True):
    """Denies a tool, or only calls where `argument` has this `value`, under a key prefix.

    Of two states of a switch the one with the higher `number` holds. `tenant` is None for all
    tenants. `on` is False after the switch was removed: the removed state is signed and kept too.
    `set_at` is fleet time in seconds.
    """

    purpose: ClassVar[str] = "switch"
    tool: str
    reason: str
    argument: str | None = None
    value: Any = None
    set_at: float = 0.0
    on: bool = True
    prefix: str = ""
    tenant: str | None = None
    number: int = 0


class StoredOutput(Signed, frozen=True, kw_only=True):
    """The whole output of a call that returned more than the model is shown."""

    purpose: ClassVar[str] = "output"
    handle: str
    tenant: str
    session: str | None
    tool: str
    text: str


class BackgroundCall(Signed, frozen=True, kw_only=True, omit_defaults=True):
    """The call behind a handle, with all that any dispatcher needs to continue it.

    `started_at` and `deadline` are Unix time in seconds; `origin`, `long_id` and `id_given` are
    those of the `ToolCall`; `approval` is the id of the approval that it waits for, if any; `epoch`
    is the server's epoch at the time when the call was accepted, or sent.
    """

    purpose: ClassVar[str] = "background"
    handle: str
    tenant: str
    session: str | None
    queue: str
    message: CallMessage
    started_at: float
    deadline: float
    origin: dict[str, Any] | None = None
    long_id: str | None = None
    id_given: bool = True
    approval: str = ""
    epoch: str = ""


ENDED_SAID_SECONDS = 60
"""How long the lease of a stopped worker is kept, in seconds."""


class WorkerLease(Signed, frozen=True, kw_only=True, omit_defaults=True):
    """A worker's description of itself, renewed with its lease. `started_at` is Unix time.

    `slots` and `free` are counted by queue name; `received` counts messages since the start, `beat`
    renewals. `toolset` identifies its tools. `leaving`: it is shutting down and starts no more
    calls. `ended`: the worker or its supervisor reported that nothing runs in it any more. `ttl` is
    how long its lease lasts, in seconds; 0 if unknown. `subscribed`: it is subscribed to its
    liveness channel, so that the server knows when it dies. `stall` is after how many seconds it is
    ended if it stands still; 0 if unknown. `left_out` are tools that it has loaded and does not
    take, because of their run mode or queue.
    """

    purpose: ClassVar[str] = "lease"
    id: str
    host: str
    pid: int
    version: str
    started_at: float
    slots: dict[str, int]
    free: dict[str, int] = {}
    received: int = 0
    running: int = 0
    abandoned: int = 0
    beat: int = 0
    toolset: str = ""
    leaving: bool = False
    ended: bool = False
    ttl: float = 0.0
    subscribed: bool = False
    stall: float = 0.0
    left_out: tuple[str, ...] = ()


class Cancel(Signed, frozen=True, kw_only=True):
    """Asks a worker to stop a call it has claimed."""

    purpose: ClassVar[str] = "cancel"
    key: str
    reason: str = "cancelled"


_SETTLED = re.compile(rb'\{"type":"settled","key":"([0-9A-Za-z_:.-]+)","outcome":')
"""The start of a `Settled`, matched without decoding the nested outcome."""

_BATCH = "batch"
_REPLY = "reply"
_versions = msgspec.json.Decoder(_Versioned)
_batches: msgspec.json.Decoder[Batch] = encoding.decoder_of(Batch)
_replies: msgspec.json.Decoder[Reply] = encoding.decoder_of(Reply)
_decoder_of = cache(encoding.decoder_of)


class Envelope:
    """Encodes and signs, verifies and decodes.

    Every `decode_*` raises `MessageRejected` for bytes that are unsigned, foreign, malformed, too
    new, or longer than `max_bytes`.
    """

    def __init__(self, keyring: Keyring, *, max_bytes: int = 2 * 1024 * 1024) -> None:
        self._keyring = keyring
        self._max_bytes = max_bytes

    @property
    def key_id(self) -> str:
        """The id of the key that signs."""
        return self._keyring.key_id

    def encode_batch(self, batch: Batch) -> bytes:
        """Encode and sign.

        Raises TypeError, ValueError or RecursionError if a value is not JSON.
        """
        return self._keyring.sign(_BATCH, encoding.encode(batch))

    def decode_batch(self, data: bytes) -> Batch:
        """Decode a batch that a holder of a key signed."""
        if len(data) > self._max_bytes:
            raise MessageRejected("too_large", "the message is over the cap")
        body = self._keyring.verify(_BATCH, data)
        try:
            batch = _decode(_batches, body)
        except MessageRejected:
            _require_known(_decode(_versions, body).version)  # a newer message may differ in form
            raise
        _require_known(batch.version)
        return batch

    def encode_reply(self, reply: Reply) -> bytes:
        """Encode and sign.

        Raises TypeError, ValueError or RecursionError if a value is not JSON.
        """
        return self._keyring.sign(_REPLY, encoding.encode(reply))

    def encode_settled(self, key: str, outcome: Outcome) -> bytes:
        """The reply that ends a call. Raises as `encode_reply` does."""
        return self.encode_reply(Settled(key=key, outcome=outcome))

    def decode_settled(self, key: str, data: bytes) -> Settled | None:
        """The outcome in a record; None for any other message, and for another record's outcome.

        Raises as `decode_reply` does.
        """
        reply = self.decode_reply(data)
        return reply if isinstance(reply, Settled) and reply.key == key else None

    def decode_reply(self, data: bytes) -> Reply:
        """Decode a worker's reply or an operator's `Question`.

        A `Settled` with an unreadable outcome is returned with an internal error as its outcome,
        because no other reply will end the call.
        """
        body = self._keyring.verify(_REPLY, data)
        try:
            return _replies.decode(body)
        except _UNDECODABLE as error:
            settled = _SETTLED.match(body)
            if settled is None:
                raise _malformed(error) from None
            reason = f"its outcome could not be read: {_malformed(error)}"
            outcome = failure(Code.INTERNAL, reason[:200], Executed.UNKNOWN)
            return Settled(key=settled[1].decode(), outcome=outcome)

    def encode(self, value: Signed) -> bytes:
        """Encode and sign anything but batches and replies.

        Raises TypeError, ValueError (such as UnicodeEncodeError) or RecursionError if a value is
        not JSON.
        """
        return self._keyring.sign(value.purpose, encoding.encode(value))

    def signed_with_each(self, kind: type[Signed], data: bytes) -> list[bytes]:
        """A value that a holder of a key signed, signed with each key."""
        return self._keyring.sign_with_each(kind.purpose, self._keyring.verify(kind.purpose, data))

    def decode(self, kind: type[SignedT], data: bytes) -> SignedT:
        """Verify and decode a value of this type."""
        decoder: msgspec.json.Decoder[SignedT] = _decoder_of(kind)
        return _decode(decoder, self._keyring.verify(kind.purpose, data))


def _require_known(version: int) -> None:
    if version > VERSION:
        raise MessageRejected(
            "version",
            f"message version {version} is newer than this worker's {VERSION}: "
            "upgrade workers before dispatchers",
        )


_UNDECODABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


def _decode(decoder: "msgspec.json.Decoder[T]", body: bytes) -> T:
    try:
        return decoder.decode(body)
    except _UNDECODABLE as error:
        raise _malformed(error) from None


def _malformed(error: Exception) -> MessageRejected:
    return MessageRejected("malformed", f"the message is malformed: {error}")

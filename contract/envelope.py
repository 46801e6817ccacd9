"""The one door between calls and bytes: batches to workers, replies and cancels back.

`docs/wire-format.md` describes the bytes; golden files in `tests/contract/` pin them. Fields added
later have defaults, so that old and new understand each other; unknown fields are passed over.
"""

from typing import Any, TypeVar

import msgspec

from contract.errors import MessageRejected
from contract.outcome import Outcome
from contract.signing import Keyring
from contract.spec import ToolSpec

VERSION = 1

T = TypeVar("T")


class CallMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call on its way to a worker.

    `keep` is how long its outcome is kept, in seconds, where the worker's setting does not hold.

    `key` names its ledger record, `digest` the spec it was validated against. `timeout` bounds the
    run, in seconds; `rerunnable` says whether a second start does no harm.
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
    keep: float | None = None
    trace: dict[str, str] | None = None
    extensions: dict[str, Any] | None = None


class Batch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Calls that travel in one Celery message."""

    id: str
    reply: str
    calls: tuple[CallMessage, ...]
    tenant: str = "default"
    version: int = VERSION


class _Versioned(msgspec.Struct, frozen=True):
    """All that is sure of a message from a later version."""

    version: int = VERSION


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """A worker claimed these calls of a batch."""

    batch: str
    worker: str
    keys: tuple[str, ...]


class Settled(msgspec.Struct, frozen=True, kw_only=True, tag="settled"):
    """The first outcome of a call; it is stored in the ledger in this form."""

    key: str
    outcome: Outcome


class Released(msgspec.Struct, frozen=True, kw_only=True, tag="released"):
    """A worker gave a claimed call back: it waits in the attempt after `attempt`."""

    key: str
    attempt: int
    worker: str


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """Tools ended whose calls had been answered before: nothing of them runs any more."""

    worker: str
    keys: tuple[str, ...]


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """How far a running call says it is (R36)."""

    key: str
    done: float
    total: float | None = None
    message: str | None = None


Reply = Started | Settled | Released | Ended | Progress


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as a worker publishes it. `published_at` is Unix time in seconds."""

    spec: ToolSpec
    published_at: float
    version: str


class Offers(msgspec.Struct, frozen=True, kw_only=True):
    """Which tools a worker has: their digests, by name."""

    worker: str
    tools: dict[str, str]


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """Denies a tool, or only where `argument` has this `value`, to the whole fleet."""

    tool: str
    reason: str
    argument: str | None = None
    value: Any = None


class StoredOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The whole output of a call that returned more than a model is shown (R37)."""

    handle: str
    tenant: str
    session: str | None
    tool: str
    text: str


class BackgroundCall(msgspec.Struct, frozen=True, kw_only=True):
    """What a handle stands for: enough for any dispatcher to go on with the call.

    `started_at` and `deadline` are Unix time in seconds.
    """

    handle: str
    tenant: str
    session: str | None
    queue: str
    message: CallMessage
    started_at: float
    deadline: float


class WorkerLease(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker's description of itself, renewed with its lease. `started_at` is Unix time.

    `slots` and `free` are counted by queue name; `received` counts messages since the start.
    """

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


class Cancel(msgspec.Struct, frozen=True, kw_only=True):
    """Asks a worker to stop a call it has claimed."""

    key: str
    reason: str = "cancelled"


_versions = msgspec.json.Decoder(_Versioned)

_BATCH = "batch"
_REPLY = "reply"
_CANCEL = "cancel"
_CATALOG = "catalog"
_LEASE = "lease"
_OFFERS = "offers"
_BACKGROUND = "background"
_OUTPUT = "output"
_SWITCH = "switch"
_encoder = msgspec.json.Encoder()
_batches = msgspec.json.Decoder(Batch)
_replies: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(
    Started | Settled | Released | Ended | Progress
)
_cancels = msgspec.json.Decoder(Cancel)
_entries = msgspec.json.Decoder(CatalogEntry)
_leases = msgspec.json.Decoder(WorkerLease)
_offers = msgspec.json.Decoder(Offers)
_background = msgspec.json.Decoder(BackgroundCall)
_switches = msgspec.json.Decoder(Switch)
_outputs = msgspec.json.Decoder(StoredOutput)


class Envelope:
    """Encodes and signs, verifies and decodes.

    Every `decode_*` raises `MessageRejected` for bytes that are unsigned, foreign, malformed, too
    new, or longer than `max_bytes`.
    """

    def __init__(self, keyring: Keyring, *, max_bytes: int = 2 * 1024 * 1024) -> None:
        self._keyring = keyring
        self._max_bytes = max_bytes

    def encode_batch(self, batch: Batch) -> bytes:
        """Raises TypeError, ValueError or RecursionError where arguments are not JSON."""
        return self._keyring.sign(_BATCH, _encoder.encode(batch))

    def decode_batch(self, data: bytes) -> Batch:
        """The batch in `data`, whole and by a holder of a key."""
        if len(data) > self._max_bytes:
            raise MessageRejected("too_large", f"a message of {len(data)} bytes is over the cap")
        body = self._keyring.verify(_BATCH, data)
        try:
            batch = _decode(_batches, body)
        except MessageRejected:
            _require_known(_decode(_versions, body).version)  # its form may be what is newer
            raise
        _require_known(batch.version)
        return batch

    def encode_reply(self, reply: Reply) -> bytes:
        """Raises TypeError, ValueError or RecursionError where the outcome is not JSON."""
        return self._keyring.sign(_REPLY, _encoder.encode(reply))

    def decode_reply(self, data: bytes) -> Reply:
        """A `Started`, `Settled`, `Released`, `Ended` or `Progress`."""
        return _decode(_replies, self._keyring.verify(_REPLY, data))

    def encode_cancel(self, cancel: Cancel) -> bytes:
        """The cancel, signed."""
        return self._keyring.sign(_CANCEL, _encoder.encode(cancel))

    def decode_cancel(self, data: bytes) -> Cancel:
        """The cancel in `data`."""
        return _decode(_cancels, self._keyring.verify(_CANCEL, data))

    def encode_entry(self, entry: CatalogEntry) -> bytes:
        """The catalog entry, signed."""
        return self._keyring.sign(_CATALOG, _encoder.encode(entry))

    def decode_entry(self, data: bytes) -> CatalogEntry:
        """The catalog entry in `data`."""
        return _decode(_entries, self._keyring.verify(_CATALOG, data))

    def encode_switch(self, switch: Switch) -> bytes:
        """The switch, signed."""
        return self._keyring.sign(_SWITCH, _encoder.encode(switch))

    def decode_switch(self, data: bytes) -> Switch:
        """The switch in `data`."""
        return _decode(_switches, self._keyring.verify(_SWITCH, data))

    def encode_output(self, output: StoredOutput) -> bytes:
        """The stored output, signed. Raises UnicodeEncodeError for half of a surrogate pair."""
        return self._keyring.sign(_OUTPUT, _encoder.encode(output))

    def decode_output(self, data: bytes) -> StoredOutput:
        """The stored output in `data`."""
        return _decode(_outputs, self._keyring.verify(_OUTPUT, data))

    def encode_background(self, call: BackgroundCall) -> bytes:
        """The background call, signed."""
        return self._keyring.sign(_BACKGROUND, _encoder.encode(call))

    def decode_background(self, data: bytes) -> BackgroundCall:
        """The background call in `data`."""
        return _decode(_background, self._keyring.verify(_BACKGROUND, data))

    def encode_lease(self, lease: WorkerLease) -> bytes:
        """The lease, signed."""
        return self._keyring.sign(_LEASE, _encoder.encode(lease))

    def encode_offers(self, offers: Offers) -> bytes:
        """What a worker has, signed."""
        return self._keyring.sign(_OFFERS, _encoder.encode(offers))

    def decode_offers(self, data: bytes) -> Offers:
        """What a worker has, in `data`."""
        return _decode(_offers, self._keyring.verify(_OFFERS, data))

    def decode_lease(self, data: bytes) -> WorkerLease:
        """The lease in `data`."""
        return _decode(_leases, self._keyring.verify(_LEASE, data))


def _require_known(version: int) -> None:
    if version > VERSION:
        raise MessageRejected(
            "version",
            f"message version {version} is newer than this worker's {VERSION}: "
            "upgrade workers before dispatchers",
        )


def _decode(decoder: "msgspec.json.Decoder[T]", body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MessageRejected("malformed", f"the message is not of the form: {error}") from None

"""What waits for a person's approval, and what a person decides: signed, as it is acted on."""

from collections.abc import Collection
from enum import StrEnum
from typing import Any

import msgspec

from toolpool.contract import encoding, logs
from toolpool.contract.envelope import CallMessage, Envelope
from toolpool.contract.errors import MessageRejected

log = logs.logger("approvals")

_REQUEST = "approval"
_DECISION = "decision"


class ApprovalState(StrEnum):
    """How far an approval is. `sent` is an approved call that is on its way, or further."""

    WAITING = "waiting"
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    SENT = "sent"


class ApprovalRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that waits for approval: enough for any dispatcher to go on with it.

    It is kept in the record of the call, whose key `message` has, of a deployment with this
    `prefix`. `digest` is that of the tool and of its exact arguments, which the approval is bound
    to. Times are Unix time in seconds, by the server's clock: somebody may decide until
    `expires_at`, and the call may be started for `start_within` seconds after that. The last three
    are of the `ToolCall`.
    """

    tenant: str
    prefix: str
    message: CallMessage
    digest: str
    asked_at: float
    expires_at: float
    start_within: float = 0.0
    reason: str = ""
    approvers: tuple[str, ...] = ()
    by: str = ""
    """What asked for it: a rule, a hook or the tool's declaration."""
    provider: str = ""
    is_foreign: bool = False
    """Whether a provider runs the tool, and only asks: nothing is sent when it is approved."""
    origin: dict[str, Any] | None = None
    long_id: str | None = None
    id_given: bool = True

    @property
    def id(self) -> str:
        """The approval's id: the key of the call's record."""
        return self.message.key


class ApprovalDecision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a person decided about the request with this key and digest.

    An approved call may be started until `ends_at`, Unix time by the server's clock.
    """

    key: str
    tenant: str
    prefix: str
    digest: str
    approved: bool
    by: str
    at: float
    ends_at: float
    reason: str = ""


_requests = msgspec.json.Decoder(ApprovalRequest)
_decisions = msgspec.json.Decoder(ApprovalDecision)
_encoder = msgspec.json.Encoder()


def digest_of(tool: str, arguments: dict[str, Any], bound: str = "") -> str:
    """Stands for a tool with exactly these arguments; `bound` is the spec's `bound_digest`."""
    return encoding.digest([tool, arguments, bound])


def signed_request(envelope: Envelope, request: ApprovalRequest) -> bytes:
    """The request as it is stored."""
    return envelope.seal(_REQUEST, _encoder.encode(request))


def signed_decision(envelope: Envelope, decision: ApprovalDecision) -> bytes:
    """The decision as it is stored."""
    return envelope.seal(_DECISION, _encoder.encode(decision))


def read_request(
    envelope: Envelope, data: bytes, *, key: str, tenant: str, prefix: str
) -> ApprovalRequest:
    """The request in the record `key`. Raises `MessageRejected` for any other."""
    try:
        request = _requests.decode(envelope.unseal(_REQUEST, data))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MessageRejected("malformed", f"no request for approval: {error}") from None
    if (request.message.key, request.tenant, request.prefix) != (key, tenant, prefix):
        raise MessageRejected("foreign", "a request for another call")
    return request


def trusted_request(
    envelope: Envelope, data: bytes, *, key: str, tenant: str, prefix: str
) -> ApprovalRequest | None:
    """The request in the record `key`; None if nobody whom we trust signed it for this call."""
    if not data:
        return None
    try:
        return read_request(envelope, data, key=key, tenant=tenant, prefix=prefix)
    except MessageRejected as error:
        log.error("message_rejected reason=%s approval=%s: %s", error.reason, key, error)
        return None


def read_decision(
    envelope: Envelope, data: bytes, *, key: str, tenant: str, prefix: str, digest: str
) -> ApprovalDecision:
    """The decision about the call with this key and digest. Raises `MessageRejected` for any other.

    Whether its time is over is for the caller to see.
    """
    try:
        decision = _decisions.decode(envelope.unseal(_DECISION, data))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MessageRejected("malformed", f"no decision: {error}") from None
    about = (decision.key, decision.tenant, decision.prefix, decision.digest)
    if about != (key, tenant, prefix, digest):
        raise MessageRejected("foreign", "a decision about another call")
    return decision


def may_decide(by: str, approvers: Collection[str]) -> bool:
    """Whether somebody may approve or deny a call; where no `approvers` are named, anybody may."""
    return bool(by) and (not approvers or by in approvers)

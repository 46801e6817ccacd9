"""What waits for a person's approval, and what a person decides: signed, as it is acted on."""

from enum import StrEnum
from typing import Any

import msgspec

from toolpool.contract import encoding, logs
from toolpool.contract.envelope import CallMessage, Envelope
from toolpool.contract.errors import MessageRejected

log = logs.logger("approvals")

_REQUEST = "approval"
_DECISION = "decision"
_ID_CHARACTERS = 20


class ApprovalState(StrEnum):
    """How far an approval is. `sent` is an approved call that is on its way, or further."""

    WAITING = "waiting"
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    SENT = "sent"


class ApprovalRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that waits for approval: enough for any dispatcher to go on with it.

    `digest` is that of the tool and of its exact arguments, which the approval is bound to. Times
    are Unix time in seconds, by the server's clock. The last three are of the `ToolCall`.
    """

    id: str
    tenant: str
    message: CallMessage
    digest: str
    asked_at: float
    expires_at: float
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


class ApprovalDecision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a person decided about the request of this id, with this digest."""

    id: str
    digest: str
    approved: bool
    by: str
    at: float
    reason: str = ""


_requests = msgspec.json.Decoder(ApprovalRequest)
_decisions = msgspec.json.Decoder(ApprovalDecision)
_encoder = msgspec.json.Encoder()


def digest_of(tool: str, arguments: dict[str, Any]) -> str:
    """Stands for a tool with exactly these arguments."""
    return encoding.digest([tool, arguments])


def signed_request(envelope: Envelope, request: ApprovalRequest) -> bytes:
    """The request as it is stored."""
    return envelope.seal(_REQUEST, _encoder.encode(request))


def signed_decision(envelope: Envelope, decision: ApprovalDecision) -> bytes:
    """The decision as it is stored."""
    return envelope.seal(_DECISION, _encoder.encode(decision))


def read_request(envelope: Envelope, data: bytes) -> ApprovalRequest:
    """Raises `MessageRejected`, also where its digest is not that of its arguments."""
    try:
        request = _requests.decode(envelope.unseal(_REQUEST, data))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MessageRejected("malformed", f"no request for approval: {error}") from None
    if request.digest != digest_of(request.message.tool, request.message.arguments):
        raise MessageRejected("malformed", "the digest is not that of the arguments")
    return request


def trusted_request(
    envelope: Envelope, data: bytes, *, id: str, tenant: str
) -> ApprovalRequest | None:
    """The request that is kept under `id`; None for another tenant's, and for one nobody signed."""
    if not data:
        return None
    try:
        request = read_request(envelope, data)
    except MessageRejected as error:
        log.error("approval_rejected id=%s: %s", id, error)
        return None
    return request if (request.id, request.tenant) == (id, tenant) else None


def read_decision(envelope: Envelope, data: bytes, request: ApprovalRequest) -> ApprovalDecision:
    """The decision about this request. Raises `MessageRejected` for any other."""
    try:
        decision = _decisions.decode(envelope.unseal(_DECISION, data))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MessageRejected("malformed", f"no decision: {error}") from None
    if (decision.id, decision.digest) != (request.id, request.digest):
        raise MessageRejected("foreign", "a decision about another call")
    return decision


def id_of(root: str) -> str:
    """The id of the approval of a call, by its key: short enough to be typed."""
    return root[:_ID_CHARACTERS]


def may_decide(by: str, request: ApprovalRequest) -> bool:
    """Whether somebody may approve or deny a call."""
    return bool(by) and (not request.approvers or by in request.approvers)

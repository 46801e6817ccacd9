"""Signed approval requests and decisions."""

from collections.abc import Collection
from enum import StrEnum
from typing import Any, ClassVar

from toolpool.contract import encoding, logs
from toolpool.contract.envelope import CallMessage, Envelope, Signed
from toolpool.contract.errors import MessageRejected

log = logs.logger("approvals")


class ApprovalState(StrEnum):
    """The state of an approval. `sent` is an approved call that was sent or has ended."""

    WAITING = "waiting"
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    SENT = "sent"


class ApprovalRequest(Signed, frozen=True, kw_only=True, omit_defaults=True):
    """A call that waits for approval, with all that any dispatcher needs to continue it.

    It is stored in the ledger record that `message.key` names, in the deployment with this key
    `prefix`. The approval is bound to `digest`, the digest of the tool and its exact arguments.
    Times are Unix time in seconds by the server's clock: the request can be decided until
    `expires_at`, and an approved call may start within `start_within` seconds. The last three
    fields come from the `ToolCall`.
    """

    purpose: ClassVar[str] = "approval"
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
    """What required the approval: a rule, a hook or the tool's declaration."""
    provider: str = ""
    is_foreign: bool = False
    """Whether a provider runs the tool and only asks for approval: no call is sent."""
    origin: dict[str, Any] | None = None
    long_id: str | None = None
    id_given: bool = True

    @property
    def id(self) -> str:
        """The approval's id: the key of the call's ledger record."""
        return self.message.key


class ApprovalDecision(Signed, frozen=True, kw_only=True, omit_defaults=True):
    """A person's decision about the request with this key and digest.

    An approved call may start until `ends_at`, Unix time by the server's clock.
    """

    purpose: ClassVar[str] = "decision"
    key: str
    tenant: str
    prefix: str
    digest: str
    approved: bool
    by: str
    at: float
    ends_at: float
    reason: str = ""


def digest_of(tool: str, arguments: dict[str, Any], bound: str = "") -> str:
    """Digest of a tool and its exact arguments; `bound` is the spec's `bound_digest`."""
    return encoding.digest([tool, arguments, bound])


class ApprovalReader:
    """Reads requests and decisions that are signed for one tenant and key prefix."""

    def __init__(self, envelope: Envelope, tenant: str, prefix: str) -> None:
        self._envelope = envelope
        self._tenant = tenant
        self._prefix = prefix

    def request(self, key: str, data: bytes) -> ApprovalRequest:
        """Decode the request of the record `key`. Raises `MessageRejected` for any other."""
        request = self._envelope.decode(ApprovalRequest, data)
        of = (request.message.key, request.tenant, request.prefix)
        if of != (key, self._tenant, self._prefix):
            raise MessageRejected("foreign", "an approval request for another call")
        return request

    def trusted_request(self, key: str, data: bytes) -> ApprovalRequest | None:
        """The request of the record `key`; None, and logged, if it is not one signed for it."""
        if not data:
            return None
        try:
            return self.request(key, data)
        except MessageRejected as error:
            log.error("message_rejected reason=%s approval=%s: %s", error.reason, key, error)
            return None

    def decision(self, key: str, data: bytes, digest: str) -> ApprovalDecision:
        """Decode the decision for this key and digest. Raises `MessageRejected` for any other.

        The caller checks whether the decision has expired.
        """
        decision = self._envelope.decode(ApprovalDecision, data)
        about = (decision.key, decision.tenant, decision.prefix, decision.digest)
        if about != (key, self._tenant, self._prefix, digest):
            raise MessageRejected("foreign", "an approval decision for another call")
        return decision


def may_decide(by: str, approvers: Collection[str]) -> bool:
    """Whether `by` may decide about a call; an empty `approvers` allows everybody."""
    return bool(by) and (not approvers or by in approvers)

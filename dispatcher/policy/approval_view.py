"""An approval as people see it."""

from typing import Any

import msgspec

from toolpool.contract.approval_messages import ApprovalDecision, ApprovalRequest, ApprovalState


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for approval, or waited. Times are Unix time in seconds.

    `digest` identifies the tool and these exact arguments: an approval that names it covers what
    was seen. `approvers` may decide; if empty, anyone may. `asked_by` is the rule, the hook or the
    declaration that requires the approval. `decided_by` is empty while the decision is pending.
    """

    id: str
    state: ApprovalState
    tool: str
    arguments: dict[str, Any]
    digest: str
    session: str | None
    turn: str | None
    call_id: str
    tenant: str
    reason: str
    approvers: tuple[str, ...]
    asked_by: str
    asked_at: float
    expires_at: float
    decided_by: str = ""
    decided_at: float | None = None
    decision_reason: str = ""


def approval_of(
    request: ApprovalRequest,
    state: ApprovalState = ApprovalState.WAITING,
    decision: ApprovalDecision | None = None,
) -> Approval:
    """The approval of a request, for people."""
    message = request.message
    return Approval(
        id=request.id,
        state=state,
        tool=message.tool,
        arguments=message.arguments,
        digest=request.digest,
        session=message.session,
        turn=message.turn,
        call_id=message.id,
        tenant=request.tenant,
        reason=request.reason,
        approvers=request.approvers,
        asked_by=request.by,
        asked_at=request.asked_at,
        expires_at=request.expires_at,
        decided_by=decision.by if decision is not None else "",
        decided_at=decision.at if decision is not None else None,
        decision_reason=decision.reason if decision is not None else "",
    )

"""An approval as people see it, and what they may do about it."""

from typing import Any

import msgspec

from toolpool.contract.approval_messages import ApprovalDecision, ApprovalRequest, ApprovalState


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for a person, or waited. Times are Unix time in seconds.

    `digest` stands for the tool and these very arguments: who names it when approving approves what
    they saw. `approvers` are who may; empty where anybody may. `asked_by` is the rule, the hook or
    the declaration that asks. `decided_by` is empty while nobody has decided.
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
    """What people are shown of a request."""
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

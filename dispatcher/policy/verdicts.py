"""What a policy is asked about a call, and what it may answer."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from toolpool.contract.result import ToolResult
from toolpool.contract.spec import Effects

_ATOMS = frozenset({str, int, float, bool, type(None)})


class ProposedCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A valid call that a model asks for, before it is queued.

    `arguments` and `context` are copies: changing them changes nothing. `provider` is the form of
    the response that it came in.
    """

    tool: str
    arguments: dict[str, Any]
    call_id: str
    session: str | None
    turn: str | None
    tenant: str
    context: dict[str, Any] | None
    effects: Effects | None
    provider: str = ""


class Allow(msgspec.Struct, frozen=True):
    """The call may run. To answer nothing means the same."""


class Deny(msgspec.Struct, frozen=True):
    """The call is not run, and answered `aborted.denied`; the model reads `reason`."""

    reason: str = ""


class Rewrite(msgspec.Struct, frozen=True):
    """The call runs with other arguments, which are checked against the schema once more.

    The model is told which arguments were changed, not their values, and reads `note`.
    """

    arguments: dict[str, Any]
    note: str = ""


class AskApproval(msgspec.Struct, frozen=True):
    """The call waits until a person approves it.

    `approvers` are who may, any of them; none are named where anybody may. It is good for
    `expires` seconds, by default those of the setting `approval_expires`.
    """

    reason: str = ""
    approvers: tuple[str, ...] = ()
    expires: float | None = None


class Replace(msgspec.Struct, frozen=True):
    """What a model reads in place of a tool's result: other `data`, or another `error`.

    `note` is added to what it is told beside them.
    """

    data: Any = msgspec.UNSET
    error: str | msgspec.UnsetType = msgspec.UNSET
    note: str = ""


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What would become of a call: a rejection, or what the policy decides about it, and who.

    `arguments` are those that it would run with; None where it would not run.
    """

    rejection: ToolResult | None = None
    decision: Literal["allow", "deny", "ask"] = "allow"
    by: str = ""
    reason: str = ""
    arguments: dict[str, Any] | None = None


Verdict = Allow | Deny | Rewrite | AskApproval


def copied(value: Any) -> Any:
    """A copy of what JSON can hold."""
    if type(value) in _ATOMS:
        return value
    if isinstance(value, Mapping):
        return {key: v if type(v) in _ATOMS else copied(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [copied(inner) for inner in value]
    return value

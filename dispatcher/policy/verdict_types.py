"""What a policy sees of a call, and the verdicts that it may return."""

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec

from toolpool.contract.encoding import printable
from toolpool.contract.result import ToolResult
from toolpool.contract.spec import Effects

LONGEST_EXPIRES = 10 * 365 * 86_400.0
"""The longest wait for approval, in seconds."""

_ATOMS = frozenset({str, int, float, bool, type(None)})


class ProposedCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A valid call that a model proposes, before it is queued.

    `arguments` and `context` are copies: changing them has no effect. `provider` is the form of the
    response that it came in.
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
    """The call may run. None means the same."""


class Deny(msgspec.Struct, frozen=True):
    """The call is not run, and answered `aborted.denied`; the model reads `reason`."""

    reason: str = ""


class Rewrite(msgspec.Struct, frozen=True):
    """The call runs with other arguments, which are validated again.

    The model is told which arguments were changed, not their values, and reads `note`.
    """

    arguments: dict[str, Any]
    note: str = ""


class AskApproval(msgspec.Struct, frozen=True):
    """The call waits until a person approves it.

    `approvers` lists who may approve; by default, anyone may. An empty list is an error, and the
    call is denied. The request expires after `expires` seconds, by default those of the setting
    `approval_expires`.
    """

    reason: str = ""
    approvers: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    expires: float | None = None


class Replace(msgspec.Struct, frozen=True):
    """What a model reads in place of a tool's result: other `data`, or another `error`.

    `note` is added to either.
    """

    data: Any = msgspec.UNSET
    error: str | msgspec.UnsetType = msgspec.UNSET
    note: str = ""


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """The preview of a call: a rejection, or the policy's decision, and by whom.

    The call would run with `arguments`; None if it would not run. `retry_after` is the time in
    seconds until the tool's open circuit admits a trial call; None if the circuit is closed.
    """

    rejection: ToolResult | None = None
    decision: Literal["allow", "deny", "ask"] = "allow"
    by: str = ""
    reason: str = ""
    arguments: dict[str, Any] | None = None
    retry_after: float | None = None


Verdict = Allow | Deny | Rewrite | AskApproval
V = TypeVar("V", bound=Verdict)


def checked(verdict: V) -> V:
    """The verdict with sanitized texts. Raises ValueError for an unusable one."""
    if isinstance(verdict, Rewrite):
        return msgspec.structs.replace(verdict, note=_told(verdict.note))
    if isinstance(verdict, (Deny, AskApproval)):
        verdict = msgspec.structs.replace(verdict, reason=_told(verdict.reason))
    if isinstance(verdict, AskApproval):
        names: Any = verdict.approvers
        expires = verdict.expires
        is_list = names is msgspec.UNSET or isinstance(names, (tuple, list))
        if not is_list or not all(n and _told(n) == n for n in names or ()):
            raise ValueError("`approvers` must be a tuple of names, none of them empty")
        if names is not msgspec.UNSET and not names:
            raise ValueError("`approvers` names nobody; leave it out if anyone may approve")
        if expires is not None and not is_time(expires):
            raise ValueError(f"`expires` must be seconds above 0, at most {LONGEST_EXPIRES:,.0f}")
    return verdict


def is_time(seconds: Any) -> bool:
    """Whether a value is a valid time limit for an approval."""
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    return is_number and 0 < seconds <= LONGEST_EXPIRES


def _told(text: Any) -> str:
    return printable(text) if isinstance(text, str) else ""


def copied(value: Any) -> Any:
    """A copy of a JSON value."""
    if type(value) in _ATOMS:
        return value
    if isinstance(value, Mapping):
        return {key: v if type(v) in _ATOMS else copied(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [copied(inner) for inner in value]
    return value

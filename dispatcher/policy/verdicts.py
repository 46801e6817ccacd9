"""What a policy is asked about a call, and what it may answer."""

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec

from toolpool.contract.encoding import printable
from toolpool.contract.result import ToolResult
from toolpool.contract.spec import Effects

LONGEST_EXPIRES = 10 * 365 * 86_400.0
"""For how many seconds a person may be waited for, at most."""

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

    `arguments` are those that it would run with; None where it would not run. `retry_after`:
    seconds until the tool's circuit lets it be tried again; None if it is closed.
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
    """The verdict, its texts as they can be told. Raises ValueError for one of no use."""
    if isinstance(verdict, Rewrite):
        return msgspec.structs.replace(verdict, note=_told(verdict.note))
    if isinstance(verdict, (Deny, AskApproval)):
        verdict = msgspec.structs.replace(verdict, reason=_told(verdict.reason))
    if isinstance(verdict, AskApproval):
        names: Any = verdict.approvers
        expires = verdict.expires
        if not isinstance(names, (tuple, list)) or not all(n and _told(n) == n for n in names):
            raise ValueError("`approvers` must be a tuple of names, none of them empty")
        if expires is not None and not is_time(expires):
            raise ValueError(f"`expires` must be seconds above 0, at most {LONGEST_EXPIRES:,.0f}")
    return verdict


def is_time(seconds: Any) -> bool:
    """Whether somebody may be waited for so long."""
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    return is_number and 0 < seconds <= LONGEST_EXPIRES


def _told(text: Any) -> str:
    return printable(text) if isinstance(text, str) else ""


def copied(value: Any) -> Any:
    """A copy of what JSON can hold."""
    if type(value) in _ATOMS:
        return value
    if isinstance(value, Mapping):
        return {key: v if type(v) in _ATOMS else copied(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [copied(inner) for inner in value]
    return value

"""One tool call, as read from a model response."""

from typing import Any

import msgspec

from toolpool.contract.envelope import PolicyVerdict
from toolpool.contract.outcome import Code


class Flaw(msgspec.Struct, frozen=True):
    """Why a block could not become a call: its code, and the reason's name with its blanks filled.

    The sentence is written in the model's language by `toolpool.dispatcher.messages.feedback`.
    """

    code: Code
    reason: str
    blanks: dict[str, str | int] = {}


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A tool call at its place in a turn.

    `arguments` are None where a `flaw` says why they could not be read. `note` tells the model what
    was assumed (a missing id, for one); `id_given` is False where the provider sent none.
    `long_id` is the provider's own where `id`, which goes on the wire, only stands for it. `origin`
    is what the provider's form must have back with the answer. `text` is the input of a call that
    is free text and has no arguments. `has_own_key` says that its provider gives no id twice, so
    that the same call may come in several responses. `mark` tells a call without an id from others.
    `doubled_id` is the provider's where another call of the response has it, and `id` was made up.
    `as_asked` are the arguments that the model sent, where they were repaired, or a policy judged
    or gave others;
    `verdict` is what the policy said, and `policy_note` tells the model which arguments it changed.
    """

    index: int
    id: str
    name: str
    arguments: dict[str, Any] | None = None
    flaw: Flaw | None = None
    note: str | None = None
    id_given: bool = True
    long_id: str | None = None
    origin: dict[str, Any] | None = None
    text: str | None = None
    has_own_key: bool = False
    mark: str | None = None
    doubled_id: str | None = None
    as_asked: dict[str, Any] | None = None
    verdict: PolicyVerdict | None = None
    policy_note: str | None = None

    @property
    def provider_id(self) -> str:
        """What the answer must name, so that the provider knows which call it is for."""
        return self.id if self.long_id is None else self.long_id

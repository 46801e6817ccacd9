"""One tool call, as read from a model response."""

from typing import Any

import msgspec

from toolpool.contract.envelope import PolicyVerdict
from toolpool.contract.outcome import Code


class Flaw(msgspec.Struct, frozen=True):
    """Why a block could not become a call: a code, and a message key with its placeholders.

    `toolpool.dispatcher.messages.texts` renders the key as a sentence in the model's language.
    """

    code: Code
    reason: str
    blanks: dict[str, str | int] = {}


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A tool call at its position in a turn.

    `arguments` are None if they could not be read; `flaw` then says why. `note` tells the model
    what was assumed, such as a missing id. `id_given` is False if the provider sent no id.
    `long_id` is the provider's id where the shorter `id` replaces it on the wire. `origin` is data
    that the provider's format needs back with the result. `text` is the input of a free-text call,
    which has no arguments. `has_own_key` says that the provider never reuses an id, so that the
    same call may appear in several responses. `mark` distinguishes calls without an id.
    `doubled_id` is the provider's id if another call of the response has it; `id` was then
    generated. `as_asked` are the arguments that the model sent, if they were repaired, judged by a
    policy or replaced by it; `verdict` is the policy's verdict, and `policy_note` tells the model
    which arguments it changed.
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
        """The id that the result must carry so that the provider can match it to the call."""
        return self.id if self.long_id is None else self.long_id

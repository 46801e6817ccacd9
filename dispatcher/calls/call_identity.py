"""Identifies calls: the key of a call's record, and what its idempotency key is derived from."""

from typing import Any

import msgspec

from toolpool.contract import encoding
from toolpool.contract.call import ToolCall
from toolpool.contract.credentials import USER
from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.contract.settings import Settings
from toolpool.dispatcher.formats.call_blocks import NO_APPROVER
from toolpool.dispatcher.formats.call_ids import is_unique
from toolpool.dispatcher.turn_options import TurnOptions


def user_of(turn: TurnOptions) -> Any:
    """The id of the user in the context of a turn; None if it has none."""
    return None if turn.context is None else turn.context.get(USER)


def key_of(call: ToolCall, turn: TurnOptions, settings: Settings, user: Any = None) -> str:
    """The same key for the same call of the same turn of the same session; without a turn or
    session, a random key.

    The key prefix is in it, as the idempotency key of the call is derived from it.
    """
    if turn.session is None or turn.id is None:
        return new_nonce()
    where = [turn.id, call.index] if not call.has_own_key else []
    sent = call.text or (call.arguments if call.as_asked is None else call.as_asked)
    whose = [] if user is None else ["user", user]
    # A provider's request is another call than one of its tool with the same id.
    of_provider = ["provider"] if call.flaw is NO_APPROVER else []
    try:
        return encoding.stored_digest(
            [
                settings.key_prefix, settings.tenant, turn.session,
                *where, call.id, call.name, sent, *whose, *of_provider,
            ]
        )  # fmt: skip
    except TypeError:  # a host may have mixed text keys with others
        return new_nonce()


def idempotency_of(call: ToolCall, turn: TurnOptions, settings: Settings) -> str:
    """What the idempotency key of a call with a unique id is derived from; empty for others.

    The turn is not included, since `resume` may not know it.
    """
    if call.has_own_key or not is_unique(call.id) or turn.session is None or turn.id is None:
        return ""
    call = msgspec.structs.replace(call, has_own_key=True)
    return key_of(call, turn, settings, user_of(turn))

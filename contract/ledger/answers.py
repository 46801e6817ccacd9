"""What the ledger answers to a dispatcher about one call, decoded once."""

from collections.abc import Sequence
from enum import Enum

import msgspec

from toolpool.contract.ledger import protocols

_DIGITS = 9


class CallState(Enum):
    """The state of a call's record, or what a step did to it. The values are on the wire."""

    NEW = protocols.NEW
    ATTACHED = protocols.ATTACHED
    MISSING = protocols.MISSING
    SENT = protocols.SENT
    MOVED = protocols.MOVED
    RAN = protocols.RAN
    UNCLAIMED = protocols.UNCLAIMED
    WAITING = protocols.WAITING
    APPROVED = protocols.APPROVED
    LAPSED = protocols.LAPSED
    OTHERS = protocols.OTHERS
    RUNNING = b"running"  # and on which worker
    AGAIN = b"again"  # and in which later attempt
    SETTLED = b"settled"  # the ledger never answers with this word, but with the signed outcome


class LedgerAnswer(msgspec.Struct, frozen=True, gc=False):
    """`worker` is set if it is RUNNING, `attempt` if AGAIN, `outcome` (signed) if SETTLED."""

    state: CallState
    worker: str = ""
    attempt: int = 0
    outcome: bytes = b""


_WITH_MORE = (CallState.RUNNING, CallState.AGAIN, CallState.SETTLED)
_ONE_WORD = {s.value: LedgerAnswer(s) for s in CallState if s not in _WITH_MORE}
"""Shared instances of the most common answers."""


def decode_answers(raw: Sequence[bytes]) -> list[LedgerAnswer]:
    """Decode the answers of one step, in order."""
    return [_ONE_WORD.get(each) or _decode(each) for each in raw]


def _decode(raw: bytes) -> LedgerAnswer:
    state, _, rest = raw.partition(b" ")
    if state == CallState.RUNNING.value:
        return LedgerAnswer(CallState.RUNNING, worker=rest.decode(errors="replace"))
    if state == CallState.AGAIN.value and rest.isdigit() and len(rest) <= _DIGITS:
        return LedgerAnswer(CallState.AGAIN, attempt=int(rest))
    return LedgerAnswer(CallState.SETTLED, outcome=raw)

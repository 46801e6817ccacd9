"""Reading one tool-call block, the same for every provider."""

import hashlib
from dataclasses import dataclass
from typing import Any, TypeGuard

from toolpool.contract.call import Flaw, ToolCall
from toolpool.contract.encoding import printable
from toolpool.contract.outcome import Code
from toolpool.dispatcher.formats import arguments, text_repair
from toolpool.dispatcher.words import feedback
from toolpool.dispatcher.words.wording import PLAIN, Wording

LONGEST_NAME = 256


class NotAResponse(Exception):
    """Raised when a response holds no content list at all.

    `reason` names the sentence in a locale's `unreadable`, with what fills its blanks.
    """

    def __init__(self, reason: str, **blanks: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.blanks = blanks


@dataclass(frozen=True, slots=True)
class Reader:
    """Makes calls of blocks. `turn` names calls that came without an id: stable, never random.

    `doubled_keys` says that some object in the response had a key twice. `wording` has the language
    of the notes on what was assumed.
    """

    turn: str
    max_bytes: int
    doubled_keys: bool = False
    wording: Wording = PLAIN

    def call(
        self,
        index: int,
        *,
        id: Any,
        name: Any,
        raw: Any,
        cut_off: bool = False,
        flaw: Flaw | None = None,
        id_is_optional: bool = False,
    ) -> ToolCall:
        """The call in a block, or the flaw that keeps it from being one."""
        note = long_id = None
        given = isinstance(id, str) and bool(id)
        if not given:
            missing = id is None
            id = f"{self.turn}-{index}"
            if not (missing and id_is_optional):
                note = feedback.made_up_id(id, self.wording)
        elif not is_usable(id):
            id, long_id = stand_in(id), id
        if flaw is None and (not isinstance(name, str) or not name):
            flaw = Flaw(Code.UNPARSEABLE, "no_name")
        if not isinstance(name, str):
            name = ""
        values = None
        if flaw is None and self.doubled_keys and (key := arguments.doubled_key(raw)) is not None:
            flaw = arguments.doubled(key)
        if flaw is None:
            parsed = arguments.parse(raw, max_bytes=self.max_bytes)
            if isinstance(parsed, Flaw):
                flaw = parsed
                if isinstance(raw, str) and flaw.code is Code.UNPARSEABLE and not cut_off:
                    values, flaw, note = self._repaired(raw, flaw, note)
            else:
                values = parsed
        whole_text = isinstance(raw, str) and values is not None
        if cut_off and not whole_text:
            flaw = Flaw(Code.TRUNCATED, "cut_off")
            values = None
        return ToolCall(
            index=index,
            id=id,
            name=printable(name[:LONGEST_NAME]),
            arguments=values,
            flaw=flaw,
            note=note,
            id_given=given,
            long_id=long_id,
        )

    def _repaired(
        self, raw: str, flaw: Flaw, note: str | None
    ) -> tuple[dict[str, Any] | None, Flaw | None, str | None]:
        """What the text certainly means all the same: its values and a note, or its flaw."""
        repaired = text_repair.repaired(raw)
        if repaired is None:
            return None, flaw, note
        values = arguments.accept(repaired[0], self.max_bytes)
        if isinstance(values, Flaw):
            return None, values, note
        told = feedback.text_repaired(repaired[1], self.wording)
        return values, None, f"{note} {told}" if note else told

    def unreadable(self, index: int, *, id: Any = None, name: Any = None) -> ToolCall:
        """The call in a block that is not of the provider's form."""
        return self.call(
            index,
            id=id,
            name=name if isinstance(name, str) else "",
            raw=None,
            flaw=Flaw(Code.UNPARSEABLE, "no_form"),
        )


def is_usable(id: Any) -> TypeGuard[str]:
    """Whether an id can go on the wire as it is."""
    return isinstance(id, str) and 0 < len(id) <= LONGEST_NAME and printable(id) == id


def stand_in(id: str) -> str:
    """What goes on the wire for an id that is not usable; the same for the same id."""
    return f"id-{hashlib.blake2b(id.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"

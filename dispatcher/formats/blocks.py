"""Reading one tool-call block, the same for every provider (R14–R17)."""

from dataclasses import dataclass
from typing import Any

from contract.call import Flaw, ToolCall
from contract.outcome import Code
from dispatcher import arguments, mending

_LONGEST_ID = 256


class NotAResponse(Exception):
    """Raised when a response holds no content list at all (R14)."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Makes calls of blocks. `turn` names calls that came without an id: stable, never random.

    `doubled_keys` says that some object in the response had a key twice.
    """

    turn: str
    max_bytes: int
    doubled_keys: bool = False

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
        note = None
        given = _usable(id)
        if not given:
            missing = id is None
            id = f"{self.turn}-{index}"
            if not (missing and id_is_optional):
                note = f"The call had no usable id and was given the id {id!r}."
        if flaw is None and (not isinstance(name, str) or not name):
            flaw = Flaw(Code.UNPARSEABLE, "the tool call has no name")
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
                    values, flaw, note = self._mended(raw, flaw, note)
            else:
                values = parsed
        whole_text = isinstance(raw, str) and values is not None
        if cut_off and not whole_text:
            flaw = Flaw(Code.TRUNCATED, "the tool call was cut off by the output token limit")
            values = None
        return ToolCall(
            index=index,
            id=id,
            name=_clean(name),
            arguments=values,
            flaw=flaw,
            note=note,
            id_given=given,
        )

    def _mended(
        self, raw: str, flaw: Flaw, note: str | None
    ) -> tuple[dict[str, Any] | None, Flaw | None, str | None]:
        """What the text certainly means all the same: its values and a note, or its flaw."""
        mended = mending.mend(raw)
        if mended is None:
            return None, flaw, note
        values = arguments.accept(mended[0], self.max_bytes)
        if isinstance(values, Flaw):
            return None, values, note
        told = f"The arguments were not strict JSON ({', '.join(mended[1])}) and were mended."
        return values, None, f"{note} {told}" if note else told

    def unreadable(self, index: int, *, id: Any = None, name: Any = None) -> ToolCall:
        """The call in a block that is not of the provider's form."""
        return self.call(
            index,
            id=id,
            name=name if isinstance(name, str) else "",
            raw=None,
            flaw=Flaw(Code.UNPARSEABLE, "the tool call block is not of the expected form"),
        )


def _usable(id: Any) -> bool:
    """Whether an id can go on the wire and back to the provider as it is."""
    return isinstance(id, str) and 0 < len(id) <= _LONGEST_ID and _clean(id) == id


def _clean(name: str) -> str:
    return name.encode("utf-8", "replace").decode()[:_LONGEST_ID]

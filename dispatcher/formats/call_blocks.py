"""Reads one tool-call block, in the same way for every provider."""

from typing import Any

import msgspec

from toolpool.contract.call import Flaw, ToolCall
from toolpool.contract.encoding import printable
from toolpool.contract.outcome import Code
from toolpool.dispatcher.formats import arguments, call_ids, text_repair
from toolpool.dispatcher.formats.stop_reasons import WHOLE, Ending, Handling
from toolpool.dispatcher.messages import texts
from toolpool.dispatcher.messages.wording import PLAIN, Wording


class NotAResponse(Exception):
    """Raised for a response whose calls cannot be read.

    `reason` is the key of the sentence in a locale's `unreadable`, with the values of its
    placeholders.
    """

    def __init__(self, reason: str, **blanks: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.blanks = blanks


NO_APPROVER = Flaw(Code.DENIED, "no_approver")
"""The flaw of a provider's request for permission that no one here can grant."""


class Reader(msgspec.Struct, frozen=True):
    """Makes calls from blocks. `turn` names calls that came without an id: stable, never random.

    `doubled_keys`: an object in the response has a duplicate key. The notes on assumptions are in
    the language of `wording`. `ending` is how the response ended.
    """

    turn: str
    max_bytes: int
    doubled_keys: bool = False
    wording: Wording = PLAIN
    ending: Ending = WHOLE

    def call(
        self,
        index: int,
        *,
        id: Any,
        name: Any,
        raw: Any,
        namespace: Any = None,
        is_text: bool = False,
        is_last: bool = False,
        is_partial: bool = False,
        flaw: Flaw | None = None,
        asks: bool = False,
        id_is_optional: bool = False,
        **kept: Any,
    ) -> ToolCall:
        """The call in a block, or the flaw that makes it unusable.

        A `namespace` is part of the name, unless the API derived it from the name of a function.
        `is_text`: `raw` is free text instead of arguments. `is_last`: the block ends the response,
        so a limit may have cut it off; `is_partial`: the provider says that it is incomplete.
        `asks`: the provider runs it and only asks for permission. `kept` are `origin`,
        `has_own_key` and `mark` of the `ToolCall`.
        """
        note = long_id = text = values = None
        verdict = self.ending.verdict
        if flaw is None and (is_partial or verdict is not Handling.RUN):
            flaw = self._ended(is_partial=is_partial)
        given = isinstance(id, str) and bool(id)
        if not given:
            is_usual, id = id is None and id_is_optional, call_ids.made_up(self.turn, index)
            note = None if is_usual else texts.made_up_id(id, self.wording)
        elif not call_ids.is_usable(id):
            id, long_id = call_ids.substitute(id), id
        if flaw is None and (not isinstance(name, str) or not name):
            flaw = Flaw(Code.UNPARSEABLE, "no_name")
        if not isinstance(name, str):
            name = ""
        elif isinstance(namespace, str) and namespace and (asks or namespace != name):
            name = f"{namespace}.{name}"
        if flaw is None:
            cut_off = is_last and verdict is Handling.CUT_OFF
            if is_text:
                text, flaw = self._text(raw, cut_off=cut_off)
            else:
                parsed = (
                    arguments.accept(raw, self.max_bytes)
                    if raw.__class__ is dict
                    else arguments.parse(raw, self.max_bytes)
                )
                if isinstance(parsed, Flaw) and asks:
                    flaw = parsed  # the provider runs the text that it has, not a repaired one
                elif isinstance(parsed, Flaw) or cut_off or self.doubled_keys:
                    values, flaw, note = self._judged(raw, parsed, note, cut_off=cut_off)
                else:
                    values = parsed
        if asks and flaw is None:
            flaw = NO_APPROVER
        return ToolCall(
            index=index,
            id=id,
            name=printable(name[: call_ids.LONGEST]),
            arguments=values,
            flaw=flaw,
            note=note,
            id_given=given,
            long_id=long_id,
            text=text,
            **kept,
        )

    def _judged(
        self, raw: Any, parsed: dict[str, Any] | Flaw, note: str | None, *, cut_off: bool
    ) -> tuple[dict[str, Any] | None, Flaw | None, str | None]:
        """The arguments, or their flaw, and the note on assumptions.

        If a call may be cut off, only arguments that were sent as text can prove that it is
        complete.
        """
        if self.doubled_keys and (key := arguments.doubled_key(raw)) is not None:
            return None, arguments.doubled(key), note
        is_flawed = isinstance(parsed, Flaw)
        if cut_off and (is_flawed or not isinstance(raw, str) or not raw.strip()):
            return None, Flaw(Code.TRUNCATED, "cut_off"), note
        if not isinstance(parsed, Flaw):
            return parsed, None, note
        if isinstance(raw, str) and parsed.code is Code.UNPARSEABLE:
            return self._repaired(raw, parsed, note)
        return None, parsed, note

    def _text(self, raw: Any, *, cut_off: bool) -> tuple[str | None, Flaw | None]:
        """The input of a call with free text, which cannot prove that it is complete."""
        if cut_off:
            return None, Flaw(Code.TRUNCATED, "cut_off")
        if not isinstance(raw, str):
            return None, Flaw(Code.UNPARSEABLE, "no_form")
        accepted = arguments.accept({"input": raw}, self.max_bytes)
        return (None, accepted) if isinstance(accepted, Flaw) else (raw, None)

    def _ended(self, *, is_partial: bool) -> Flaw | None:
        """The flaw of a call that must not run because of the response's end, or its own state."""
        verdict = self.ending.verdict
        if is_partial or verdict is Handling.BROKEN_OFF:
            return Flaw(Code.TRUNCATED, "broken_off")
        if verdict is Handling.REFUSE:
            return Flaw(Code.DENIED, "stopped", {"stop": self.ending.stop or ""})
        if verdict is Handling.MALFORMED:
            return Flaw(Code.UNPARSEABLE, "malformed_call", {"why": self.ending.why})
        return None

    def _repaired(
        self, raw: str, flaw: Flaw, note: str | None
    ) -> tuple[dict[str, Any] | None, Flaw | None, str | None]:
        """The certain meaning of flawed text, as values and a note, or its flaw."""
        repaired = text_repair.repaired(raw)
        if repaired is None:
            if flaw.reason == "not_json.unclosed" and self.ending.stop is None:
                flaw = Flaw(Code.TRUNCATED, "broken_off")  # text that ends inside a string
            return None, flaw, note
        values = arguments.accept(repaired[0], self.max_bytes)
        if isinstance(values, Flaw):
            return None, values, note
        told = texts.text_repaired(repaired[1], self.wording)
        return values, None, f"{note} {told}" if note else told

    def unreadable(self, index: int, *, id: Any = None) -> ToolCall:
        """The call in a block that is not of the provider's form."""
        return self.call(
            index,
            id=id,
            name="",
            raw=None,
            flaw=Flaw(Code.UNPARSEABLE, "no_form"),
        )


def last_block(content: list[Any]) -> int:
    """The index of the last block with content: some providers end with an empty text."""
    for position in range(len(content) - 1, -1, -1):
        block = content[position]
        if not (isinstance(block, dict) and block.get("text") == ""):
            return position
    return -1


def another_choice(number: int) -> tuple[Flaw, dict[str, Any]]:
    """The flaw and origin of a call in a choice beyond the first.

    Choices are alternatives: only one of them continues the conversation. The origin distinguishes
    its answer from those of the first choice.
    """
    return Flaw(Code.DENIED, "another_choice"), {"choice": number}

"""Resumes conversations after their host died, with notes of the turns that were dispatched.

A call is looked up by its turn, usually the response's id, which is not in the history that a host
keeps. So the turn is stored in a note under data that the history has: the session and the calls.
`turn_matching` assigns notes to responses. A missing note only costs certainty: its calls are
treated as ones that may have run.
"""

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from toolpool.contract import encoding, logs
from toolpool.contract.call import ToolCall
from toolpool.contract.errors import CommandRejected, ServerUnavailable
from toolpool.contract.ledger.lua_scripts import new_nonce
from toolpool.contract.outcome import Code, Outcome
from toolpool.contract.settings import Settings
from toolpool.dispatcher.formats import FORMATS, Response, history_format, named, response_reader
from toolpool.dispatcher.formats.call_ids import is_unique
from toolpool.dispatcher.formats.history import Edit, History, PastResponse, PlacedAnswer
from toolpool.dispatcher.formats.history_answers import matched
from toolpool.dispatcher.formats.sdk_objects import sendable
from toolpool.dispatcher.formats.stop_reasons import Handling, ending
from toolpool.dispatcher.ordered_turns import OrderedTurns, Turn
from toolpool.dispatcher.outcomes import not_queued
from toolpool.dispatcher.transports.base import NoteBatch, Transport, TurnNote
from toolpool.dispatcher.turn_matching import Notes, ResponseName
from toolpool.dispatcher.turn_options import TurnOptions
from toolpool.dispatcher.turn_pipeline import TurnPipeline
from toolpool.dispatcher.turn_result import TurnResult

log = logs.logger("resume")

_NOTES_AT_MOST = 10_000
_REMEMBERED_AT_MOST = 1024
"""How many written notes are remembered, as many as outcomes: for a server that loses its data."""
_LOOK_UP_SECONDS = 5.0
_ONE_LOOK_SECONDS = 1.0
_CLOSE_SECONDS = 1.0
_WRITE_AGAIN_SECONDS = 0.2
"""Shorter than the retry delay of calls, which also had to wait for the server."""
_JOINED_AT_MOST = 16
_NAME_LENGTH = 20
"""The length of a digest in the notes: every character is stored for every response."""


@dataclass(slots=True)
class _Part:
    """One response in a history, with the answers that its calls have there."""

    past: PastResponse
    calls: Sequence[ToolCall]
    found: Sequence[PlacedAnswer | None] = ()
    first_open: int = 0
    """The index of its first call without an answer, counted over the whole history."""

    def open(self, calls: Sequence[ToolCall]) -> list[ToolCall]:
        """The calls that have no answer."""
        return [call for call, placed in zip(calls, self.found, strict=True) if placed is None]

    @property
    def is_open(self) -> bool:
        return None in self.found

    @property
    def is_astray(self) -> bool:
        return any(placed is not None and self.past.is_astray(placed) for placed in self.found)


_Turn = list[_Part]
"""One response as it was dispatched.

In the history it is one part, or several parts with answers between them.
"""


class Resume:
    """Stores notes of turns in batches, and completes histories."""

    def __init__(
        self,
        transport: Transport,
        settings: Settings,
        pipeline: TurnPipeline,
        turns: OrderedTurns,
        in_background: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
    ) -> None:
        self._transport = transport
        self._settings = settings
        self._pipeline = pipeline
        self._turns = turns
        self._in_background = in_background
        self._notes: list[TurnNote] = []
        self._writing: list[TurnNote] = []
        self._holes: set[str] = set()
        """Sessions for which a note was dropped."""
        self._written: deque[NoteBatch] = deque()
        """The last batches, `_REMEMBERED_AT_MOST` notes or a few more."""
        self._remembered = 0
        self._lost: list[NoteBatch] = []
        """Batches to be written again."""
        self._sending: asyncio.Task[None] | None = None
        self.is_behind = False
        """Whether a write failed and its notes wait for the next write."""
        self._caught_up = asyncio.Event()

    def note(self, response: Any, found: Response, options: TurnOptions) -> TurnNote | None:
        """Store a note of a response's turn, without delaying the calls.

        Returns the argument for `mark_answered`; None if it need not be called.
        """
        history = FORMATS[found.format].HISTORY
        if options.session is None or options.id is None or history is None:
            return None
        if not self._settings.turn_ttl:
            return None
        calls = found.calls
        # in the form of a history, which does not say why a response ended
        if found.stop is not None:
            try:
                whole = self._pipeline.read(response, format=found.format, turn=options.id, stop="")
            except response_reader.UnreadableResponse:
                return None  # no calls
            calls = whole.calls
        if not calls:
            return None
        name, are_distinct = _name(calls, history)
        note = TurnNote(options.session_key[:_NAME_LENGTH], options.id, name, found.stop or "")
        self._remember(note)
        return None if are_distinct else note

    def mark_answered(self, note: TurnNote) -> None:
        """Store a note that the host has the answers of a turn.

        Equal calls then cannot belong to it.
        """
        self._remember(TurnNote(note.session, note.turn, is_answered=True))

    def _remember(self, note: TurnNote) -> None:
        if len(self._writing) + len(self._notes) < _NOTES_AT_MOST:
            self._notes.append(note)
        elif len(self._holes) < _NOTES_AT_MOST:
            self._holes.add(note.session)
        else:
            log.warning("turns_not_noted: too many wait for the server")
        if self._sending is None:
            self._sending = self._in_background(self._send())

    async def _send(self) -> None:
        """Write notes; notes that arrive during one write are written with the next."""
        try:
            while self._lost or self._notes or self._holes:
                await self._write(self._transport.server_time())
                self.is_behind = False
                self._caught_up.set()
        finally:
            self._sending = None

    def write_again(self) -> None:
        """Write the last notes again, since the server may have lost them."""
        oldest = self._transport.server_time() - self._settings.turn_ttl
        self._lost += (batch for batch in self._written if batch.at > oldest)
        self._written.clear()
        self._remembered = 0
        if self._lost and self._sending is None:
            self._sending = self._in_background(self._send())

    async def _write(self, at: float) -> None:
        """Write all notes until the server confirms them.

        The same `at` makes repeated writes idempotent.
        """
        epoch = self._transport.epoch
        while True:
            self._writing += self._notes
            self._writing += (TurnNote(session, "") for session in self._holes)
            self._notes, self._holes = [], set()
            batches = [*self._lost, *([NoteBatch(at, self._writing)] if self._writing else [])]
            try:
                await self._transport.note_turns(batches)
                return self._confirmed(batches, is_sure=epoch == self._transport.epoch)
            except CommandRejected as error:
                log.warning("turns_not_noted: %s", error)
                return self._confirmed(batches, is_sure=True)
            except ServerUnavailable as error:
                if not self.is_behind:
                    log.warning("turns_not_noted_yet: %s", error)
                self.is_behind = True
                self._caught_up.clear()
                await asyncio.sleep(_WRITE_AGAIN_SECONDS)

    def _confirmed(self, batches: Sequence[NoteBatch], *, is_sure: bool) -> None:
        """Remember what was written; if the epoch has changed meanwhile, write it once more."""
        self._writing = []
        written = {id(batch) for batch in batches}
        self._lost = [batch for batch in self._lost if id(batch) not in written]
        self._lost += () if is_sure else batches
        for batch in batches if is_sure else ():
            self._written.append(batch)
            self._remembered += len(batch.notes)
        while self._remembered > _REMEMBERED_AT_MOST and len(self._written) > 1:
            self._remembered -= len(self._written.popleft().notes)

    async def catch_up(self, session_key: str) -> None:
        """Wait briefly until a session's notes are written, before its next calls are sent."""
        if self._unwritten(session_key[:_NAME_LENGTH]):
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_UP_SECONDS):
                    await self._caught_up.wait()

    async def close(self) -> None:
        """Write the remaining notes, without waiting for a server that is unreachable."""
        if not self.is_behind:
            await self._flush(_CLOSE_SECONDS)

    async def _flush(self, seconds: float) -> None:
        if self._sending is not None:
            await asyncio.wait({self._sending}, timeout=seconds)

    def _unwritten(self, session: str) -> list[TurnNote]:
        return [note for note in self._writing + self._notes if note.session == session]

    def _being_restored(self, session: str) -> list[TurnNote]:
        notes = (note for batch in self._lost for note in batch.notes)
        return [note for note in notes if note.session == session]

    async def resume(
        self,
        messages: Sequence[Any],
        options: TurnOptions,
        format: str | None,
    ) -> list[Any]:
        """The history with every call answered. Raises ValueError if it cannot be read."""
        if isinstance(messages, (str, bytes, dict)) or not isinstance(messages, Sequence):
            raise ValueError(f"messages must be a list, not {type(messages).__name__}")
        if options.session is None:
            raise ValueError("resume needs the session that the calls were dispatched in")
        plain = [_plain(message) for message in messages]
        name = history_format(plain) if format is None else named(format)
        if name is None:
            return list(messages)  # no calls
        history = FORMATS[name].HISTORY
        if history is None:
            raise ValueError(
                f"resume does not read histories of {name}: its provider keeps them, or has none; "
                "dispatch the last response again instead"
            )
        parts = self._read(history, plain, name)
        if not any(part.is_open or part.is_astray for part in parts):
            return list(messages)
        edit = Edit(messages, plain)
        missing: list[ToolCall] = []
        for part in parts:
            part.first_open = len(missing)
            missing += part.open(part.calls)
        waiting = Turn(
            [msgspec.structs.replace(c, index=i) for i, c in enumerate(missing)], options
        )
        self._turns.running.add(waiting)  # responses are completed one after the other
        try:
            await self._complete_all(edit, history, name, parts, plain, waiting)
        finally:
            self._turns.running.discard(waiting)
        return edit.done()

    async def _complete_all(
        self,
        edit: Edit,
        history: History,
        name: str,
        parts: Sequence[_Part],
        plain: Sequence[Any],
        waiting: Turn,
    ) -> None:
        options = waiting.options
        name_of_session = options.session_key[:_NAME_LENGTH]
        is_open = any(part.is_open for part in parts)
        noted = await self._noted(name_of_session, waiting) if is_open else []
        notes = Notes(noted or [])
        # Without its turn, a call would be run under another key than before.
        refusal = not_queued(Code.QUEUE_UNREACHABLE) if noted is None else None
        turns = _joined(parts, history, notes)
        said = [_response_name(turn, history) for turn in turns]
        known = notes.of(said)
        unknown = _unknown(turns, said, known, plain)
        for turn, each, note in zip(turns, said, known, strict=True):
            if each.is_open:
                id = note.turn if note is not None else unknown[turn[0].past.at]
                stop = note.stop if note is not None else notes.stop_of_equals(each, said)
                context = msgspec.structs.replace(options, id=id, again=True, provider=name)
                await self._complete(edit, history, turn, name, stop, context, waiting, refusal)
                if note is not None and not each.is_distinct:
                    self.mark_answered(note)
            elif any(part.is_astray for part in turn):
                for part in turn:
                    history.place(edit, part.past, part.found, [])

    def _read(self, history: History, messages: Sequence[Any], format: str) -> list[_Part]:
        """The responses in a history that have calls, and which of these have an answer.

        The stop reason is left out, as in the notes: few histories have it.
        """
        parts: list[_Part] = []
        for past in history.past_responses(messages):
            try:
                calls = self._pipeline.read(past.response, format=format, stop="").calls
            except response_reader.UnreadableResponse:
                continue
            if calls:
                parts.append(_Part(past, calls))
        responses = [(part.past, part.calls) for part in parts]
        found = matched(responses, history.placed_answers(messages), has_ids=history.has_ids)
        for part, answers in zip(parts, found, strict=True):
            part.found = answers
        return parts

    async def _noted(self, name: str, waiting: Turn) -> list[TurnNote] | None:
        """The notes of a session; None if the server does not answer within a call's queue wait."""
        give_up_at = time.monotonic() + self._settings.queue_timeout
        await self._flush(_LOOK_UP_SECONDS)  # its own notes first
        error: Exception = TimeoutError()
        while not waiting.is_cancelled and time.monotonic() < give_up_at:
            try:
                async with asyncio.timeout(_ONE_LOOK_SECONDS):
                    lost = self._being_restored(name)
                    return [*lost, *await self._transport.turns(name), *self._unwritten(name)]
            except (ServerUnavailable, TimeoutError) as raised:
                error = raised
                await asyncio.sleep(_WRITE_AGAIN_SECONDS)
            except CommandRejected as raised:
                error = raised
                break
        log.warning("turns_not_looked_up: %s", str(error) or "the server does not answer")
        return None

    async def _complete(
        self,
        edit: Edit,
        history: History,
        turn: _Turn,
        format: str,
        stop: str | None,
        options: TurnOptions,
        waiting: Turn,
        refusal: Outcome | None,
    ) -> None:
        """Answer the calls of one turn that have no answer; `refusal`: why none may be sent."""
        calls = self._dispatched(turn, format, options.id, stop)
        if [len(each) for each in calls] != [len(part.calls) for part in turn]:
            return  # it goes on in a later response, and is not answered
        missing: list[ToolCall] = []
        cancelled: list[int] = []
        answered_indexes = (
            call.index
            for each, part in zip(calls, turn, strict=True)
            for call, placed in zip(each, part.found, strict=True)
            if placed is not None
        )
        first_answered = next(answered_indexes, None)  # they are in order
        for each, part in zip(calls, turn, strict=True):
            for number, call in enumerate(part.open(each), part.first_open):
                missing.append(call)
                waiting.passed.add(number)
                if number in waiting.cancelled:
                    cancelled.append(call.index)
        found = Response(format=format, calls=tuple(missing))
        now = time.monotonic()
        results = iter(
            await self._pipeline.run(
                found,
                options,
                now,
                cancelled=cancelled,
                refusal=refusal,
                first_answered=first_answered,
            )
        )
        for each, part in zip(calls, turn, strict=True):
            answered = [next(results) for _ in part.open(each)]
            _name_calls(edit, part, each, format)
            if answered or part.is_astray:
                answers = TurnResult(answered, format=format).messages()
                history.place(edit, part.past, part.found, answers)

    def _dispatched(
        self, turn: _Turn, format: str, id: str | None, stop: str | None
    ) -> list[Sequence[ToolCall]]:
        """The calls as they were dispatched: the turn names those without an id, the stop reason
        refuses some. A limit can have cut off only the last part. Without a stop reason, the
        history's own evidence of the end counts.
        """
        is_cut = ending(format, stop).verdict is Handling.CUT_OFF
        calls: list[Sequence[ToolCall]] = []
        first = 0
        for part in turn:
            its_stop = "" if is_cut and part is not turn[-1] else stop
            named = {"format": format, "turn": id, "stop": its_stop}
            read = self._pipeline.read(part.past.response, **named).calls
            calls.append(
                [msgspec.structs.replace(call, index=first + call.index) for call in read]
                if first
                else read
            )
            first += len(read)
        return calls


def _name(calls: Iterable[ToolCall], history: History) -> tuple[str, bool]:
    """The name of a response's calls, made from what a history keeps.

    Also whether no other response has these calls: one unique call is enough.
    """
    said, are_distinct = [], False
    for call in calls:
        id = call.id if history.has_ids or call.id_given else None
        are_distinct = are_distinct or bool(call.mark) or is_unique(id)
        if call.origin is None or not call.origin.get("choice"):
            flaw = call.flaw and call.flaw.reason
            said.append([call.mark, id, call.name, call.arguments, call.text, flaw])
    try:
        return encoding.stored_digest(said)[:_NAME_LENGTH], are_distinct
    except (TypeError, ValueError, RecursionError):  # a host's own objects, which have no digest
        return new_nonce(), are_distinct


def _response_name(turn: _Turn, history: History) -> ResponseName:
    calls = [call for part in turn for call in part.calls]
    is_open = any(part.is_open for part in turn)
    return ResponseName(*_name(calls, history), is_open)


def _joined(parts: Sequence[_Part], history: History, notes: Notes) -> list[_Turn]:
    """The parts grouped by the turns that they were dispatched in.

    A host may have put answers between the calls of one response. Parts with nothing else between
    them are one turn if they were noted as one.
    """
    turns: list[_Turn] = []
    at = 0
    while at < len(parts):
        count = _length(parts, at, history, notes)
        turns.append(list(parts[at : at + count]))
        at += count
    return turns


def _length(parts: Sequence[_Part], at: int, history: History, notes: Notes) -> int:
    """How many parts, from this one on, were one response; at least 1."""
    most = 1
    while most < _JOINED_AT_MOST and at + most < len(parts) and parts[at + most].past.joins:
        most += 1
    for count in range(most, 1, -1):
        some = parts[at : at + count]
        calls = [call for part in some for call in part.calls]
        is_open = any(part.is_open for part in some)
        if is_open and _name(calls, history)[0] in notes:
            return count
    return 1


def _unknown(
    turns: Sequence[_Turn],
    said: Sequence[ResponseName],
    known: Sequence[TurnNote | None],
    messages: Sequence[Any],
) -> dict[tuple[int, ...], str]:
    """A turn for each response without a note, by its position.

    Nothing was dispatched under these turns, and every resume of the same history derives the same
    turns. Equal calls are distinguished by everything that precedes them.
    """
    names: dict[tuple[int, ...], str] = {}
    before, hashed = hashlib.blake2b(digest_size=16), 0
    for turn, each, note in zip(turns, said, known, strict=True):
        if note is not None or not each.is_open:
            continue
        at = turn[0].past.at
        if each.is_distinct:
            names[at] = f"resumed-{each.name}"
            continue
        try:
            for message in messages[hashed : at[-1] + 1]:
                before.update(encoding.canonical(message))
            names[at] = f"resumed-{before.hexdigest()}"
        except (TypeError, ValueError, RecursionError):
            names[at] = f"resumed-{new_nonce()}"
        hashed = at[-1] + 1
    return names


def _name_calls(edit: Edit, part: _Part, calls: Sequence[ToolCall], format: str) -> None:
    """Give calls without an id, or with a duplicate one, the id that their answers name."""
    history = FORMATS[format].HISTORY
    if history is None or not history.has_ids:
        return
    ids = {
        index: call.id
        for index, (call, placed) in enumerate(zip(calls, part.found, strict=True))
        if placed is None and not call.id_given and "function" not in (call.origin or {})
    }
    said = FORMATS[format].assistant_messages(part.past.response, ids) if ids else []
    for at, message in zip(part.past.at, said, strict=False):
        kept = edit.plain[at]
        edit.change(at, {**kept, **history.as_kept(message, kept)})


def _plain(message: Any) -> dict[str, Any]:
    """A message as data. A message of an unknown kind has no calls."""
    if isinstance(message, (str, bytes)):
        return {}
    try:
        plain = sendable(message)
    except RecursionError:  # nested deeper than any call is allowed to be
        return {}
    return plain if isinstance(plain, dict) else {}

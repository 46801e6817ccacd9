"""Conversations that go on after their host died: which turn a call was dispatched in is noted.

A call is asked for again by its turn, which is mostly the response's id, and the id is not in the
history that a host keeps. So the turn is noted by what the history has: the session and the calls.
Where a conversation has the same calls in several responses, they are told apart by their order;
where that does not fit, nothing is taken to be known of them. A note that is missing costs nothing
but certainty: its calls are asked for as ones that may have run.
"""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

from redis.exceptions import RedisError

from toolpool.contract import encoding, logs
from toolpool.contract.call import ToolCall
from toolpool.contract.settings import Settings
from toolpool.dispatcher.asking import Asking
from toolpool.dispatcher.formats import FORMATS, Response, history_format, intake, named
from toolpool.dispatcher.formats.history import History, Spoken
from toolpool.dispatcher.formats.sdk_objects import sendable
from toolpool.dispatcher.transports.base import Transport, TurnNote
from toolpool.dispatcher.turn import TurnResult
from toolpool.dispatcher.turn_context import TurnContext

log = logs.logger("histories")

_NOTES_AT_MOST = 10_000
_LOOK_UP_SECONDS = 5.0


class Histories:
    """Notes turns, many at once, and completes histories."""

    def __init__(
        self,
        transport: Transport,
        settings: Settings,
        asking: Asking,
        in_background: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
    ) -> None:
        self._transport = transport
        self._settings = settings
        self._asking = asking
        self._in_background = in_background
        self._notes: list[TurnNote] = []
        self._sending: asyncio.Task[None] | None = None

    def note(self, response: Any, found: Response, shared: TurnContext) -> None:
        """Remember the turn of a response's calls; no call waits for it."""
        history = FORMATS[found.format].HISTORY
        if shared.session is None or shared.id is None or history is None:
            return
        if not self._settings.turns_kept:
            return
        calls = found.calls
        if found.stop is not None:  # as the history has them, which does not say why it ended
            try:
                whole = self._asking.read(response, format=found.format, turn=shared.id, stop="")
            except intake.Unreadable:
                return  # there are none
            calls = whole.calls
        if not calls or (not history.has_ids and not _are_marked(calls)):
            return
        if len(self._notes) >= _NOTES_AT_MOST:
            log.warning("turns_not_noted: too many wait for the server")
            return
        name = self._name(calls, shared.session, history)
        self._notes.append(TurnNote(name, shared.id, found.stop or ""))
        if self._sending is None:
            self._sending = self._in_background(self._send())

    async def _send(self) -> None:
        """What gathers while one is under way leaves with the next."""
        try:
            while self._notes:
                notes, self._notes = self._notes, []
                await self._transport.note_turns(notes)
        except (RedisError, OSError, TimeoutError) as error:
            log.info("turns_not_noted: %s", error)
        finally:
            self._sending = None

    def _name(self, calls: Sequence[ToolCall], session: str, history: History) -> str:
        said = [
            [call.mark, call.id if history.has_ids or call.id_given else None, call.name,
             call.arguments, call.text, call.flaw and call.flaw.reason]
            for call in calls
            if not (call.origin or {}).get("choice")
        ]  # fmt: skip
        return encoding.digest([self._settings.tenant, session, said])

    async def resume(
        self,
        messages: Sequence[Any],
        shared: TurnContext,
        allowed: Collection[str] | None,
        format: str | None,
    ) -> list[Any]:
        """The history with every call answered. Raises ValueError for one that nobody can read."""
        if isinstance(messages, (str, bytes, dict)) or not isinstance(messages, Sequence):
            raise ValueError(f"messages must be a list, not {type(messages).__name__}")
        if shared.session is None:
            raise ValueError("resume needs the session that the calls were dispatched in")
        plain = [_plain(message) for message in messages]
        name = history_format(plain) if format is None else named(format)
        if name is None:
            return list(messages)  # nothing was called
        history = FORMATS[name].HISTORY
        if history is None:
            raise ValueError(f"a history of {name} is kept by the provider, or there is none")
        completed, before = list(messages), 0
        responses = self._read(history, plain, name, shared.session)
        if self._sending is not None:  # its own notes first
            await asyncio.wait({self._sending}, timeout=_LOOK_UP_SECONDS)
        turns = await self._turns([noted for _, _, noted in responses])
        for (spoken, found, _), note in zip(responses, turns, strict=True):
            spoken = dataclasses.replace(spoken, at=spoken.at + before)
            length = len(completed)
            await self._complete(completed, history, spoken, found, note, shared, allowed)
            before += len(completed) - length
        return completed

    def _read(
        self, history: History, messages: Sequence[Any], format: str, session: str
    ) -> list[tuple[Spoken, Response, str]]:
        """The responses in a history that have calls, each with the name its turn is noted by."""
        found: list[tuple[Spoken, Response, str]] = []
        for spoken in history.spoken(messages):
            try:
                response = self._asking.read(spoken.response, format=format)
            except intake.Unreadable:
                continue
            if response.calls:
                found.append((spoken, response, self._name(response.calls, session, history)))
        return found

    async def _turns(self, names: Sequence[str]) -> list[TurnNote]:
        """The turn of each response, by the order of those that are alike.

        One that is not known has a name of its own, under which nothing was dispatched.
        """
        often, seen = Counter(names), Counter[str]()
        known = {name: await self._noted(name) for name in often}
        turns: list[TurnNote] = []
        for name in names:
            noted, place = known[name], seen[name]
            seen[name] += 1
            fits = len(noted) <= often[name] and place < len(noted)
            unknown = TurnNote(name, f"resumed-{name}-{place}", "")
            turns.append(noted[place] if fits else unknown)
        return turns

    async def _noted(self, name: str) -> list[TurnNote]:
        try:
            async with asyncio.timeout(_LOOK_UP_SECONDS):
                return list(dict.fromkeys(await self._transport.turns(name)))
        except (RedisError, OSError, TimeoutError) as error:
            log.warning("turn_not_looked_up: %s", error)
            return []

    async def _complete(
        self,
        messages: list[Any],
        history: History,
        spoken: Spoken,
        found: Response,
        note: TurnNote,
        shared: TurnContext,
        allowed: Collection[str] | None,
    ) -> None:
        """Answer the calls of one response that have no answer."""
        if None not in spoken.matches(found.calls):
            return
        # Read as it was dispatched: the turn names calls without an id, the stop refuses some.
        options = {"format": found.format, "turn": note.turn, "stop": note.stop}
        found = self._asking.read(spoken.response, **options)
        matches = spoken.matches(found.calls)
        missing = [call for call, place in zip(found.calls, matches, strict=True) if place is None]
        if not missing:
            return
        found = dataclasses.replace(found, calls=tuple(missing))
        shared = dataclasses.replace(shared, id=note.turn, again=True)
        results = await self._asking.run(found, shared, allowed)
        answers = TurnResult(results, format=found.format).messages()
        history.placed(messages, spoken, matches, answers)


def _are_marked(calls: Sequence[ToolCall]) -> bool:
    """Whether calls without ids can be told from equal ones of other responses."""
    return all(call.id_given or call.mark for call in calls)


def _plain(message: Any) -> dict[str, Any]:
    """A message as data; what is none has no calls."""
    if isinstance(message, (str, bytes)):
        return {}
    plain = sendable(message)
    return plain if isinstance(plain, dict) else {}

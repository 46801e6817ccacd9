"""Conversations that go on after their host died: which turn a call was dispatched in is noted.

A call is asked for again by its turn, which is mostly the response's id, and the id is not in the
history that a host keeps. So the turn is noted by what the history has: the session and the calls.
A note that is missing costs nothing but certainty: its calls are asked for as ones that may have
run. A false one finds no other call, since the session and the call itself are in a call's key.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

from redis.exceptions import RedisError

from toolpool.contract import encoding
from toolpool.contract.call import ToolCall
from toolpool.contract.settings import Settings
from toolpool.dispatcher.asking import Asking
from toolpool.dispatcher.formats import FORMATS, Response, history_format, intake, named
from toolpool.dispatcher.formats.history import History, Spoken
from toolpool.dispatcher.transports.base import Transport
from toolpool.dispatcher.turn import TurnResult, plain_response
from toolpool.dispatcher.turn_context import TurnContext

log = logging.getLogger("toolpool.histories")

_NOTES_AT_MOST = 10_000
_LOOK_UP_SECONDS = 5.0


class Histories:
    """Notes turns, many at once, and completes histories."""

    def __init__(
        self,
        transport: Transport,
        settings: Settings,
        asking: Asking,
        in_background: Callable[[Coroutine[Any, Any, None]], Any],
    ) -> None:
        self._transport = transport
        self._settings = settings
        self._asking = asking
        self._in_background = in_background
        self._notes: dict[str, str] = {}
        self._is_noting = False

    def note(self, found: Response, shared: TurnContext) -> None:
        """Remember the turn of a response's calls; no call waits for it."""
        if shared.session is None or shared.id is None or not found.calls:
            return
        if len(self._notes) >= _NOTES_AT_MOST:
            return
        self._notes[self._name(found.calls, shared.session)] = shared.id
        if not self._is_noting:
            self._is_noting = True
            self._in_background(self._send())

    async def _send(self) -> None:
        """What gathers while one is under way leaves with the next."""
        try:
            while self._notes:
                notes, self._notes = self._notes, {}
                await self._transport.note_turns(notes)
        except (RedisError, OSError, TimeoutError) as error:
            log.info("turns_not_noted: %s", error)
        finally:
            self._is_noting = False

    def _name(self, calls: Sequence[ToolCall], session: str) -> str:
        said = [
            [call.provider_id if call.id_given else None, call.name, call.arguments, call.text]
            for call in calls
        ]
        return encoding.digest([self._settings.tenant, session, said])

    async def resume(
        self,
        messages: Sequence[Any],
        shared: TurnContext,
        allowed: Collection[str] | None,
        format: str | None,
    ) -> list[Any]:
        """The history with every call answered. Raises ValueError for one that nobody can read."""
        plain = [_plain(message) for message in messages]
        name = history_format(plain) if format is None else named(format)
        if name is None:
            return list(messages)  # nothing was called
        history = FORMATS[name].HISTORY
        if history is None:
            raise ValueError(f"a history of {name} is kept by the provider, or there is none")
        answered: list[tuple[Spoken, list[Any]]] = []
        for spoken in history.spoken(plain):
            told = await self._answered(spoken, name, shared, allowed)
            if told:
                answered.append((spoken, told))
        return _completed(list(messages), history, answered)

    async def _answered(
        self, spoken: Spoken, format: str, shared: TurnContext, allowed: Collection[str] | None
    ) -> list[Any]:
        """The answers to the calls of one response that have none."""
        try:
            found = self._asking.read(spoken.response, format=format)
        except intake.Unreadable:
            return []
        if not spoken.unanswered(found.calls) or shared.session is None:
            return []
        name = self._name(found.calls, shared.session)
        turn = await self._turn(name) or f"resumed-{name}"
        found = self._asking.read(spoken.response, format=format, turn=turn)  # it names calls
        missing = spoken.unanswered(found.calls)
        found = dataclasses.replace(found, calls=tuple(missing))
        shared = dataclasses.replace(shared, id=turn, again=True)
        results = await self._asking.run(found, shared, allowed)
        return TurnResult(results, format=format).messages()

    async def _turn(self, name: str) -> str | None:
        try:
            async with asyncio.timeout(_LOOK_UP_SECONDS):
                return await self._transport.turn(name)
        except (RedisError, OSError, TimeoutError) as error:
            log.warning("turn_not_looked_up: %s", error)
            return None


def _plain(message: Any) -> dict[str, Any]:
    """A message as data; what is none has no calls."""
    plain = plain_response(message)
    return plain if isinstance(plain, dict) else {}


def _completed(
    messages: list[Any], history: History, answered: list[tuple[Spoken, list[Any]]]
) -> list[Any]:
    for spoken, answers in reversed(answered):  # so that earlier positions stay
        history.placed(messages, spoken, answers)
    return messages

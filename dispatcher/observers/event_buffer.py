"""Keeps the events of one dispatcher in memory if they are not published."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable

from toolpool.contract.event_entries import BEGINNING, EventEntry, Position
from toolpool.dispatcher.events import Channel, Event, events_of, gap

_KEPT = 10_000


class EventBuffer:
    """Keeps the last events.

    `begin` is called for the first follower; before that, nothing is kept.
    """

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin: Callable[[], None] | None = begin
        self._start = int(time.time() * 1000)
        self._last = 0
        self._notes: deque[tuple[int, EventEntry]] = deque(maxlen=_KEPT)
        self._more = asyncio.Event()
        self._is_closed = False

    def add(self, note: EventEntry) -> None:
        """Add a note; if the buffer is full, the oldest is dropped."""
        self._last += note.events
        self._notes.append((self._last, note))
        self._more.set()

    async def close(self) -> None:
        """Let followers read what is buffered, and then end."""
        self._is_closed = True
        self._more.set()

    async def follow(
        self, since: Position | None, wanted: frozenset[Channel]
    ) -> AsyncGenerator[Event]:
        """Yield the buffered events after `since`, then new ones.

        If `since` is None, only new ones.
        """
        if self._begin is not None:
            begin, self._begin = self._begin, None
            begin()
        at = since if since is not None else Position(self._start, self._last)
        missed = self._unknown(at)
        if missed is not None:
            at = Position.parse(missed.bookmark)
            yield missed
        while True:
            for last, note in self._after(at):
                place = Position(self._start, last)
                if at.start == self._start and last - note.events > at.number:
                    missing = last - note.events - at.number
                    until = Position(self._start, last - note.events)
                    yield gap(at, until, note.at, "no longer kept", missing)
                for event in events_of(note, place, "", after=at):
                    if event.channel in wanted:
                        yield event
                at = place
            if self._last <= at.number or not self._notes:
                if self._is_closed:
                    return
                self._more.clear()
                await self._more.wait()

    def _unknown(self, at: Position) -> Event | None:
        """The gap for a position that is not in the buffer, which is then read from its start."""
        if at == BEGINNING or (at.start == self._start and at.number <= self._last):
            return None
        until = Position(self._start, self._last if at.start == self._start else 0)
        why = "this dispatcher does not have this bookmark"
        return gap(at, until, int(time.time() * 1000), why, None)

    def _after(self, at: Position) -> list[tuple[int, EventEntry]]:
        known = at.number if at.start == self._start else 0
        found: list[tuple[int, EventEntry]] = []
        for last, note in reversed(self._notes):
            if last <= known:
                break
            found.append((last, note))
        return found[::-1]

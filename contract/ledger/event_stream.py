"""The stream of events that all dispatchers publish to and everybody may follow.

Its events are numbered without a hole, so that whoever reads it sees what it has missed.
"""

import asyncio
import time
from collections import deque
from typing import NamedTuple, Protocol

import redis.asyncio

from toolpool.contract.event_entries import BEGINNING, Position
from toolpool.contract.ledger.lua_scripts import LuaScripts, Step, send, without_end
from toolpool.contract.redis_keys import RedisKeys

_READ_AT_MOST = 8
_BLOCK_SECONDS = 2.0
_SILENCE_SECONDS = 3.0
"""Longer than a blocking read lasts: then its connection is dead, though nobody closed it."""
_KEPT_SECONDS = 86_400
_DIGITS = 15


class Entry(NamedTuple):
    """What was published together: `last` is the place of the last of so many `events`."""

    last: Position
    events: int
    body: bytes


class EventLog(Protocol):
    """The stream. Methods may raise RedisError, OSError or TimeoutError."""

    async def add(self, body: bytes, *, count: int, known: Position) -> Position:
        """Append signed events; the place of the last of them.

        `known` is the last place that the publisher knows of: a stream that has not got as far has
        lost it, and begins anew.
        """
        ...

    async def last(self) -> Position | None:
        """The place of the newest event; None where nothing is kept."""
        ...

    async def read(self, after: Position, *, wait: bool = True) -> list[Entry]:
        """Some of the entries with events after a place; waits a little where there are none."""
        ...

    async def close(self) -> None:
        """Let go of every connection."""
        ...


class RedisEvents:
    """On a real server, over connections of its own: whoever follows takes none from the calls."""

    def __init__(
        self,
        writer: "redis.asyncio.Redis",
        reader: "redis.asyncio.Redis",
        names: RedisKeys,
        *,
        kept: int,
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._scripts = LuaScripts(writer)
        self._key = names.events
        self._kept = kept

    async def add(self, body: bytes, *, count: int, known: Position) -> Position:
        """See `EventLog.add`."""
        [id_] = await self._scripts.once(
            Step.EVENTS,
            [self._key],
            [body, count, self._kept, _KEPT_SECONDS * 1000, known.start, known.number],
        )
        return _position(id_)

    async def last(self) -> Position | None:
        """See `EventLog.last`."""
        found = await send(self._writer, ("XREVRANGE", self._key, "+", "-", "COUNT", 1))
        found = await without_end(self._writer, self._key, found)
        return _position(found[0][0]) if found else None

    async def read(self, after: Position, *, wait: bool = True) -> list[Entry]:
        """See `EventLog.read`."""
        block = ("BLOCK", round(_BLOCK_SECONDS * 1000)) if wait else ()
        command = ("XREAD", "COUNT", _READ_AT_MOST, *block, "STREAMS", self._key, after.bookmark)
        async with asyncio.timeout(_BLOCK_SECONDS + _SILENCE_SECONDS):
            found = await send(self._reader, command)
        entries = await without_end(self._writer, self._key, found[0][1] if found else [])
        return [_entry(id_, fields) for id_, fields in entries]

    async def close(self) -> None:
        """See `EventLog.close`."""
        await self._writer.aclose()
        await self._reader.aclose()


def _position(id_: bytes) -> Position:
    start, _, number = id_.partition(b"-")
    return Position(int(start), int(number))


def _entry(id_: bytes, fields: list[bytes]) -> Entry:
    """What another hand wrote is taken for one event, or as many as can be before its place."""
    found = dict(zip(fields[::2], fields[1::2], strict=False))
    last, count = _position(id_), found.get(b"n", b"1")
    events = int(count[:_DIGITS]) if count.isdigit() else 1
    return Entry(last, min(events, last.number), found.get(b"b", b""))


class MemoryEvents:
    """In this process, for all dispatchers of one server in memory."""

    def __init__(self) -> None:
        self.kept = 100_000
        self._entries: deque[Entry] = deque()
        self._more = asyncio.Event()

    async def add(self, body: bytes, *, count: int, known: Position) -> Position:
        """See `EventLog.add`."""
        newest = self._entries[-1].last if self._entries else BEGINNING
        if newest < known or not self._entries:
            newest = Position(max(int(time.time() * 1000), known.start + 1, newest.start + 1), 0)
        last = Position(newest.start, newest.number + count)
        self._entries.append(Entry(last, count, body))
        while self._entries[0].last < (last.start, last.number - self.kept):
            self._entries.popleft()
        self._more.set()
        return last

    async def last(self) -> Position | None:
        """See `EventLog.last`."""
        return self._entries[-1].last if self._entries else None

    async def read(self, after: Position, *, wait: bool = True) -> list[Entry]:
        """See `EventLog.read`."""
        if wait and (not self._entries or self._entries[-1].last <= after):
            self._more.clear()
            try:
                await asyncio.wait_for(self._more.wait(), _BLOCK_SECONDS)
            except TimeoutError:
                return []
        found: list[Entry] = []
        for entry in reversed(self._entries):  # whoever follows closely looks at few
            if entry.last <= after:
                break
            found.append(entry)
        return found[::-1][:_READ_AT_MOST]

    async def close(self) -> None:
        """Nothing to let go of."""

    def forget(self) -> None:
        """Lose them all, as a server does that lost its data."""
        self._entries.clear()

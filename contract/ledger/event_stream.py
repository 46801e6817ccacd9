"""The event stream that all dispatchers publish to.

Events are numbered without gaps, so that readers detect missed ones.
"""

import asyncio
import time
from collections import deque
from typing import NamedTuple, Protocol

import redis.asyncio

from toolpool.contract.event_entries import BEGINNING, Position
from toolpool.contract.ledger.lua_scripts import LuaScript, LuaScripts, send, without_end
from toolpool.contract.redis_keys import RedisKeys

_READ_AT_MOST = 8
_BLOCK_SECONDS = 2.0
_SILENCE_SECONDS = 3.0
"""Longer than a blocking read lasts: a read that takes longer means that the connection is dead."""
_KEPT_SECONDS = 86_400
_DIGITS = 15


class Entry(NamedTuple):
    """Events that were published together; `last` is the position of the last of them."""

    last: Position
    events: int
    body: bytes


class EventLog(Protocol):
    """The event stream. Methods may raise `ServerError` or TimeoutError."""

    async def add(self, body: bytes, *, count: int, known: Position) -> Position:
        """Append signed events; returns the position of the last one.

        `known` is the last position that the publisher knows. If the stream ends before it, the
        stream was lost and begins again.
        """
        ...

    async def last(self) -> Position | None:
        """The position of the newest event; None if the stream is empty."""
        ...

    async def read(self, after: Position, *, wait: bool = True) -> list[Entry]:
        """Entries with events after a position; waits briefly if there are none."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class RedisEvents:
    """The stream on Redis, on its own connections, so that followers do not delay calls."""

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
        """Append signed events; returns the position of the last one."""
        [id_] = await self._scripts.once(
            LuaScript.EVENTS,
            [self._key],
            [body, count, self._kept, _KEPT_SECONDS * 1000, known.start, known.number],
        )
        return _position(id_)

    async def last(self) -> Position | None:
        """The position of the newest event; None if the stream is empty."""
        found = await send(self._writer, ("XREVRANGE", self._key, "+", "-", "COUNT", 1))
        found = await without_end(self._writer, self._key, found)
        return _position(found[0][0]) if found else None

    async def read(self, after: Position, *, wait: bool = True) -> list[Entry]:
        """Entries with events after a position; waits briefly if there are none."""
        block = ("BLOCK", round(_BLOCK_SECONDS * 1000)) if wait else ()
        command = ("XREAD", "COUNT", _READ_AT_MOST, *block, "STREAMS", self._key, after.bookmark)
        async with asyncio.timeout(_BLOCK_SECONDS + _SILENCE_SECONDS):
            found = await send(self._reader, command)
        entries = await without_end(self._writer, self._key, found[0][1] if found else [])
        return [_entry(id_, fields) for id_, fields in entries]

    async def close(self) -> None:
        """Close all connections."""
        await self._writer.aclose()
        await self._reader.aclose()


def _position(id_: bytes) -> Position:
    start, _, number = id_.partition(b"-")
    return Position(int(start), int(number))


def _entry(id_: bytes, fields: list[bytes]) -> Entry:
    """Decode an entry. A foreign entry counts as one event, or as many as its position allows."""
    found = dict(zip(fields[::2], fields[1::2], strict=False))
    last, count = _position(id_), found.get(b"n", b"1")
    events = int(count[:_DIGITS]) if count.isdigit() else 1
    return Entry(last, min(events, last.number), found.get(b"b", b""))


class MemoryEvents:
    """The stream in memory, shared by the dispatchers of one in-memory server."""

    def __init__(self) -> None:
        self.kept = 100_000
        self._entries: deque[Entry] = deque()
        self._more = asyncio.Event()

    async def add(self, body: bytes, *, count: int, known: Position) -> Position:
        """Append events; returns the position of the last one."""
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
        """The position of the newest event; None if the stream is empty."""
        return self._entries[-1].last if self._entries else None

    async def read(self, after: Position, *, wait: bool = True) -> list[Entry]:
        """Entries with events after a position; waits briefly if there are none."""
        if wait and (not self._entries or self._entries[-1].last <= after):
            self._more.clear()
            try:
                await asyncio.wait_for(self._more.wait(), _BLOCK_SECONDS)
            except TimeoutError:
                return []
        found: list[Entry] = []
        for entry in reversed(self._entries):  # a follower that is up to date reads only a few
            if entry.last <= after:
                break
            found.append(entry)
        return found[::-1][:_READ_AT_MOST]

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    def forget(self) -> None:
        """Drop all events, like a server that has lost its data."""
        self._entries.clear()

"""The failed calls of each session, shared by the whole fleet to detect loops.

Sessions without failures cost nothing: every dispatcher follows one stream of the sessions with
failures, and queries the server for those only.
"""

import asyncio
import time
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import redis.asyncio

from toolpool.contract.errors import ServerError
from toolpool.contract.ledger.lua_scripts import LuaScript, LuaScripts, send, without_end
from toolpool.contract.redis_keys import RedisKeys

_REMEMBERED = 32
"""How many failed calls are kept per session: enough to detect a loop over several tools."""
_KEPT_SECONDS = 3600.0
_SESSIONS_AT_MOST = 100_000
_READ_AT_MOST = 1_000
_BLOCK_MS = 5_000
_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class FailureHistory:
    """How often a call has failed, and whether it alternates with another failing call."""

    failures: int
    alternates: bool


class FailureMemory(Protocol):
    """The memory of failures. `look` and `note` raise `ServerUnavailable` past `give_up_at`."""

    def suspects(self, session: str) -> bool:
        """Whether this session has failures, as far as known here; sends no request."""
        ...

    async def look(
        self, session: str, digests: Sequence[str], give_up_at: float
    ) -> list[FailureHistory]:
        """The failures of these calls."""
        ...

    async def note(
        self, session: str, ended: Sequence[tuple[str, bool]], give_up_at: float
    ) -> None:
        """Store the failed calls by digest, and remove those that succeeded."""
        ...

    async def follow(self) -> None:
        """Follow the sessions in which other dispatchers saw failures; never returns."""
        ...


class RedisFailures:
    """Failures on Redis: one list per session, and the stream of sessions."""

    def __init__(
        self,
        scripts: LuaScripts,
        reader: "redis.asyncio.Redis",
        names: RedisKeys,
    ) -> None:
        self._scripts = scripts
        self._reader = reader
        self._names = names
        self._touched: OrderedDict[str, float] = OrderedDict()
        self._last_read = b"0"

    def suspects(self, session: str) -> bool:
        """Whether this session has failures, as far as known here; sends no request."""
        until = self._touched.get(session)
        return until is not None and until > time.monotonic()

    async def look(
        self, session: str, digests: Sequence[str], give_up_at: float
    ) -> list[FailureHistory]:
        """The failures of these calls."""
        found = await self._run("look", session, digests, give_up_at)
        pairs = zip(found[::2], found[1::2], strict=True)
        return [FailureHistory(int(count), turns == b"1") for count, turns in pairs]

    async def note(
        self, session: str, ended: Sequence[tuple[str, bool]], give_up_at: float
    ) -> None:
        """Store the failed calls by digest, and remove those that succeeded."""
        self._touch(session)
        words = [word for digest, failed in ended for word in (digest, "1" if failed else "0")]
        await self._run("note", session, words, give_up_at)

    async def follow(self) -> None:
        """Follow the sessions in which other dispatchers saw failures; never returns."""
        command = ("XREAD", "COUNT", _READ_AT_MOST, "BLOCK", _BLOCK_MS, "STREAMS")
        while True:
            try:
                async with asyncio.timeout(2 * _BLOCK_MS / 1000):  # past it the connection is dead
                    found = await send(self._reader, (*command, self._names.loops, self._last_read))
                    read: list[Any] = found[0][1] if found else []
                    entries = await without_end(self._reader, self._names.loops, read)
            except (ServerError, TimeoutError):
                self._last_read = b"0"  # another server may have other ids
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            for key, fields in entries:
                self._last_read = key
                self._touch(fields[1].decode(errors="replace"))

    async def _run(
        self, what: str, session: str, words: Sequence[str], give_up_at: float
    ) -> list[Any]:
        keys = [self._names.loop(session), self._names.loops]
        kept_ms = round(_KEPT_SECONDS * 1000)
        arguments: list[str | bytes | int] = [what, kept_ms, _REMEMBERED, session, *words]
        return await self._scripts.run(LuaScript.LOOP, keys, arguments, give_up_at=give_up_at)

    def _touch(self, session: str) -> None:
        self._touched.pop(session, None)
        if len(self._touched) >= _SESSIONS_AT_MOST:
            self._touched.popitem(last=False)
        self._touched[session] = time.monotonic() + _KEPT_SECONDS


class MemoryFailures:
    """Failures in memory, shared by the dispatchers of one in-memory server."""

    def __init__(self) -> None:
        self._failed: defaultdict[str, list[str]] = defaultdict(list)
        self._until: dict[str, float] = {}

    def suspects(self, session: str) -> bool:
        """Whether this session has failures."""
        if self._until.get(session, 0.0) > time.monotonic():
            return True
        self._forget(session)
        return False

    async def look(
        self, session: str, digests: Sequence[str], give_up_at: float
    ) -> list[FailureHistory]:
        """The failures of these calls."""
        failed = self._failed[session]
        last = failed[-3:]
        return [
            FailureHistory(
                failed.count(digest),
                len(last) == 3 and last[0] == last[2] != digest and last[1] == digest,
            )
            for digest in digests
        ]

    async def note(
        self, session: str, ended: Sequence[tuple[str, bool]], give_up_at: float
    ) -> None:
        """Store the failed calls by digest, and remove those that succeeded."""
        failed = self._failed[session]
        for digest, has_failed in ended:
            if has_failed:
                failed.append(digest)
            else:
                failed[:] = [other for other in failed if other != digest]
            if has_failed:
                self._until[session] = time.monotonic() + _KEPT_SECONDS
        del failed[:-_REMEMBERED]
        if not failed:
            self._forget(session)
        elif len(self._failed) > _SESSIONS_AT_MOST:
            self._forget(next(iter(self._failed)))

    def _forget(self, session: str) -> None:
        self._failed.pop(session, None)
        self._until.pop(session, None)

    async def follow(self) -> None:
        """Wait forever: the failures of all dispatchers are already shared."""

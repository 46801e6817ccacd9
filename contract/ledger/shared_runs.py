"""Finds the run that equal calls share.

A note per digest names the run's record. The record holds its state, so a lost or invalid note
costs one additional run and nothing else.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from toolpool.contract.ledger.lua_scripts import LuaScript, LuaScripts
from toolpool.contract.ledger.memory_record import Record
from toolpool.contract.redis_keys import RedisKeys, retry_key

_NO_KEY = "-"
_DIGEST_CHARACTERS = 32


class SharedRunRequest(NamedTuple):
    """Equal calls that ask for their run. Times are seconds.

    `digest` identifies equal calls and is the prefix of the keys of their runs. `key` is the key of
    a new run, `unless` the key of a run that must not be joined. The run may last `timeout` and
    wait `wait` to be started; its outcome is valid for `cached`, which the caller checks. `anew`:
    ignore runs that began before.
    """

    digest: str
    key: str
    timeout: float
    wait: float
    cached: float
    unless: str = ""
    anew: bool = False

    @property
    def noted_for(self) -> float:
        """How long the note is of use, in seconds."""
        return self.wait + self.timeout + self.cached + 1.0


@dataclass(frozen=True, slots=True)
class SharedRunAnswer:
    """The run of equal calls or its last retry: new, in flight, or ended with `outcome`."""

    key: str
    is_new: bool = False
    outcome: bytes = b""


class SharedLedger(Protocol):
    """Finds shared runs for the whole fleet."""

    async def ask(self, asks: Sequence[SharedRunRequest]) -> list[SharedRunAnswer]:
        """The run for each request, in order. Raises what the client raises."""
        ...


class RedisShared:
    """Shared runs on Redis."""

    def __init__(self, scripts: LuaScripts, names: RedisKeys) -> None:
        self._scripts = scripts
        self._names = names

    async def ask(self, asks: Sequence[SharedRunRequest]) -> list[SharedRunAnswer]:
        """The run for each request, in order."""
        words = await self._scripts.once(
            LuaScript.SHARE,
            [self._names.epoch, *(self._names.shared(ask.digest) for ask in asks)],
            [self._names.call_prefix, *map(_words, asks)],
        )
        return [_found(*words[at : at + 3]) for at in range(0, len(words), 3)]


def _words(ask: SharedRunRequest) -> str:
    times = (ask.timeout, ask.wait, ask.cached, ask.noted_for)
    numbers = " ".join(str(max(0, round(seconds * 1000))) for seconds in times)
    return f"{ask.key} {ask.unless or _NO_KEY} {numbers} {ask.anew:d}"


def _found(key: bytes, said: bytes, outcome: bytes) -> SharedRunAnswer:
    if said == b"new":
        return SharedRunAnswer(key.decode(errors="replace"), is_new=True)
    if said == b"open":
        return SharedRunAnswer(key.decode(errors="replace"))
    return SharedRunAnswer(key.decode(errors="replace"), outcome=outcome)


class _Note(NamedTuple):
    key: str
    taken: float
    ask: SharedRunRequest


class MemoryShared:
    """Shared runs beside the records of an in-memory server."""

    def __init__(self, record: Callable[[str], Record | None]) -> None:
        self._record = record
        self._notes: OrderedDict[str, _Note] = OrderedDict()

    async def ask(self, asks: Sequence[SharedRunRequest]) -> list[SharedRunAnswer]:
        """The run for each request, in order."""
        return [self._ask(ask) for ask in asks]

    def forget(self) -> None:
        """Drop every note."""
        self._notes.clear()

    def _ask(self, ask: SharedRunRequest) -> SharedRunAnswer:
        now = time.monotonic()
        note = self._notes.get(ask.digest)
        if note is not None and now < note.taken + note.ask.noted_for and not ask.anew:
            found = self._joined(note, ask, now)
            if found is not None:
                return found
        self._notes.pop(ask.digest, None)  # insertion order is age order
        self._notes[ask.digest] = _Note(ask.key, now, ask)
        self._drop_old(now)
        return SharedRunAnswer(ask.key, is_new=True)

    def _joined(self, note: _Note, ask: SharedRunRequest, now: float) -> SharedRunAnswer | None:
        key = note.key
        if key == ask.unless or key[:_DIGEST_CHARACTERS] != ask.key[:_DIGEST_CHARACTERS]:
            return None
        retry = 1
        while self._record(retry_key(note.key, retry)) is not None:
            key, retry = retry_key(note.key, retry), retry + 1
        record = self._record(key)
        if record is not None and record.state == "settled":
            return SharedRunAnswer(key, outcome=record.outcome) if ask.cached else None
        is_coming = record is not None or now - note.taken < note.ask.wait
        return SharedRunAnswer(key) if is_coming and note.ask.timeout >= ask.timeout else None

    def _drop_old(self, now: float) -> None:
        while self._notes:
            first = next(iter(self._notes))
            note = self._notes[first]
            if now < note.taken + note.ask.noted_for:
                return
            del self._notes[first]

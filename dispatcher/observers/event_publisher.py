"""Publishes events: many in one signed entry, by a task of its own, off the road.

What waits to be published is bounded. While the server is away the oldest are dropped, counted, and
told to followers as a gap.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Sequence

import msgspec
from redis.exceptions import RedisError

from toolpool.contract import logs
from toolpool.contract.encoding import encode
from toolpool.contract.envelope import Envelope
from toolpool.contract.event_entries import BEGINNING, EncodedEvents, Note
from toolpool.contract.ledger.event_stream import EventLog
from toolpool.contract.ledger.lua_scripts import growing_pauses

log = logs.logger("events")

_WAITING_AT_MOST = 20_000
_TOGETHER_AT_MOST = 1_000
_ENCODED_AT_MOST = 100
"""How many notes are encoded together: so many are dropped at once."""
_GATHER_SECONDS = 0.1
"""Half as long costs the machine some 5 µs more of each call at full load."""
_LONGEST_PAUSE_SECONDS = 2.0
_ANSWER_SECONDS = 5.0
_FLUSH_SECONDS = 1.0
_AWAY = (RedisError, OSError, TimeoutError)


class _Waiting(msgspec.Struct, frozen=True, gc=False):
    """Notes as they are published, with commas between them, that stand for so many events."""

    count: int
    events: int
    notes: bytes


class Publisher:
    """Of one dispatcher, on its event loop."""

    def __init__(self, stream: EventLog, envelope: Envelope, *, tenant: str) -> None:
        self._stream = stream
        self._envelope = envelope
        self._tenant = tenant
        self._source = secrets.token_hex(6)
        self._waiting: deque[_Waiting] = deque()
        self._notes_waiting = 0
        self._in_flight: list[_Waiting] = []
        """What the server has not confirmed yet."""
        self._dropped = 0
        self._is_idle = True
        self._more = asyncio.Event()
        self._batches = 0
        self._known = BEGINNING
        self._is_away = False
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None
        self.lost = 0
        """How many events were dropped since the start."""

    def start(self) -> None:
        """Publish from now on."""
        self._task = asyncio.ensure_future(self._run())

    def add(self, notes: Sequence[Note]) -> None:
        """Publish them soon; where too many wait, the oldest are dropped."""
        for start in range(0, len(notes), _ENCODED_AT_MOST):
            some = notes[start : start + _ENCODED_AT_MOST]
            try:
                self._wait(some)
            except (TypeError, ValueError, RecursionError):
                self._wait_one_by_one(some)
        while self._notes_waiting > _WAITING_AT_MOST:
            self._drop(self._taken_first().events)
        if self._is_idle:
            self._is_idle = False
            self._more.set()

    def _wait(self, notes: Sequence[Note]) -> None:
        encoded = encode(notes)[1:-1]
        events = sum([note.events for note in notes])
        self._waiting.append(_Waiting(len(notes), events, encoded))
        self._notes_waiting += len(notes)

    def _wait_one_by_one(self, notes: Sequence[Note]) -> None:
        """One of them cannot be published: it costs no other."""
        for note in notes:
            try:
                self._wait([note])
            except (TypeError, ValueError, RecursionError):
                log.warning("event_not_published kind=%s: what its tool said is no JSON", note.kind)
                self._drop(note.events)

    def _taken_first(self) -> _Waiting:
        waiting = self._waiting.popleft()
        self._notes_waiting -= waiting.count
        return waiting

    def _drop(self, events: int) -> None:
        self._dropped += events
        self.lost += events

    async def close(self) -> None:
        """Publish what waits, for a second at most."""
        if self._task is None:
            return
        self._is_closing = True
        self._more.set()
        await asyncio.wait({self._task}, timeout=_FLUSH_SECONDS)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=_FLUSH_SECONDS)
            left = sum(waiting.events for waiting in (*self._in_flight, *self._waiting))
            log.warning("events_lost_at_the_end count=%d: the server did not confirm them", left)

    async def _run(self) -> None:
        while True:
            if not self._waiting:
                if self._is_closing:
                    return
                self._is_idle = True
                self._more.clear()
                await self._more.wait()
            if not self._is_closing:
                await asyncio.sleep(_GATHER_SECONDS)  # what comes meanwhile leaves together
            while self._waiting:
                self._in_flight = self._taken()
                await self._publish(self._in_flight)
                self._in_flight = []

    def _taken(self) -> list[_Waiting]:
        taken = [self._taken_first()]
        count = taken[0].count
        while self._waiting and count + self._waiting[0].count <= _TOGETHER_AT_MOST:
            taken.append(self._taken_first())
            count += taken[-1].count
        if self._dropped:
            detail = {"missing": self._dropped, "why": "dropped"}
            note = Note(kind="gap", at=int(time.time() * 1000), detail=detail)
            taken.insert(0, _Waiting(1, note.events, encode(note)))
            self._dropped = 0
        return taken

    async def _publish(self, taken: list[_Waiting]) -> None:
        """Until the server has it: the same batch again, which followers take once."""
        self._batches += 1
        count = sum(waiting.events for waiting in taken)
        body = self._envelope.encode_events(
            EncodedEvents(
                source=self._source,
                number=self._batches,
                notes=msgspec.Raw(b"[%b]" % b",".join([waiting.notes for waiting in taken])),
                tenant=self._tenant,
            )
        )
        pauses = growing_pauses(_LONGEST_PAUSE_SECONDS)
        while True:
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    self._known = await self._stream.add(body, count=count, known=self._known)
            except _AWAY as error:
                self._tell_away(error)
                await asyncio.sleep(next(pauses))
            except Exception:
                log.exception("events_not_published count=%d", count)
                self._drop(count)  # told as a gap: these alone are lost, not all that follow
                return
            else:
                break
        if self._is_away:
            self._is_away = False
            log.warning("events_published_again dropped=%d", self.lost)

    def _tell_away(self, error: Exception) -> None:
        if self._is_away:
            return
        self._is_away = True
        log.warning(
            "events_not_published: %s: %s; calls go on, events wait and the oldest of more than "
            "%d are dropped: bring the server back, or set TOOLPOOL_EVENTS=off",
            type(error).__name__, error, _WAITING_AT_MOST,
        )  # fmt: skip

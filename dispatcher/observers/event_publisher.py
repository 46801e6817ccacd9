"""Publishes events in a background task, many in one signed entry.

The number of waiting notes is limited. If the server is unavailable for long, the oldest are
dropped and counted, and followers get a gap.
"""

import asyncio
import secrets
import time
from collections import deque

from toolpool.contract import logs
from toolpool.contract.encoding import encode
from toolpool.contract.envelope import Envelope
from toolpool.contract.errors import ServerError
from toolpool.contract.event_entries import BEGINNING, EventBatch, EventEntry
from toolpool.contract.ledger.event_stream import EventLog
from toolpool.contract.ledger.lua_scripts import growing_pauses

log = logs.logger("events")

_MAX_WAITING = 20_000
_MAX_BATCH = 1_000
_GATHER_SECONDS = 0.1
"""The interval between publishes in seconds.

Half of it costs 5 µs more of CPU time per call at full load.
"""
_LONGEST_PAUSE_SECONDS = 2.0
_ANSWER_SECONDS = 5.0
_FLUSH_SECONDS = 1.0


class Publisher:
    """Publishes the events of one dispatcher, on its event loop."""

    def __init__(self, stream: EventLog, envelope: Envelope, *, tenant: str) -> None:
        self._stream = stream
        self._envelope = envelope
        self._tenant = tenant
        self._source = secrets.token_hex(6)
        self._waiting: deque[EventEntry] = deque()
        self._in_flight = 0
        """How many events were sent and not yet confirmed by the server."""
        self._dropped = 0
        self._is_idle = True
        self._more = asyncio.Event()
        self._batches = 0
        self._known = BEGINNING
        self._is_unavailable = False
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None
        self.lost = 0
        """How many events were dropped since the start."""

    def start(self) -> None:
        """Start publishing."""
        self._task = asyncio.ensure_future(self._run())

    def add(self, note: EventEntry) -> None:
        """Queue a note to be published; if too many wait, the oldest is dropped."""
        self._waiting.append(note)
        if len(self._waiting) > _MAX_WAITING:
            self._drop(self._waiting.popleft().events)
        if self._is_idle:
            self._is_idle = False
            self._more.set()

    def _drop(self, events: int) -> None:
        self._dropped += events
        self.lost += events

    async def close(self) -> None:
        """Publish the waiting notes, for a second at most."""
        if self._task is None:
            return
        self._is_closing = True
        self._more.set()
        await asyncio.wait({self._task}, timeout=_FLUSH_SECONDS)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=_FLUSH_SECONDS)
            left = self._in_flight + sum(note.events for note in self._waiting)
            log.warning("events_lost_at_close count=%d: the server did not confirm them", left)

    async def _run(self) -> None:
        while True:
            if not self._waiting:
                if self._is_closing:
                    return
                self._is_idle = True
                self._more.clear()
                await self._more.wait()
            if not self._is_closing:
                await asyncio.sleep(_GATHER_SECONDS)  # notes added meanwhile go into the same entry
            while self._waiting:
                body, self._in_flight = self._next_batch()
                await self._publish(body, self._in_flight)
                self._in_flight = 0

    def _next_batch(self) -> tuple[bytes, int]:
        """The next notes, signed, and the number of their events."""
        count = min(len(self._waiting), _MAX_BATCH)
        taken = [self._waiting.popleft() for _ in range(count)]
        self._batches += 1
        try:
            return self._signed(taken)
        except (TypeError, ValueError, RecursionError):
            return self._signed([note for note in taken if self._is_json(note)])

    def _signed(self, notes: list[EventEntry]) -> tuple[bytes, int]:
        if self._dropped:
            detail = {"missing": self._dropped, "why": "dropped"}
            notes = [EventEntry(kind="gap", at=int(time.time() * 1000), detail=detail), *notes]
        batch = EventBatch(
            source=self._source, number=self._batches, notes=tuple(notes), tenant=self._tenant
        )
        body = self._envelope.encode(batch)
        self._dropped = 0
        return body, batch.events

    def _is_json(self, note: EventEntry) -> bool:
        try:
            encode(note)
        except (TypeError, ValueError, RecursionError):
            log.warning(
                "event_not_published kind=%s: the text from its tool is not valid JSON", note.kind
            )
            self._drop(note.events)
            return False
        return True

    async def _publish(self, body: bytes, count: int) -> None:
        """Send a batch until the server confirms it; followers ignore duplicates."""
        pauses = growing_pauses(_LONGEST_PAUSE_SECONDS)
        while True:
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    self._known = await self._stream.add(body, count=count, known=self._known)
            except (ServerError, TimeoutError) as error:
                self._report_unavailable(error)
                await asyncio.sleep(next(pauses))
            except Exception:
                log.exception("events_not_published count=%d", count)
                self._drop(count)  # followers get a gap for these alone; later batches are sent
                return
            else:
                break
        if self._is_unavailable:
            self._is_unavailable = False
            log.warning("events_published_again dropped=%d", self.lost)

    def _report_unavailable(self, error: Exception) -> None:
        if self._is_unavailable:
            return
        self._is_unavailable = True
        log.warning(
            "events_not_published: %s: %s; tool calls are not affected. At most %d events wait, "
            "then the oldest are dropped: bring the server back, or set TOOLPOOL_EVENTS=off",
            type(error).__name__, error, _MAX_WAITING,
        )  # fmt: skip

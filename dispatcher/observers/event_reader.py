"""Reads the stream of events from a bookmark on, and yields a gap where events are missing.

Each follower reads the stream separately: a slow one delays no other, and keeps one page in memory.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator

from toolpool.contract import logs
from toolpool.contract.envelope import Envelope
from toolpool.contract.errors import MessageRejected, ServerError
from toolpool.contract.event_entries import BEGINNING, EventBatch, Position
from toolpool.contract.ledger.event_stream import Entry, EventLog
from toolpool.dispatcher.events import Channel, Event, events_of, gap

log = logs.logger("events")

_PAUSE_SECONDS = 1.0
_SOURCES_KNOWN = 1_000


class EventReader:
    """Reads one stream for any number of followers, until it is closed."""

    def __init__(self, stream: EventLog, envelope: Envelope, *, tenant: str) -> None:
        self._stream = stream
        self._envelope = envelope
        self._tenant = tenant
        self._closed = asyncio.Event()
        self._pages: set[asyncio.Task[list[Event]]] = set()
        self.rejected = 0
        """How many entries were skipped because no trusted key had signed them."""

    async def close(self) -> None:
        """End all followers. Followers that wait still get the events that are present by now."""
        self._closed.set()
        if self._pages:
            await asyncio.wait(set(self._pages), timeout=_PAUSE_SECONDS)

    async def follow(
        self, since: Position | None, wanted: frozenset[Channel]
    ) -> AsyncGenerator[Event]:
        """Yield the events after `since`, then new ones. If `since` is None, only new ones."""
        follower = _Follower(self, since, wanted)
        while not self._closed.is_set():
            page = asyncio.ensure_future(self._page(follower))
            self._pages.add(page)
            page.add_done_callback(self._pages.discard)
            try:
                for event in await page:
                    yield event
            finally:
                page.cancel()

    async def _page(self, follower: "_Follower") -> list[Event]:
        """The next events.

        If the follower is closed meanwhile, the events that are present by then.
        """
        reading = asyncio.ensure_future(follower.page(self._stream))
        closed = asyncio.ensure_future(self._closed.wait())
        try:
            await asyncio.wait({reading, closed}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                return reading.result()
        finally:
            reading.cancel()
            closed.cancel()
        await asyncio.wait({reading})
        return await follower.page(self._stream, wait=False)

    def decoded(self, body: bytes) -> EventBatch | None:
        """The events of an entry; None if its signature is not trusted, which is logged once."""
        try:
            return self._envelope.decode(EventBatch, body)
        except MessageRejected as error:
            self.rejected += 1
            if self.rejected == 1:
                log.warning(
                    "events_rejected reason=%s: entries of the stream like this one are skipped: "
                    "give every dispatcher the same TOOLPOOL_SIGNING_KEY, or a TOOLPOOL_KEY_PREFIX "
                    "of its own",
                    error.reason,
                )
            return None

    @property
    def tenant(self) -> str:
        """The tenant whose events are yielded."""
        return self._tenant


class _Follower:
    """One follower's position in the stream."""

    def __init__(
        self, following: EventReader, since: Position | None, wanted: frozenset[Channel]
    ) -> None:
        self._following = following
        self._since = since
        self._wanted = wanted
        self._at: Position | None = None
        self._batches: OrderedDict[str, int] = OrderedDict()
        self._is_unavailable = False

    async def page(self, stream: EventLog, *, wait: bool = True) -> list[Event]:
        """The next events; empty if none arrive for a while, or if the server is unavailable."""
        try:
            found = [] if self._at is not None else await self._begin(stream)
            assert self._at is not None
            entries = [] if found else await stream.read(self._at, wait=wait)
            if not found and not entries:
                found = await self._gap_behind(stream)
        except (ServerError, TimeoutError) as error:
            if not self._is_unavailable:
                log.warning("events_not_read: %s: %s; trying again", type(error).__name__, error)
            self._is_unavailable = True
            await asyncio.sleep(_PAUSE_SECONDS if wait else 0.0)
            return []
        self._is_unavailable = False
        for entry in entries:
            found += self._events_of(entry)
        return found

    async def _begin(self, stream: EventLog) -> list[Event]:
        """Set the position to read from. Returns a gap if the stream does not have it."""
        last = await stream.last()
        if self._since is None:
            self._at = last or BEGINNING
            return []
        self._at = self._since
        return self._jump(last)

    async def _gap_behind(self, stream: EventLog) -> list[Event]:
        """A gap if the stream has lost events that were read from it."""
        return self._jump(await stream.last())

    def _jump(self, last: Position | None) -> list[Event]:
        at = self._at
        assert at is not None
        if at == BEGINNING or (last is not None and last >= at):
            return []
        until = last if last is not None and last.start == at.start else BEGINNING
        self._at = until
        return [gap(at, until, _now(), "the server does not have this bookmark", None)]

    def _events_of(self, entry: Entry) -> Iterator[Event]:
        at = self._at
        assert at is not None
        yield from self._missed(at, entry)
        self._at = entry.last
        batch = self._following.decoded(entry.body)
        if batch is None or batch.tenant != self._following.tenant or self._is_known(batch):
            return
        place = Position(entry.last.start, entry.last.number - batch.events)
        for note in batch.notes:
            place = Position(place.start, place.number + note.events)
            for event in events_of(note, place, batch.source, after=at):
                if event.channel is None or event.channel in self._wanted:
                    yield event

    def _missed(self, at: Position, entry: Entry) -> Iterator[Event]:
        """The gap before an entry; its size is known unless the stream was lost and began again."""
        before = Position(entry.last.start, entry.last.number - entry.events)
        if at == BEGINNING:
            return
        if at.start != before.start:
            yield gap(at, before, _now(), "the stream began anew", None)
        elif before.number > at.number:
            missing = before.number - at.number
            yield gap(at, before, _now(), "no longer kept", missing)

    def _is_known(self, batch: EventBatch) -> bool:
        """Whether the batch was published again because the confirmation was lost."""
        known = self._batches.pop(batch.source, 0)
        self._batches[batch.source] = max(known, batch.number)
        if len(self._batches) > _SOURCES_KNOWN:
            self._batches.popitem(last=False)
        return batch.number <= known


def _now() -> int:
    return int(time.time() * 1000)

"""Sets up the events and the session record of a dispatcher."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from toolpool.contract.event_entries import Position
from toolpool.dispatcher.admission.catalog import Catalog, Offer
from toolpool.dispatcher.calls.services import Services
from toolpool.dispatcher.events import CHANNELS, Event, require_channels
from toolpool.dispatcher.host.hook import Hook, HookFailed
from toolpool.dispatcher.lifetime import in_a_thread
from toolpool.dispatcher.observers.event_buffer import EventBuffer
from toolpool.dispatcher.observers.event_publisher import Publisher
from toolpool.dispatcher.observers.event_reader import EventReader
from toolpool.dispatcher.observers.event_recorder import EventRecorder
from toolpool.dispatcher.observers.record_rows import RecordSink
from toolpool.dispatcher.observers.session_record import (
    AuditRows,
    Recorder,
    SessionRecord,
    recorder_of,
)

Record = SessionRecord | RecordSink | str | Path
"""A host's session record: a path, its own sink, or either with `redact`."""


class ObserverSetup:
    """Starts and closes the events and the session record of a dispatcher."""

    def __init__(self, services: Services, catalog: Catalog, record: Record | None) -> None:
        settings = services.settings
        self._observers = services.observers
        self._catalog = catalog
        self._transport = services.transport
        self.recorder: Recorder | None = recorder_of(record, settings)
        self._publisher: Publisher | None = None
        self._events: EventBuffer | EventReader
        if settings.events:
            log, tenant = services.transport.events, settings.tenant
            self._publisher = Publisher(log, services.envelope, tenant=tenant)
            self._events = EventReader(log, services.envelope, tenant=tenant)
        else:
            self._events = buffer = EventBuffer(
                lambda: self._observers.add(EventRecorder(buffer.add, self._offers))
            )

    def _offers(self) -> Mapping[str, Offer]:
        return self._catalog.offers

    def start(self) -> None:
        """Start observing. Raises `Misconfigured` if the record cannot be written."""
        if self.recorder is not None:
            self.recorder.start()
            self._observers.add(AuditRows(self.recorder))
        if self._publisher is not None:
            self._observers.add(EventRecorder(self._publisher.add, self._offers))
            self._publisher.start()

    def follow(self, since: Any, channels: Any, session: str | None = None) -> AsyncIterator[Event]:
        """Events as they happen; see `Dispatcher.events`.

        Raises ValueError for invalid arguments.
        """
        at = Position.parse(since) if since is not None else None
        events = self._events.follow(at, require_channels(channels))
        return events if session is None else _of_session(events, session)

    async def pass_events(self, hook: Hook) -> None:
        """Pass every new event to a hook of the host, until cancelled."""
        async for event in self._events.follow(None, frozenset(CHANNELS)):
            try:
                await hook.ask(event)
            except HookFailed as error:
                if event.kind != "monitor:hook":  # a failing hook must not cause events for itself
                    self._observers.hook_failed(hook.name, error.kind, error.__cause__)

    async def leave(self) -> None:
        """Prepare to close: results that waiters get from now on are not recorded as final."""
        if self.recorder is not None:
            self.recorder.stop_following()
        if self._publisher is None:
            await self._events.close()

    async def close(self) -> None:
        """Write and publish all waiting rows and events, and close everything."""
        if self._publisher is not None:
            await self._publisher.close()
            await self._events.close()
        await self._transport.events.close()
        if self.recorder is not None:
            await self.recorder.settle()
            await in_a_thread(self.recorder.close)


async def _of_session(events: AsyncGenerator[Event], session: str) -> AsyncIterator[Event]:
    """The events of one session, and the gaps, which may have had some."""
    async with aclosing(events):
        async for event in events:
            if event.session == session or event.kind == "gap":
                yield event

"""The stream of events itself: numbers without a hole, on a real server as in memory (R41)."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from tests.waiting import eventually
from toolpool.contract.envelope import Envelope
from toolpool.contract.errors import ServerUnavailable
from toolpool.contract.event_entries import BEGINNING, EventBatch, EventEntry, Position
from toolpool.contract.ledger.event_stream import EventLog, MemoryEvents, RedisEvents
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server import connection
from toolpool.contract.settings import Settings
from toolpool.contract.signing import Keyring, generate_key
from toolpool.dispatcher.events import CHANNELS, Event
from toolpool.dispatcher.observers import event_publisher
from toolpool.dispatcher.observers.event_publisher import Publisher
from toolpool.dispatcher.observers.event_reader import EventReader

ENVELOPE = Envelope(Keyring(["k" * 32]))
BOTH = frozenset(CHANNELS)
KEPT = 1_000


@pytest.fixture(params=["redis", "memory"])
async def stream(request: pytest.FixtureRequest, redis_url: str) -> AsyncIterator[EventLog]:
    if request.param == "memory":
        memory = MemoryEvents()
        memory.kept = KEPT
        yield memory
        return
    settings = Settings(redis_url=redis_url)
    opened = RedisEvents(
        connection.open_async(settings),
        connection.open_async(settings, blocking=True),
        RedisKeys(),
        kept=KEPT,
    )
    yield opened
    await opened.close()


def forget(stream: EventLog, redis_url: str) -> None:
    """Lose all of it."""
    if isinstance(stream, MemoryEvents):
        stream.forget()
        return
    with redis.Redis.from_url(redis_url) as client:
        client.delete(RedisKeys().events)


def notes(*tools: str) -> tuple[EventEntry, ...]:
    return tuple(EventEntry(kind="end", at=1, tool=tool, events=2) for tool in tools)


async def put(
    stream: EventLog, *tools: str, number: int = 1, known: Position = BEGINNING, **fields: Any
) -> Position:
    batch = EventBatch(source="here", number=number, notes=notes(*tools), **fields)
    body = ENVELOPE.encode(batch)
    return await stream.add(body, count=batch.events, known=known)


def following(stream: EventLog) -> EventReader:
    return EventReader(stream, ENVELOPE, tenant="default")


async def take(followed: AsyncIterator[Event], count: int) -> list[Event]:
    async with asyncio.timeout(20):
        return [await anext(followed) for _ in range(count)]


def of(events: list[Event]) -> list[str]:
    return [event.tool or f"gap {(event.detail or {})['missing']}" for event in events]


async def test_events_are_numbered_without_a_hole(stream: EventLog) -> None:
    first = await put(stream, "a", "b")
    assert first.number == 4
    assert await put(stream, "c", number=2) == Position(first.start, 6)
    assert await stream.last() == Position(first.start, 6)
    found = await stream.read(BEGINNING)
    assert [(entry.last.number, entry.events) for entry in found] == [(4, 4), (6, 2)]
    assert [entry.last.number for entry in await stream.read(first)] == [6]
    assert await stream.read(Position(first.start, 6), wait=False) == []


async def test_a_bookmark_in_the_middle_of_an_entry_is_resumed_after(stream: EventLog) -> None:
    await put(stream, "a", "b", "c")
    whole = await take(following(stream).follow(BEGINNING, BOTH), 6)
    assert of(whole) == ["a", "a", "b", "b", "c", "c"]
    for count in range(6):
        at = Position.parse(whole[count].bookmark)
        rest = await take(following(stream).follow(at, BOTH), 5 - count) if count < 5 else []
        assert rest == whole[count + 1 :]


async def test_what_is_no_longer_kept_is_counted(stream: EventLog) -> None:
    """R41: never silence."""
    first = await put(stream, "first")
    for number in range(2, 12):
        await put(stream, *["more"] * 100, number=number)
    told, event = await take(following(stream).follow(first, BOTH), 2)
    assert (told.kind, told.channel) == ("gap", None)
    missing = (told.detail or {})["missing"]
    assert Position.parse(event.bookmark).number == first.number + missing + 1
    last = await stream.last()
    assert last is not None
    assert KEPT <= last.number - first.number - missing <= KEPT + 200
    followed = following(stream).follow(Position.parse(told.bookmark), BOTH)
    assert (await take(followed, 1))[0] == event


async def test_all_that_are_kept_begin_without_a_gap(stream: EventLog) -> None:
    for number in range(1, 12):
        await put(stream, *["more"] * 100, number=number)
    assert (await take(following(stream).follow(BEGINNING, BOTH), 1))[0].tool == "more"


async def test_lost_server_data_is_reported(stream: EventLog, redis_url: str) -> None:
    known = await put(stream, "a")
    followed = following(stream).follow(Position(known.start, 0), BOTH)
    assert of(await take(followed, 2)) == ["a", "a"]
    forget(stream, redis_url)
    assert await put(stream, "b", number=2, known=known) > known
    assert of(await take(followed, 3)) == ["gap None", "b", "b"]


async def test_a_loss_is_reported_before_new_events(stream: EventLog, redis_url: str) -> None:
    known = await put(stream, "a")
    followed = following(stream).follow(known, BOTH)
    forget(stream, redis_url)
    assert of(await take(followed, 1)) == ["gap None"]


async def test_a_server_that_lost_its_last_writes_begins_anew(stream: EventLog) -> None:
    """As a replica that lagged: no number is given twice."""
    last = await put(stream, "a")
    known = Position(last.start, last.number + 10)
    assert (await put(stream, "b", number=2, known=known)).start > last.start


@pytest.mark.parametrize("ahead", [Position(1, 5), Position(4_000_000_000_000, 5)])
async def test_a_foreign_bookmark_is_reported(stream: EventLog, ahead: Position) -> None:
    await put(stream, "a")
    followed = following(stream).follow(ahead, BOTH)
    assert of(await take(followed, 3)) == ["gap None", "a", "a"]


@pytest.mark.parametrize("bookmark", ["", "5", "5-", "a-b", "1-1-1", 5, None, "9" * 20 + "-1"])
def test_what_is_no_bookmark_is_told_to_the_host(bookmark: Any) -> None:
    with pytest.raises(ValueError, match="since must be the bookmark of an event"):
        Position.parse(bookmark)


async def test_an_unsigned_entry_is_skipped_and_reported_once(
    stream: EventLog, caplog: pytest.LogCaptureFixture
) -> None:
    """R63: those of others are not lost by it."""
    stranger = Envelope(Keyring([generate_key()]))
    batch = EventBatch(source="x", number=1, notes=notes("forged"))
    for body in (
        b"nothing",
        stranger.encode(batch),
        ENVELOPE.encode(batch)[:-1],
    ):
        await stream.add(body, count=2, known=BEGINNING)
    await put(stream, "a")
    reader = following(stream)
    assert of(await take(reader.follow(BEGINNING, BOTH), 2)) == ["a", "a"]
    assert reader.rejected == 3
    assert sum("events_rejected" in line for line in caplog.messages) == 1


async def test_what_others_write_to_the_key_takes_no_event(redis_url: str) -> None:
    settings = Settings(redis_url=redis_url)
    log = RedisEvents(
        connection.open_async(settings), connection.open_async(settings, blocking=True),
        RedisKeys(), kept=KEPT,
    )  # fmt: skip
    first = await put(log, "a")
    with redis.Redis.from_url(redis_url) as client:
        client.xadd(RedisKeys().events, {"odd": "entry"})
    await put(log, "b", number=2, known=first)
    assert "b" in of(await take(following(log).follow(first, BOTH), 3))
    await log.close()


async def test_another_tenant_s_events_are_not_told(stream: EventLog) -> None:
    await put(stream, "theirs", tenant="other")
    await put(stream, "ours", number=2)
    assert of(await take(following(stream).follow(BEGINNING, BOTH), 1)) == ["ours"]


async def test_a_batch_that_was_published_twice_is_delivered_once(stream: EventLog) -> None:
    """Its first answer was lost."""
    for number in (1, 1, 2):
        await put(stream, f"t{number}", number=number)
    assert of(await take(following(stream).follow(BEGINNING, BOTH), 4)) == ["t1", "t1", "t2", "t2"]


class Away(MemoryEvents):
    """A server that is away at first."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = True
        self.tried = 0

    async def add(self, body: bytes, *, count: int, known: Position) -> Position:
        self.tried += 1
        if self.is_away:
            raise ServerUnavailable("events", sent=False)
        return await super().add(body, count=count, known=known)


async def test_what_is_dropped_while_the_server_is_away_becomes_a_gap(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning that says what to do, and a bounded waiting room: the oldest go."""
    monkeypatch.setattr(event_publisher, "_MAX_WAITING", 10)
    monkeypatch.setattr(event_publisher, "_GATHER_SECONDS", 0.0)
    away = Away()
    publisher = Publisher(away, ENVELOPE, tenant="default")
    publisher.start()
    publisher.add(*notes("first"))
    await eventually(lambda: away.tried > 1, "it is tried again")
    for note in notes(*[f"t{number}" for number in range(15)]):
        publisher.add(note)
    assert len(publisher._waiting) == 10
    away.is_away = False
    followed = following(away).follow(BEGINNING, frozenset(["progress"]))
    assert of(await take(followed, 3)) == ["first", "gap 10", "t5"]
    warned = [line for line in caplog.messages if "events_not_published" in line]
    assert len(warned) == 1
    assert "TOOLPOOL_EVENTS=off" in warned[0]
    assert "events_published_again dropped=10" in caplog.messages
    await publisher.close()


class Silent(MemoryEvents):
    """A server that answers nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = asyncio.Event()

    async def add(self, body: bytes, *, count: int, known: Position) -> Position:
        self.is_asked.set()
        await asyncio.Event().wait()
        raise AssertionError("nothing wakes it")


async def test_events_that_a_silent_server_was_given_are_counted_as_lost_at_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_publisher, "_FLUSH_SECONDS", 0.1)
    silent = Silent()
    publisher = Publisher(silent, ENVELOPE, tenant="default")
    publisher.start()
    for note in notes("given", "given too"):
        publisher.add(note)
    await silent.is_asked.wait()
    publisher.add(*notes("waits"))
    await publisher.close()
    lost = [line for line in caplog.messages if "events_lost_at_close" in line]
    assert [line.partition(":")[0] for line in lost] == ["events_lost_at_close count=6"]


async def test_if_one_note_too_many_waits_one_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_publisher, "_MAX_WAITING", 1_000)
    publisher = Publisher(MemoryEvents(), ENVELOPE, tenant="default")
    for note in notes(*["t"] * 1_000):
        publisher.add(note)
    assert publisher.lost == 0
    publisher.add(*notes("t"))
    assert publisher.lost == notes("t")[0].events


async def test_a_note_that_is_no_json_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    stream = MemoryEvents()
    publisher = Publisher(stream, ENVELOPE, tenant="default")
    publisher.start()
    odd = EventEntry(kind="progress", at=1, tool="t", detail={"message": "\ud800"})
    for note in (*notes("a"), odd, *notes("b")):
        publisher.add(note)
    await publisher.close()
    told = of(await take(following(stream).follow(BEGINNING, BOTH), 5))
    assert told == ["gap 1", "a", "a", "b", "b"], "and followers are told that one is missing"
    assert publisher.lost == 1


async def test_closing_gives_a_waiting_follower_what_there_is(stream: EventLog) -> None:
    reader = following(stream)
    seen: list[Event] = []

    async def follow() -> None:
        async for event in reader.follow(BEGINNING, BOTH):
            seen[:] = [*seen, event]

    task = asyncio.ensure_future(follow())
    await put(stream, "a")
    await eventually(lambda: len(seen) == 2, "they are seen")
    await reader.close()
    await asyncio.wait_for(task, 5)

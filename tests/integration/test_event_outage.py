"""Events while the server is away, and after one that lost what it had: calls go on (R41)."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.chaos.servers import Server
from tests.fleets import road
from tests.integration.fleet import call
from tests.waiting import eventually
from toolpool import Dispatcher, Settings
from toolpool.contract.envelope import Envelope
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server import connection
from toolpool.dispatcher.events import Event
from toolpool.workers.catalog_publisher import CatalogPublisher


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path / "server")
    yield started
    started.close()


@pytest.fixture
async def dispatcher(server: Server) -> AsyncIterator[Dispatcher]:
    settings = Settings(redis_url=server.url, events=True)
    envelope = Envelope(connection.keyring(settings))
    with connection.open_sync(settings) as client:
        CatalogPublisher(client, [road.echo.spec], envelope=envelope, settings=settings).stock(
            b"", time.time()
        )
    async with Dispatcher.connect(settings=settings) as connected:
        yield connected


async def ask(dispatcher: Dispatcher, session: str) -> None:
    """A call that is rejected at once: it needs no worker and no server."""
    assert not (await dispatcher.dispatch(call("echo"), session=session))[0].ok


async def follow(dispatcher: Dispatcher, seen: list[Event]) -> None:
    async for event in dispatcher.events(since="0", channels=["progress"]):
        seen[:] = [*seen, event]


@pytest.mark.parametrize("is_lost", [False, True])
async def test_an_outage_costs_no_event_and_a_loss_is_reported(
    dispatcher: Dispatcher, server: Server, caplog: pytest.LogCaptureFixture, is_lost: bool
) -> None:
    seen: list[Event] = []
    task = asyncio.ensure_future(follow(dispatcher, seen))
    await ask(dispatcher, "before")
    await eventually(lambda: seen, "it is seen")
    if is_lost:
        with server.client() as client:
            client.delete(RedisKeys().events)
    await asyncio.to_thread(server.kill)
    await ask(dispatcher, "during")
    await eventually(
        lambda: any("events_not_published" in line for line in caplog.messages), "it is said"
    )
    await asyncio.to_thread(server.start)
    await ask(dispatcher, "after")
    await eventually(lambda: "after" in [e.session for e in seen], "it goes on", 20)
    assert [event.session for event in seen if event.kind != "gap"] == ["before", "during", "after"]
    assert [event.kind for event in seen if event.kind == "gap"] == ["gap"] * is_lost
    assert sum("events_not_published" in line for line in caplog.messages) == 1
    assert sum("events_not_read" in line for line in caplog.messages) <= 1
    task.cancel()


async def test_a_server_that_is_full_takes_no_events_and_calls_go_on(
    dispatcher: Dispatcher, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with server.client() as client:
        client.config_set("maxmemory", "1mb")
        await ask(dispatcher, "full")
        await eventually(
            lambda: any("events_not_published" in line for line in caplog.messages), "it is said"
        )
        client.config_set("maxmemory", "0")
    seen: list[Event] = []
    task = asyncio.ensure_future(follow(dispatcher, seen))
    await eventually(lambda: seen, "it was kept until then")
    task.cancel()

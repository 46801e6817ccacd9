"""Real workers on a real server, for tests of the whole road."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from toolpool import Dispatcher
from toolpool.contract.settings import Settings
from toolpool.local import LocalFleet


@contextmanager
def running(*tools: str, **settings: Any) -> Iterator[LocalFleet]:
    """An embedded server and its workers, with settings of the test's own."""
    fleet = LocalFleet(list(tools), Settings(**settings))
    try:
        yield fleet
    finally:
        fleet.close()


@asynccontextmanager
async def connected(fleet: LocalFleet, **options: Any) -> AsyncIterator[Dispatcher]:
    """A dispatcher of the fleet, with settings of its own on top."""
    changed = fleet.settings.model_copy(update=options)
    async with Dispatcher.connect(settings=changed) as dispatcher:
        yield dispatcher


def call(name: str, _id: str = "c", /, **arguments: Any) -> list[dict[str, Any]]:
    """A response with one bare call."""
    return [{"id": _id, "name": name, "input": arguments}]

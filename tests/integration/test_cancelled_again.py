"""A turn is asked again after a cancel: its write has ended, and nobody waits for word of it."""

import asyncio
import threading

import pytest

from tests.integration.twins import Gate, alone, second
from tests.waiting import eventually
from toolpool import tool
from toolpool.contract.outcome import Code

LEASE = {"lease_ttl": 2.0}
CALLS = [{"id": "w", "name": "put", "input": {}}, {"id": "r", "name": "look", "input": {}}]


@pytest.mark.parametrize("by", ["the same dispatcher", "another"])
@pytest.mark.parametrize("how", ["all", "one", "task"])
async def test_a_turn_asked_again_after_a_cancel_goes_on_at_once(by: str, how: str) -> None:
    gate = Gate()

    @tool(effects="write")
    async def put() -> None:
        """Put."""
        await gate.wait("put")

    @tool(effects="read")
    async def look() -> str:
        """Look."""
        return "seen"

    async with alone([put, look], **LEASE) as old, second(old, **LEASE) as new:
        asked = asyncio.ensure_future(old.dispatch(CALLS, session="s", turn="t"))
        await eventually(lambda: gate.came, "the write runs")
        if how == "task":
            asked.cancel()
        else:
            await old.cancel(session="s", call_id="w" if how == "one" else None)
        await asyncio.wait({asked})
        again = await (old if by == "the same dispatcher" else new).dispatch(
            CALLS, session="s", turn="t"
        )
    assert again[0].code is Code.CANCELLED
    assert again[1].note is None
    assert gate.came == ["put"]


async def test_a_thread_that_goes_on_after_a_cancel_is_noted_when_it_ends() -> None:
    begun, gate = threading.Event(), threading.Event()

    @tool(run_in="thread")
    def work() -> None:
        """Work."""
        begun.set()
        gate.wait(30)

    asks = [{"id": "c", "name": "work", "input": {}}]
    async with alone([work]) as dispatcher:
        asked = asyncio.ensure_future(dispatcher.dispatch(asks, session="s", turn="t"))
        await eventually(begun.is_set, "it runs")
        [pending] = dispatcher._in_flight.all_open()
        await dispatcher.cancel(session="s")
        await asked
        assert dispatcher._server.ended == set()
        gate.set()
        await eventually(lambda: dispatcher._server.ended == {pending.key}, "its end is noted")

"""Each kind of tool has slots of its own, and no kind's backlog keeps another's messages out."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from contract import connection
from contract.names import Names
from tests.integration import fleet as fleets
from tests.integration.fleet import call
from tests.waiting import eventually
from toolpool.local import LocalFleet

BACKLOG = 12


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with fleets.running("tests.fleets.slow", slots_thread=2) as running:
        yield running


async def test_a_backlog_for_threads_leaves_coroutines_alone(
    fleet: LocalFleet, tmp_path: Path
) -> None:
    """Every message carries one call, and far more wait than the worker may hold."""
    gate = tmp_path / "gate"
    waiting = []
    async with AsyncExitStack() as stack:
        for _ in range(BACKLOG):  # each holds back what it sees no worker start
            one = await stack.enter_async_context(fleets.connected(fleet, queue_wait=20.0))
            turn = one.dispatch(call("wait_in_thread", gate=str(gate)))
            waiting.append(asyncio.ensure_future(turn))
        with connection.open_sync(fleet.settings) as client:
            await eventually(
                lambda: len(client.keys(Names().call("*"))) == BACKLOG, "all are on the queue"
            )
        try:
            for _ in range(3):
                result = (await one.dispatch(call("quick"), timeout=2.0))[0]
                assert (result.data, result.code) == ("quick", None)
                assert not any(turn.done() for turn in waiting)
        finally:
            gate.touch()
        turns = await asyncio.gather(*waiting)
        assert [turn[0].data for turn in turns] == ["open"] * BACKLOG

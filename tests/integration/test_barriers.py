"""What comes after a write whose end nobody saw: waits for word, goes on, and says so (R32)."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration import fleet as fleets
from tests.waiting import eventually
from toolpool import Dispatcher
from toolpool.contract.outcome import Code, Executed
from toolpool.local import LocalFleet

LEASE_GONE = 2.0


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with fleets.running("tests.fleets.writing", lease_ttl=LEASE_GONE) as ready:
        yield ready


@pytest.fixture
async def dispatcher(fleet: LocalFleet) -> AsyncIterator[Dispatcher]:
    async with fleets.connected(fleet) as connected:
        yield connected


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace"
    path.touch()
    return str(path)


def then_look(write: str, trace: str, **arguments: Any) -> list[dict[str, Any]]:
    return [
        {"id": "w", "name": write, "input": {"trace": trace, **arguments}},
        {"id": "r", "name": "look", "input": {"trace": trace}},
    ]


@pytest.mark.parametrize("write", ["write_in_thread", "write_on_loop"])
async def test_the_next_call_waits_for_a_write_that_could_not_be_stopped(
    dispatcher: Dispatcher, trace: str, write: str
) -> None:
    """Its own call is answered on time; its worker sends word when it has really ended."""
    turn = await dispatcher.dispatch(then_look(write, trace, seconds=3.0), timeout=0.5)
    assert (turn[0].code, turn[0].executed) == (Code.TIMEOUT, Executed.UNKNOWN)
    assert turn[0].duration < 3.0
    assert turn[1].data[-1] == "ended"
    assert turn[1].note is None


async def test_a_write_that_was_stopped_is_not_waited_for(
    dispatcher: Dispatcher, trace: str
) -> None:
    turn = await dispatcher.dispatch(
        then_look("write_in_process", trace, seconds=30.0), timeout=0.5
    )
    assert (turn[0].code, turn[0].executed) == (Code.TIMEOUT, Executed.UNKNOWN)
    assert turn[1].data == ["started"]
    assert turn[1].note is None


async def test_a_lost_write_is_waited_for_and_then_said(dispatcher: Dispatcher, trace: str) -> None:
    """Two leases after it was answered: by then its worker, alive or not, has stopped it."""
    began = asyncio.get_running_loop().time()
    turn = await dispatcher.dispatch(then_look("write_and_die", trace))
    assert (turn[0].code, turn[0].executed) == (Code.WORKER_LOST, Executed.UNKNOWN)
    waited = asyncio.get_running_loop().time() - began - turn[0].duration
    assert waited >= 2 * LEASE_GONE
    assert turn[1].ok
    assert turn[1].note is not None
    assert "whether the call of 'write_and_die' before this one had ended" in turn[1].note


async def test_a_cancelled_session_leaves_no_write_unwatched(
    dispatcher: Dispatcher, trace: str
) -> None:
    """R34: a write that was cancelled ends before what comes after it begins."""
    calls = then_look("write_in_thread", trace, seconds=1.0)
    asked = asyncio.ensure_future(dispatcher.dispatch(calls, session="s"))
    await eventually(lambda: Path(trace).read_text() == "started\n", "it runs")
    await dispatcher.cancel("s", call_id="w")
    turn = await asked
    assert (turn[0].code, turn[0].executed) == (Code.CANCELLED, Executed.UNKNOWN)
    assert turn[1].data == ["started", "ended"]

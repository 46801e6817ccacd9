"""A call that gives no sign of life is ended, wherever it runs; one that does goes on (R35)."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.fleets.beating import HEARTBEAT
from tests.integration import fleet as fleets
from tests.integration.fleet import call
from toolpool import Dispatcher
from toolpool.contract.outcome import Code, Executed
from toolpool.local import LocalFleet

QUIET = 15.0
"""Longer than a test waits, shorter than the timeout."""


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with fleets.running("tests.fleets.beating", drain_timeout=0.2) as running:
        yield running


@pytest.fixture
async def dispatcher(fleet: LocalFleet) -> AsyncIterator[Dispatcher]:
    async with fleets.connected(fleet) as connected:
        yield connected


@pytest.mark.parametrize("tool", ["beat_loop", "beat_thread", "beat_process"])
async def test_a_call_that_falls_silent_is_ended(dispatcher: Dispatcher, tool: str) -> None:
    result = (await dispatcher.dispatch(call(tool, beats=2, quiet=QUIET)))[0]
    assert (result.code, result.executed) == (Code.TIMEOUT, Executed.UNKNOWN)
    assert f"gave no sign of life for {HEARTBEAT:g} s" in (result.error or "")
    assert result.duration < QUIET


@pytest.mark.parametrize("progress", [True, False])
@pytest.mark.parametrize("tool", ["beat_loop", "beat_thread", "beat_process"])
async def test_a_call_that_gives_signs_of_life_goes_on(
    dispatcher: Dispatcher, tool: str, progress: bool
) -> None:
    """For far longer than its heartbeat, though few of its reports are passed on."""
    turn = await dispatcher.dispatch(call(tool, beats=30, quiet=0.0, progress=progress))
    assert (turn[0].data, turn[0].code) == ("done", None)

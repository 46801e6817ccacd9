"""A tool that forks its worker makes no second worker of it (R1, R8)."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.integration import fleet as fleets
from tests.integration.fleet import call
from tests.waiting import eventually
from toolpool import Dispatcher
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.result import ToolResult
from toolpool.local import LocalFleet


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with fleets.running("tests.fleets.forking") as running:
        yield running


@pytest.fixture
async def dispatcher(fleet: LocalFleet) -> AsyncIterator[Dispatcher]:
    async with fleets.connected(fleet) as connected:
        yield connected
        await everybody_gets_their_own(connected)


async def result_of(dispatcher: Dispatcher, name: str, /, **arguments: Any) -> ToolResult:
    return (await dispatcher.dispatch(call(name, **arguments)))[0]


async def everybody_gets_their_own(dispatcher: Dispatcher) -> None:
    """Whatever the test did: what other sessions ask is answered once, and rightly."""

    async def ask(number: int) -> tuple[str, str]:
        name = ("echo", "echo_thread")[number % 2]
        turn = await dispatcher.dispatch(call(name, text=f"s{number}"), session=f"s{number}")
        return f"s{number}", turn[0].data

    for asked, answered in await asyncio.gather(*(ask(number) for number in range(60))):
        assert asked == answered


@pytest.mark.parametrize("tool", ["fork_loop", "fork_thread"])
@pytest.mark.parametrize("how", ["os", "pty"])
async def test_a_fork_of_a_worker_is_refused(dispatcher: Dispatcher, tool: str, how: str) -> None:
    """And the author is told what to do instead."""
    result = await result_of(dispatcher, tool, how=how)
    assert (result.code, result.executed) == (Code.RAISED, Executed.YES)
    assert result.error is not None
    assert "cannot be forked" in result.error
    assert "run_in='process'" in result.error


@pytest.mark.parametrize("tool", ["fork_loop", "fork_thread"])
@pytest.mark.parametrize("how", ["name", "posix", "libc"])
async def test_a_fork_that_comes_about_otherwise_ends_at_once(
    dispatcher: Dispatcher, tool: str, how: str
) -> None:
    result = await result_of(dispatcher, tool, how=how)
    if how == "name" and not result.ok:
        assert "cannot be forked" in str(result.error)
    else:
        assert result.data == "the fork ended with 70"


async def test_a_fork_that_stays_in_the_loop_ends_soon(dispatcher: Dispatcher) -> None:
    assert (await result_of(dispatcher, "fork_and_wait")).data == "forked"

    async def is_alone() -> bool:
        return (await result_of(dispatcher, "family")).data == []

    await eventually(is_alone, "the fork is gone")


@pytest.mark.parametrize("tool", ["run_loop", "run_thread"])
@pytest.mark.parametrize("how", ["plain", "preexec"])
async def test_programs_start_as_ever(dispatcher: Dispatcher, tool: str, how: str) -> None:
    assert (await result_of(dispatcher, tool, how=how)).data == "hi"


async def test_multiprocessing_works_where_it_does_not_fork(dispatcher: Dispatcher) -> None:
    assert (await result_of(dispatcher, "compute", method="spawn")).data == [1, 2]
    refused = await result_of(dispatcher, "compute", method="fork")
    assert "cannot be forked" in str(refused.error)

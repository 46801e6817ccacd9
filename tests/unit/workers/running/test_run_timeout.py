"""Signs of life: what counts, what is passed on, and what a tool must have to give them."""

import asyncio
import time

import msgspec
import pytest

from toolpool import ToolContext, tool
from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.workers.running.run_timeout import BeatThrottle, RunTimeout


async def test_silence_ends_a_run_once_and_says_so() -> None:
    told: list[str] = []
    life = RunTimeout(30.0, 0.05, lambda: told.append("silent"))
    with pytest.raises(TimeoutError):
        async with life:
            await asyncio.Event().wait()
    assert (life.fell_silent, told) == (True, ["silent"])
    assert (life.outcome("and more").silence, life.outcome("and more").error) == (0.05, "and more")


async def test_a_timeout_is_not_treated_as_a_lost_worker() -> None:
    life = RunTimeout(0.01, 30.0)
    with pytest.raises(TimeoutError):
        async with life:
            await asyncio.Event().wait()
    assert (life.fell_silent, life.outcome().error) == (False, "")


async def test_a_loop_that_was_held_up_hears_what_came_meanwhile() -> None:
    """What stood still was the worker, not the tool."""
    async with RunTimeout(30.0, 0.05) as life:
        asyncio.get_running_loop().call_soon(time.sleep, 0.2)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.02, life.beat)
        await asyncio.sleep(0.06)
    assert not life.fell_silent


def test_few_signs_of_life_are_passed_on() -> None:
    passed: list[None] = []
    gate = BeatThrottle(lambda: passed.append(None), 2.0)
    for _ in range(1000):
        gate()
    assert len(passed) == 1
    unwatched = BeatThrottle(lambda: passed.append(None), None)
    unwatched()
    assert len(passed) == 1


def test_a_tool_that_cannot_give_a_sign_of_life_is_refused() -> None:
    with pytest.raises(ToolDeclarationInvalid, match="parameter of type ToolContext"):

        @tool(heartbeat=1)
        async def mute() -> None:
            """Say nothing."""


@pytest.mark.parametrize("heartbeat", [0, -1, float("inf"), float("nan")])
def test_a_heartbeat_is_a_number_of_seconds(heartbeat: float) -> None:
    with pytest.raises(ToolDeclarationInvalid, match="heartbeat must be"):

        @tool(heartbeat=heartbeat)
        async def beats(ctx: ToolContext) -> None:
            """Beat."""


def test_a_heartbeat_is_part_of_a_tool_where_it_is_set() -> None:
    """One without keeps the digest that older versions give it."""

    @tool(name="beats", heartbeat=5)
    async def first(ctx: ToolContext) -> None:
        """Beat."""

    @tool(name="beats")
    async def second(ctx: ToolContext) -> None:
        """Beat."""

    assert first.spec.silence == 5.0
    assert second.spec.silence is None
    assert first.spec.digest != second.spec.digest
    assert b"heartbeat" not in msgspec.json.encode(second.spec)

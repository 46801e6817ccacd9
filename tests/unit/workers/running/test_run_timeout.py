"""Signs of life: what counts, what is passed on, and what a tool must have to give them."""

import asyncio
import contextlib
import time
import weakref
from typing import Any

import msgspec
import pytest

from toolpool import ToolContext, tool
from toolpool.contract.errors import ToolDeclarationInvalid
from toolpool.workers.running.run_timeout import BeatThrottle, RunTimeout, RunTimers


async def test_silence_ends_a_run_once_and_says_so() -> None:
    told: list[str] = []
    life = RunTimeout(RunTimers(), 30.0, 0.05, lambda: told.append("silent"))
    with pytest.raises(TimeoutError):
        async with life:
            await asyncio.Event().wait()
    assert (life.fell_silent, told) == (True, ["silent"])
    assert (life.outcome("and more").silence, life.outcome("and more").error) == (0.05, "and more")


async def test_a_timeout_is_not_treated_as_a_lost_worker() -> None:
    life = RunTimeout(RunTimers(), 0.01, 30.0)
    with pytest.raises(TimeoutError):
        async with life:
            await asyncio.Event().wait()
    assert (life.fell_silent, life.outcome().error) == (False, "")


async def test_a_loop_that_was_held_up_hears_what_came_meanwhile() -> None:
    """What stood still was the worker, not the tool."""
    async with RunTimeout(RunTimers(), 30.0, 0.05) as life:
        asyncio.get_running_loop().call_soon(time.sleep, 0.2)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.02, life.beat)
        await asyncio.sleep(0.06)
    assert not life.fell_silent


async def test_each_of_many_runs_ends_at_its_own_time() -> None:
    timers, ended = RunTimers(), dict[str, float]()

    async def run(name: str, seconds: float) -> None:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            async with RunTimeout(timers, seconds, None):
                await asyncio.Event().wait()
        ended[name] = time.monotonic() - began

    times = {"long": 0.3, "short": 0.05, "middle": 0.15, "equal": 0.15}
    await asyncio.gather(*(run(name, seconds) for name, seconds in times.items()))
    first, *_, last = ended
    assert (first, last) == ("short", "long")
    assert all(ended[name] >= seconds for name, seconds in times.items())


async def test_a_run_whose_cancel_raises_takes_no_timeout_from_the_others() -> None:
    timers, loop = RunTimers(), asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)

    class Stubborn(asyncio.Future[None]):
        def cancel(self, msg: Any | None = None) -> bool:
            raise RuntimeError("not now")

    waits_on = Stubborn()

    async def stubborn() -> None:
        async with RunTimeout(timers, 0.02, None):
            await waits_on

    first = asyncio.ensure_future(stubborn())
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        async with RunTimeout(timers, 0.05, None):
            await asyncio.wait_for(asyncio.Event().wait(), 10)
    waits_on.set_result(None)
    await asyncio.gather(first, return_exceptions=True)


async def test_runs_that_end_in_time_are_not_cancelled_and_not_kept() -> None:
    timers = RunTimers()
    for _ in range(1_000):
        async with RunTimeout(timers, 30.0, None):
            await asyncio.sleep(0)
    assert len(timers._ends) < 300
    with pytest.raises(TimeoutError):  # the timers still work
        async with RunTimeout(timers, 0.01, None):
            await asyncio.Event().wait()
    async with RunTimeout(timers, 0.01, None):
        pass
    await asyncio.sleep(0.05)  # its timeout would come now


async def test_what_a_run_refers_to_is_freed_at_its_end() -> None:
    class Large:
        def told(self) -> None:
            """Nothing."""

    timers, large = RunTimers(), Large()
    watched = weakref.ref(large)
    async with RunTimeout(timers, 30.0, None, large.told):
        pass
    del large
    assert watched() is None


@pytest.mark.parametrize("first", ["host", "timeout"])
async def test_a_run_that_its_host_cancels_stays_cancelled(first: str) -> None:
    async def run() -> None:
        async with RunTimeout(RunTimers(), 0.02, None):
            task = asyncio.current_task()
            assert task is not None
            if first == "host":
                task.cancel()
            try:
                await asyncio.Event().wait()
            finally:
                if first == "timeout":
                    task.cancel()
                time.sleep(0.03)  # the timeout comes as well
                if first == "host":
                    await asyncio.sleep(0.01)

    task = asyncio.ensure_future(run())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_tool_that_ends_although_it_was_cancelled_has_not_timed_out() -> None:
    task = asyncio.current_task()
    assert task is not None
    async with RunTimeout(RunTimers(), 0.01, None):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
    assert task.cancelling() == 0
    await asyncio.sleep(0)


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

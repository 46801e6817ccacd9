"""An explicit cancel ends a call through any dispatcher, or says that it did not."""

import asyncio
from typing import Any

import pytest

from tests.integration.fleet import call
from tests.integration.twins import Gate, alone, second
from tests.waiting import eventually
from toolpool import Tool, tool
from toolpool.contract.errors import ServerUnavailable
from toolpool.contract.outcome import Code, Executed


def failing(gate: Gate, starts: list[str], *, retries: int) -> Tool:
    """A read that waits at the gate, notes its start and fails, in each of its tries."""

    @tool(effects="read", retries=retries)
    async def flaky() -> str:
        """Fail."""
        await gate.wait("start")
        starts.append("start")
        raise ConnectionError("not yet")

    return flaky


async def by_the_host(dispatcher: Any, handle: str) -> tuple[Any, Any]:
    result = await dispatcher.task_cancel(handle, session="s")
    return result.code, result.executed


async def by_the_model(dispatcher: Any, handle: str) -> tuple[Any, Any]:
    turn = await dispatcher.dispatch(call("task_cancel", handle=handle), session="s")
    answer = turn[0].data if turn[0].ok else turn[0].payload()
    return answer.get("code"), answer.get("executed")


@pytest.mark.parametrize("cancel", [by_the_host, by_the_model])
async def test_a_cancel_through_another_dispatcher_stops_the_tool_and_tells_the_owner(
    cancel: Any,
) -> None:
    gate, stopped = Gate(), []

    @tool(effects="write", background=True)
    async def work() -> None:
        """Wait."""
        try:
            await gate.wait("work")
        except asyncio.CancelledError:
            stopped.append("work")
            raise

    async with alone([work], background_wait=0.02) as owner, second(owner) as other:
        handle = str((await owner.dispatch(call("work"), session="s"))[0].handle)
        await eventually(lambda: gate.came, "it runs")
        assert await cancel(other, handle) == (Code.CANCELLED, Executed.UNKNOWN)
        await eventually(lambda: stopped, "the tool is stopped")
        result = await owner.task_result(handle, session="s", wait=5.0)
        assert result is not None
        assert result.code is Code.CANCELLED


async def test_a_session_is_cancelled_for_every_dispatcher_that_asked() -> None:
    gate = Gate()

    @tool(effects="write")
    async def work() -> None:
        """Wait."""
        await gate.wait("work")

    async with alone([work]) as owner, second(owner) as other:
        turns = [
            asyncio.ensure_future(each.dispatch(call("work"), session="s", turn="t"))
            for each in (owner, other)
        ]
        await eventually(
            lambda: gate.came and owner.in_flight() == other.in_flight() == 1, "both wait for it"
        )
        await eventually(
            lambda: any(len(r.replies) == 2 for r in owner._server.records.values()),
            "the record names both",
        )
        assert await other.cancel("s") == 1
        results = await asyncio.wait_for(asyncio.gather(*turns), 5.0)
    assert [turn[0].code for turn in results] == [Code.CANCELLED] * 2


async def test_a_dispatcher_that_leaves_a_call_to_another_does_not_end_it() -> None:
    gate = Gate()

    @tool(effects="write")
    async def work() -> str:
        """Wait."""
        await gate.wait("work")
        return "done"

    async with alone([work]) as owner, second(owner) as other:
        kept, left = (
            asyncio.ensure_future(each.dispatch(call("work"), session="s", turn="t"))
            for each in (owner, other)
        )
        await eventually(
            lambda: any(len(r.replies) == 2 for r in owner._server.records.values()),
            "the record names both",
        )
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        gate.open()
        assert (await kept)[0].data == "done"


async def test_a_cancel_between_two_tries_ends_them_all() -> None:
    """The next try has no record yet, and its owner would open one."""
    gate, starts = Gate(), list[str]()
    flaky = failing(gate, starts, retries=3)
    async with alone([flaky], retry_delay=0.5) as owner, second(owner) as other:
        handle = str((await owner.dispatch(call("flaky"), session="s", wait=0.01))[0].handle)
        gate.open()
        await eventually(lambda: starts, "the first try has failed")
        await eventually(
            lambda: any(r.state == "settled" for r in owner._server.records.values()),
            "its record says so",
        )
        # In the epoch of the handle a missing record was never sent; the first try ran.
        assert await by_the_host(other, handle) == (Code.CANCELLED, Executed.YES)
        result = await owner.task_result(handle, session="s", wait=5.0)
        assert result is not None
        assert result.code is Code.CANCELLED
    assert starts == ["start"]


async def test_a_cancelled_call_that_is_asked_again_is_answered_without_waiting_to_retry() -> None:
    gate, starts = Gate(), list[str]()
    flaky = failing(gate, starts, retries=3)
    slow = {"retry_delay": 15.0}
    async with alone([flaky], **slow) as owner, second(owner, **slow) as other:
        asked = {"session": "s", "turn": "t"}
        handle = str((await owner.dispatch(call("flaky"), wait=0.01, **asked))[0].handle)
        gate.open()
        await eventually(
            lambda: any(r.state == "settled" for r in owner._server.records.values()),
            "the first try has failed",
        )
        assert (await by_the_host(other, handle))[0] is Code.CANCELLED
        for dispatcher in (owner, other):
            again = asyncio.ensure_future(dispatcher.dispatch(call("flaky"), **asked))
            assert (await asyncio.wait_for(again, 4.0))[0].code is Code.CANCELLED
    assert starts == ["start"]


async def test_a_cancel_by_the_owner_between_two_tries_holds_for_whoever_follows_the_handle() -> (
    None
):
    gate, starts = Gate(), list[str]()
    flaky = failing(gate, starts, retries=3)
    async with alone([flaky], retry_delay=0.3) as owner, second(owner, retry_delay=0.3) as other:
        handle = str((await owner.dispatch(call("flaky"), session="s", wait=0.01))[0].handle)
        following = asyncio.ensure_future(other.task_result(handle, session="s", wait=5.0))
        await eventually(lambda: other.in_flight() == 1, "the other follows it")
        gate.open()
        await eventually(lambda: starts, "the first try has failed")
        assert (await by_the_host(owner, handle))[0] is Code.CANCELLED
        result = await following
        assert result is not None
        assert result.code is Code.CANCELLED
    assert starts == ["start"]


async def test_a_call_that_its_owner_has_not_sent_is_cancelled_too() -> None:
    """It waits at a rate limit: only its owner knows it."""
    gate, starts = Gate(), []

    @tool(effects="read", rate="1/min")
    async def rare(number: int) -> int:
        """Run once a minute."""
        starts.append(number)
        await gate.wait("rare")
        return number

    async with alone([rare], queue_timeout=90.0) as owner, second(owner) as other:
        turns = [
            (await owner.dispatch(call("rare", number=n), session="s", wait=0.02))[0]
            for n in (1, 2)
        ]
        code, _ = await by_the_host(other, str(turns[1].handle))
        assert code is Code.CANCELLED
        result = await owner.task_result(str(turns[1].handle), session="s", wait=5.0)
        assert result is not None
        assert result.code is Code.CANCELLED
    assert starts == [1]


@pytest.mark.parametrize("cancel", [by_the_host, by_the_model])
async def test_a_cancel_that_the_server_does_not_confirm_says_so_and_the_call_goes_on(
    cancel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()

    @tool(effects="write", background=True)
    async def work() -> str:
        """Wait."""
        await gate.wait("work")
        return "done"

    async with alone([work], background_wait=0.02) as owner:
        handle = str((await owner.dispatch(call("work"), session="s"))[0].handle)
        await eventually(lambda: gate.came, "it runs")

        async def refuse(*args: Any, **kwargs: Any) -> Any:
            raise ServerUnavailable("step", sent=True, reason="(away)")

        monkeypatch.setattr(owner._in_flight._transport, "close_calls", refuse)
        assert await cancel(owner, handle) == (Code.QUEUE_UNREACHABLE, Executed.UNKNOWN)
        gate.open()
        result = await owner.task_result(handle, session="s", wait=5.0)
    assert result is not None
    assert result.data == "done"


async def test_a_call_that_was_cancelled_after_it_ran_is_never_said_not_to_have_run() -> None:
    gate, starts = Gate(), list[str]()
    flaky = failing(gate, starts, retries=5)
    async with alone([flaky], retry_delay=0.4) as owner, second(owner) as other:
        asked = {"session": "s", "turn": "t"}
        handle = str((await owner.dispatch(call("flaky"), wait=0.01, **asked))[0].handle)
        gate.open()
        await eventually(
            lambda: any(r.state == "settled" for r in owner._server.records.values()),
            "the first try has failed",
        )
        told = [(await owner.task_cancel(handle, session="s")).executed]
        for dispatcher in (owner, other):
            told.append((await dispatcher.task_cancel(handle, session="s")).executed)
            result = await dispatcher.task_result(handle, session="s", wait=5.0)
            assert result is not None
            told.append(result.executed)
            told.append((await dispatcher.dispatch(call("flaky"), **asked))[0].executed)
    assert told == [Executed.YES] * 7


async def test_a_cancel_that_was_not_confirmed_is_tried_again_and_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, stopped = Gate(), []

    @tool(effects="write", background=True)
    async def work() -> None:
        """Wait."""
        try:
            await gate.wait("work")
        except asyncio.CancelledError:
            stopped.append("work")
            raise

    async with alone([work], background_wait=0.02) as owner:
        handle = str((await owner.dispatch(call("work"), session="s"))[0].handle)
        await eventually(lambda: gate.came, "it runs")
        transport = owner._in_flight._transport
        close_calls = transport.close_calls

        async def refuse(*args: Any, **kwargs: Any) -> Any:
            raise ServerUnavailable("step", sent=True, reason="(away)")

        monkeypatch.setattr(transport, "close_calls", refuse)
        assert await owner.cancel("s") == 0
        monkeypatch.setattr(transport, "close_calls", close_calls)
        await eventually(lambda: stopped, "the tool is stopped all the same")
        result = await owner.task_result(handle, session="s", wait=5.0)
    assert result is not None
    assert result.code is Code.CANCELLED


@pytest.mark.parametrize("asked_of", ["owner", "other"])
async def test_a_cancel_with_the_server_away_is_an_answer_and_no_exception(
    asked_of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()

    @tool(effects="write", background=True)
    async def work() -> None:
        """Wait."""
        await gate.wait("work")

    async with alone([work], background_wait=0.02) as owner, second(owner) as other:
        handle = str((await owner.dispatch(call("work"), session="s"))[0].handle)
        dispatcher: Any = owner if asked_of == "owner" else other

        async def away(*args: Any, **kwargs: Any) -> Any:
            raise ServerUnavailable("step", sent=True, reason="(away)")

        for name in ("handle", "states", "close_calls"):
            monkeypatch.setattr(dispatcher._in_flight._transport, name, away)
        result = await dispatcher.task_cancel(handle, session="s")
        assert (result.code, result.executed) == (Code.QUEUE_UNREACHABLE, Executed.UNKNOWN)

"""Cancelled calls: nothing of them starts any more, and each says whether it had (R34)."""

import asyncio
from typing import Any

import pytest

from tests.integration.fleet import call
from tests.integration.twins import Gate, alone
from tests.waiting import eventually
from toolpool import ServerUnavailable, tool
from toolpool.contract.outcome import Code, Executed
from toolpool.dispatcher.calls.pending import Stage


async def test_the_rest_of_a_cancelled_turn_is_not_run() -> None:
    gate, started = Gate(), []

    @tool(effects="read")
    async def read() -> None:
        """Wait."""
        await gate.wait("read")

    @tool(effects="write")
    async def write() -> None:
        """Write."""
        started.append("write")

    calls = [{"id": "r", "name": "read", "input": {}}, {"id": "w", "name": "write", "input": {}}]
    async with alone([read, write]) as dispatcher:
        turn = asyncio.ensure_future(dispatcher.dispatch(calls, session="s"))
        await eventually(lambda: gate.came, "the read runs")
        assert await dispatcher.cancel("s") == 2
        results = await turn
        only = asyncio.ensure_future(dispatcher.dispatch(calls, session="s2"))
        await eventually(lambda: len(gate.came) == 2, "the next read runs")
        assert await dispatcher.cancel("s2", call_id="w") == 1
        gate.open()
        rest = await only
    assert [result.code for result in results] == [Code.CANCELLED] * 2
    assert [result.executed for result in results] == [Executed.UNKNOWN, Executed.NO]
    assert [result.code for result in rest] == [None, Code.CANCELLED]
    assert started == []


async def test_what_is_cancelled_on_its_way_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its message arrives when its call has been answered."""
    started = []

    @tool
    async def work() -> None:
        """Work."""
        started.append("work")

    async with alone([work]) as dispatcher:
        transport, way = dispatcher._in_flight._transport, Gate()
        publish = transport.publish

        async def slowly(*args: Any, **kwargs: Any) -> Any:
            await way.wait("publish")
            return await publish(*args, **kwargs)

        monkeypatch.setattr(transport, "publish", slowly)
        worker = dispatcher._worker._executor
        worker._draining = True  # so that the cancel is not behind the claim
        turn = asyncio.ensure_future(dispatcher.dispatch(call("work"), session="s"))
        await eventually(lambda: way.came, "it is on its way")
        await dispatcher.cancel("s")
        result = (await turn)[0]
        way.open()
        await eventually(
            lambda: [r.state for r in dispatcher._server.records.values()] == ["settled"],
            "its record is closed",
        )
        worker._draining = False
        worker.claim_more()
        await asyncio.sleep(0.05)
    assert (result.code, result.executed) == (Code.CANCELLED, Executed.UNKNOWN)
    assert started == []


@pytest.mark.parametrize("how", ["cancel", "abort"])
async def test_a_cancel_that_the_server_did_not_confirm_is_repeated(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is full or does not answer for a while; then the worker has a slot again."""
    gate, started, faults = Gate(), [], iter([True] * 3)

    @tool(effects="read")
    async def block() -> None:
        await gate.wait("block")

    @tool(effects="write")
    async def pay() -> None:
        started.append("pay")

    async with alone([block, pay], slots_loop=1) as dispatcher:
        transport = dispatcher._in_flight._transport
        close_calls, closed = transport.close_calls, []

        async def fails_at_first(*args: Any, **options: Any) -> Any:
            if next(faults, False):
                raise ServerUnavailable("close", sent=False)
            closed.append(await close_calls(*args, **options))
            return closed[-1]

        blocking = asyncio.ensure_future(dispatcher.dispatch(call("block"), session="a"))
        await eventually(lambda: gate.came, "the only slot is taken")
        paying = asyncio.ensure_future(dispatcher.dispatch(call("pay"), session="b"))
        [pending] = await eventually_open(dispatcher, "pay")
        monkeypatch.setattr(transport, "close_calls", fails_at_first)
        if how == "cancel":
            assert await dispatcher.cancel("b") == 1
            assert (await paying)[0].code is Code.CANCELLED
        else:
            paying.cancel()
            await asyncio.gather(paying, return_exceptions=True)
        await eventually(lambda: closed, "the cancel is confirmed at last")
        gate.open()
        assert (await blocking)[0].ok
        assert (await dispatcher.dispatch(call("block"), session="a"))[0].ok
    assert (started, pending.outcome.executed) == ([], Executed.UNKNOWN)


async def eventually_open(dispatcher: Any, tool: str) -> list[Any]:
    """The open calls of a tool, as soon as one of them is queued."""

    def found() -> list[Any]:
        calls = dispatcher._in_flight.all_open()
        return [p for p in calls if p.call.name == tool and p.stage is Stage.QUEUED]

    await eventually(found, "the call is queued")
    return found()


async def test_a_cancelled_call_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its failure comes while the cancel is on its way."""
    gate, way = Gate(), Gate()

    @tool(effects="read", retries=3)
    async def fails() -> None:
        """Fail."""
        await gate.wait("start")
        raise ConnectionError("not yet")

    async with alone([fails], retry_delay=0.01) as dispatcher:
        transport = dispatcher._in_flight._transport
        close_calls = transport.close_calls

        async def slowly(*args: Any, **kwargs: Any) -> Any:
            await way.wait("close")
            return await close_calls(*args, **kwargs)

        monkeypatch.setattr(transport, "close_calls", slowly)
        turn = asyncio.ensure_future(dispatcher.dispatch(call("fails"), session="s"))
        await eventually(lambda: gate.came, "it runs")
        cancelling = asyncio.ensure_future(dispatcher.cancel("s"))
        await eventually(lambda: way.came, "the cancel is on its way")
        gate.open()
        result = (await turn)[0]
        way.open()
        await cancelling
    assert (result.code, result.attempts) == (Code.RAISED, 1)
    assert gate.came == ["start"]


async def test_a_dispatch_cancelled_after_a_hand_over_cancels_the_others() -> None:
    """The handle was not delivered to anybody, but its call may be listed and asked for."""
    gate = Gate()

    @tool(background=True)
    async def in_background() -> None:
        """Wait."""
        await gate.wait("background")

    @tool
    async def beside() -> None:
        """Wait."""
        try:
            await gate.wait("beside")
        except asyncio.CancelledError:
            gate.came.append("cancelled")
            raise

    calls = [{"id": n, "name": n, "input": {}} for n in ("in_background", "beside")]
    async with alone([in_background, beside], background_wait=0.05) as dispatcher:
        turn = asyncio.ensure_future(dispatcher.dispatch(calls, session="s"))
        await eventually(lambda: len(gate.came) == 2, "both run")

        async def is_handed_over() -> bool:
            return bool(await dispatcher.task_list(session="s"))

        await eventually(is_handed_over, "one is handed over")
        await asyncio.sleep(0.05)
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)
        await eventually(lambda: "cancelled" in gate.came, "the other is cancelled")
        assert dispatcher.in_flight() == 1


async def test_a_call_that_two_asked_for_ends_when_neither_wants_it() -> None:
    gate, ended = Gate(), []

    @tool
    async def work() -> None:
        """Wait."""
        try:
            await gate.wait("work")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async with alone([work]) as dispatcher:
        asked = [
            asyncio.ensure_future(dispatcher.dispatch(call("work"), session="s", turn="t"))
            for _ in range(2)
        ]
        await eventually(lambda: gate.came, "it runs")
        asked[0].cancel()
        await asyncio.gather(asked[0], return_exceptions=True)
        assert dispatcher.in_flight() == 1
        asked[1].cancel()
        await asyncio.gather(asked[1], return_exceptions=True)
        await eventually(lambda: ended, "it is cancelled")
        assert dispatcher.in_flight() == 0


async def test_the_pool_s_own_tools_can_be_cancelled_ahead_and_say_honestly_whether_they_ran() -> (
    None
):
    gate = Gate()

    @tool(effects="write")
    async def write() -> None:
        """Wait."""
        await gate.wait("write")

    @tool(background=True)
    async def work() -> None:
        """Wait."""
        await gate.wait("work")

    async with alone([write, work], background_wait=0.02) as dispatcher:
        handle = (await dispatcher.dispatch(call("work"), session="s"))[0].handle
        calls = [
            {"id": "w", "name": "write", "input": {}},
            {"id": "k", "name": "task_cancel", "input": {"handle": handle}},
        ]
        turn = asyncio.ensure_future(dispatcher.dispatch(calls, session="s"))
        await eventually(lambda: "write" in gate.came, "the write runs")
        assert await dispatcher.cancel("s", call_id="k") == 1
        gate.came.clear()
        gate.open()
        results = await turn
    assert (results[1].code, results[1].executed) == (Code.CANCELLED, Executed.NO)

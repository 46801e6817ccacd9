"""The same call asked again, by the same or another dispatcher, at any time (R18)."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.integration.fleet import call
from tests.integration.twins import Gate, alone, second
from tests.waiting import eventually
from toolpool import tool
from toolpool.contract.outcome import Code, Executed
from toolpool.pool import InMemoryDispatcher
from toolpool.workers.tool import Tool

SAME: dict[str, Any] = {"session": "s", "turn": "t"}


def gated(gate: Gate, **options: Any) -> Tool:
    """A write that waits at a gate."""

    @tool(effects="write", **options)
    async def write(label: str) -> str:
        """Write."""
        await gate.wait(label)
        return label

    return write


def flaky(gate: Gate, *, failures: int = 1) -> Tool:
    """A read that fails at first, and then waits at a gate."""
    starts: list[str] = []

    @tool(effects="read", retries=2, name="flaky")
    async def read() -> int:
        """Read."""
        starts.append("start")
        if len(starts) <= failures:
            raise ConnectionError("not yet")
        await gate.wait("flaky")
        return len(starts)

    return read


def nothing_is_kept_by(dispatcher: InMemoryDispatcher) -> bool:
    """Whether its server has no record of any call."""
    server = dispatcher._server
    return all(server.state(key) is None for key in [*server.records])


async def test_a_call_asked_during_a_retry_joins_it() -> None:
    """Both have its result, and nothing is left behind."""
    gate = Gate()
    async with alone([flaky(gate)], retry_delay=0.01, in_flight_per_session=1) as dispatcher:
        asked = [asyncio.ensure_future(dispatcher.dispatch(call("flaky"), **SAME))]
        await eventually(lambda: gate.came, "the retry runs")
        asked.append(asyncio.ensure_future(dispatcher.dispatch(call("flaky"), **SAME)))
        await asyncio.sleep(0)
        gate.open()
        assert [(await turn)[0].data for turn in asked] == [2, 2]
        assert dispatcher.in_flight() == 0
        queue = next(iter(dispatcher._in_flight._pump._queues.values()))
        assert (queue._in_flight, queue._unstarted, queue._flows) == (0, 0, {})


async def test_a_retry_goes_on_for_the_first_dispatcher_if_the_second_leaves_in_its_pause() -> None:
    gate = Gate()
    async with alone([flaky(gate)], retry_delay=0.6) as one:
        staying = asyncio.ensure_future(one.dispatch(call("flaky"), **SAME))
        records = one._server.records
        await eventually(
            lambda: [r.state for r in records.values()] == ["settled"], "it failed and waits"
        )
        async with second(one) as other:
            leaving = asyncio.ensure_future(other.dispatch(call("flaky"), **SAME))
            await eventually(lambda: gate.came, "the second one has sent the retry")
        assert (await leaving)[0].executed is not Executed.NO
        gate.open()
        stayed = (await staying)[0]
    assert (stayed.data, gate.came) == (2, ["flaky"])


async def test_a_call_that_ran_keeps_its_result_though_its_tool_is_denied_now() -> None:
    """`aborted.denied` would say that it did not run."""
    gate = Gate()
    gate.open()
    async with alone([gated(gate)]) as dispatcher:
        first = (await dispatcher.dispatch(call("write", label="x"), **SAME))[0]
        await dispatcher.deny("write", reason="it is being repaired")
        again = (await dispatcher.dispatch(call("write", label="x"), **SAME))[0]
        other = (await dispatcher.dispatch(call("write", label="y"), **SAME))[0]
    assert (first.data, again.data) == ("x", "x")
    assert (other.code, other.executed) == (Code.DENIED, Executed.NO)
    assert gate.came == ["x"]


async def test_a_call_that_waits_here_and_runs_elsewhere_is_not_said_not_to_have_run() -> None:
    """The second dispatcher has no room for it until its queue wait is over."""
    gate, busy = Gate(), Gate()

    @tool
    async def hold() -> None:
        """Keep the session's only place."""
        await busy.wait("hold")

    async with (
        alone([gated(gate), hold]) as one,
        second(one, queue_timeout=0.4, in_flight_per_session=1) as other,
    ):
        first = asyncio.ensure_future(one.dispatch(call("write", label="x"), **SAME))
        await eventually(lambda: gate.came, "it runs for the first")
        blocking = asyncio.ensure_future(other.dispatch(call("hold"), session="s", turn="u"))
        await eventually(lambda: busy.came, "the second's place is taken")
        again = asyncio.ensure_future(other.dispatch(call("write", label="x"), **SAME))
        await asyncio.sleep(0.6)  # past the second's queue wait
        gate.open()
        results = [(await turn)[0] for turn in (first, again)]
        busy.open()
        await blocking
    assert [result.data for result in results] == ["x", "x"]
    assert gate.came == ["x"]


async def test_one_that_is_closed_leaves_its_calls_to_those_who_wait_for_them() -> None:
    """An old host that is shut down does not cancel what the new one has asked again."""
    gate = Gate()
    async with alone([gated(gate)]) as one, second(one) as other:
        leaving = asyncio.ensure_future(other.dispatch(call("write", label="x"), **SAME))
        await eventually(lambda: gate.came, "it runs")
        staying = asyncio.ensure_future(one.dispatch(call("write", label="x"), **SAME))
        await eventually(lambda: one.in_flight() == 1, "the other has asked")
        await eventually(
            lambda: [len(r.replies) for r in one._server.records.values()] == [2], "and attached"
        )
        await other.close()
        left = (await leaving)[0]
        gate.open()
        stayed = (await staying)[0]
    assert (left.code, left.executed) == (Code.CANCELLED, Executed.UNKNOWN)
    assert (stayed.data, stayed.executed) == ("x", Executed.YES)


async def test_the_last_of_many_askers_is_answered_at_once() -> None:
    """Eight are noted; the ninth takes the place of the first, who is the likeliest to be dead."""
    gate = Gate()
    async with alone([gated(gate)], queue_timeout=2.0) as one:
        asked = [asyncio.ensure_future(one.dispatch(call("write", label="x"), **SAME))]
        await eventually(lambda: gate.came, "it runs")
        others = [second(one) for _ in range(9)]
        for other in others:
            dispatcher = await other.__aenter__()
            asked.append(
                asyncio.ensure_future(dispatcher.dispatch(call("write", label="x"), **SAME))
            )
            await eventually(lambda d=dispatcher: d.in_flight() == 1, "it is asked")
            await asyncio.sleep(0.01)
        gate.open()
        assert (await asyncio.wait_for(asked[-1], 1.0))[0].data == "x"
        for other in others:
            await other.__aexit__(None, None, None)
        await asyncio.gather(*asked)


async def test_asking_again_for_a_failure_is_no_loop() -> None:
    """R30: the call failed once, however often its result is asked for."""

    @tool(effects="write")
    async def fails() -> None:
        """Fail."""
        starts.append("start")
        raise ValueError("no")

    starts: list[str] = []
    async with alone([fails]) as dispatcher:
        codes = [(await dispatcher.dispatch(call("fails"), **SAME))[0].code for _ in range(6)]
    assert codes == [Code.RAISED] * 6
    assert starts == ["start"]


async def test_asking_again_for_a_failure_opens_no_circuit() -> None:
    """The breaker counts what tools do, not what is said of it again."""

    @tool
    async def fails() -> None:
        """Fail."""
        raise ValueError("no")

    async with alone([fails], circuit_minimum_calls=3) as dispatcher:
        for _ in range(6):
            assert (await dispatcher.dispatch(call("fails"), **SAME))[0].code is Code.RAISED
        assert (await dispatcher.dispatch(call("fails")))[0].code is Code.RAISED


async def test_several_askers_of_one_failure_make_no_loop() -> None:
    """R30: it failed once, though three were told at once."""
    gate = Gate()

    @tool(effects="write")
    async def fails() -> None:
        """Fail."""
        await gate.wait("fails")
        raise ValueError("no")

    async with alone([fails]) as dispatcher:
        asked = [
            asyncio.ensure_future(dispatcher.dispatch(call("fails"), **SAME)) for _ in range(4)
        ]
        await eventually(lambda: gate.came, "it runs")
        gate.open()
        assert {(await turn)[0].code for turn in asked} == {Code.RAISED}
        later = await dispatcher.dispatch(call("fails"), session="s", turn="another")
        assert later[0].code is Code.RAISED


async def test_a_stored_failure_does_not_hold_a_circuit_open() -> None:
    """It was let through to see, and says nothing about now: the next call does."""
    healthy = []

    @tool
    async def sick() -> str:
        """Fail until healthy."""
        if not healthy:
            raise ValueError("no")
        return "well"

    async with alone([sick], circuit_minimum_calls=2, circuit_reset_timeout=0.1) as dispatcher:
        for turn in ("t", "u"):
            await dispatcher.dispatch(call("sick"), session="s", turn=turn)
        assert (await dispatcher.dispatch(call("sick")))[0].code is Code.CIRCUIT_OPEN
        healthy.append("yes")
        await asyncio.sleep(0.15)
        again = (await dispatcher.dispatch(call("sick"), session="s", turn="t"))[0]
        assert again.code is Code.RAISED
        assert (await dispatcher.dispatch(call("sick")))[0].data == "well"


async def test_a_retry_that_ran_is_not_hidden_by_an_open_circuit() -> None:
    gate, starts = Gate(), []
    gate.open()

    @tool(effects="read", retries=1)
    async def flaky(label: str) -> str:
        """Fail at first, or always."""
        starts.append(label)
        if label == "never" or starts.count(label) == 1:
            raise ConnectionError("not yet")
        return "good"

    async with alone(
        [flaky], retry_delay=0.01, circuit_minimum_calls=4, circuit_failure_rate=0.5
    ) as dispatcher:
        first = (await dispatcher.dispatch(call("flaky", label="once"), **SAME))[0]
        for _ in range(3):
            await dispatcher.dispatch(call("flaky", label="never"))
        assert (await dispatcher.dispatch(call("flaky", label="x")))[0].code is Code.CIRCUIT_OPEN
        again = (await dispatcher.dispatch(call("flaky", label="once"), **SAME))[0]
    assert (first.data, again.data) == ("good", "good")
    assert starts.count("once") == 2


async def test_a_call_met_twice_on_its_way_out_takes_one_place() -> None:
    """Denied while it waits and its queue wait over: both ask the ledger for it."""
    gate = Gate()
    async with alone([gated(gate)]) as one, second(one, in_flight_per_session=1) as other:
        first = asyncio.ensure_future(one.dispatch(call("write", label="x"), **SAME))
        await eventually(lambda: gate.came, "it runs for the first")
        again = asyncio.ensure_future(other.dispatch(call("write", label="x"), **SAME))
        await eventually(lambda: other.in_flight() == 1, "it is asked again")
        pending = next(iter(other._in_flight.all_open()))
        other._in_flight._pump.queue_of(pending).adopt(pending)
        other._in_flight._pump.queue_of(pending).adopt(pending)
        gate.open()
        await asyncio.gather(first, again)
        assert other._in_flight._pump.sessions == {}


async def test_a_write_asked_again_after_its_result_has_gone_is_not_run_again() -> None:
    """R18: it is remembered much longer than its result is kept; of a read nothing is."""
    gate, starts = Gate(), list[str]()
    gate.open()

    @tool(effects="read")
    async def read() -> str:
        """Read."""
        starts.append("read")
        return "read"

    async with alone([gated(gate), read], result_ttl=0.05) as dispatcher:
        for _ in range(2):
            write = (await dispatcher.dispatch(call("write", label="x"), **SAME))[0]
            looked = (await dispatcher.dispatch(call("read", "r"), **SAME))[0]
            await eventually(lambda: nothing_is_kept_by(dispatcher), "their results have gone")
    assert (write.code, write.executed) == (Code.WORKER_LOST, Executed.UNKNOWN)
    assert "its record no longer exists" in str(write.error)
    assert not write.retryable
    assert gate.came == ["x"]
    assert looked.ok
    assert len(starts) == 2


async def test_what_ran_as_a_write_is_remembered_though_its_tool_is_a_read_by_now() -> None:
    """R18: a release says what calls may do from then on, not what one has done."""
    gate, starts = Gate(), list[str]()
    gate.open()

    @tool(name="write", effects="read")
    async def harmless(label: str) -> str:
        """Write."""
        starts.append(label)
        return label

    async with alone([gated(gate)], result_ttl=0.05) as first:
        await first.dispatch(call("write", label="x"), **SAME)
        key = next(iter(first._server.marks))
        await eventually(lambda: first._server.state(key) is None, "its result has gone")
        async with alone([harmless]) as released:
            released._server.marks = first._server.marks
            again = (await released.dispatch(call("write", label="x"), **SAME))[0]
    assert (again.code, again.executed) == (Code.WORKER_LOST, Executed.UNKNOWN)
    assert starts == []


async def test_what_may_have_been_asked_before_is_not_run_where_nothing_is_known() -> None:
    """R18: a host that starts again after a crash, on a server that lost its data."""
    gate = Gate()
    gate.open()
    async with alone([gated(gate)]) as dispatcher:
        first = (await dispatcher.dispatch(call("write", label="x"), **SAME))[0]
        again = (await dispatcher.dispatch(call("write", label="x"), **SAME, again=True))[0]
        assert (first.data, again.data) == ("x", "x"), "what is known is told"
        dispatcher._server.forget()
        lost = (await dispatcher.dispatch(call("write", label="x"), **SAME, again=True))[0]
        assert (lost.ok, lost.executed) == (False, Executed.UNKNOWN)
        with pytest.raises(ValueError, match="needs a session"):
            await dispatcher.dispatch(call("write", label="x"), again=True)
    assert gate.came == ["x"]


async def test_two_that_refuse_one_call_say_the_same_and_nobody_runs_it() -> None:
    """R8: of two dispatchers one refuses it while the other has not sent it yet."""
    gate, busy = Gate(), Gate()
    write = gated(gate)

    @tool
    async def hold() -> None:
        """Hold."""
        await busy.wait("hold")

    async with alone([write, hold], in_flight_per_session=1) as first:
        async with second(first) as other:
            held = asyncio.ensure_future(first.dispatch(call("hold"), session="s"))
            await eventually(lambda: busy.came, "the session has no room")
            waiting = asyncio.ensure_future(first.dispatch(call("write", label="x"), **SAME))
            await eventually(lambda: first.in_flight() == 2, "it waits")
            await other.deny("write", reason="it is being repaired")
            refused = (await other.dispatch(call("write", label="x"), **SAME))[0]
            assert (refused.code, refused.executed) == (Code.DENIED, Executed.NO)
            await other.allow("write")
            busy.open()
            await held
            answered = (await waiting)[0]
    assert (answered.code, answered.executed) == (Code.DENIED, Executed.NO)
    assert gate.came == []


async def test_a_repeated_refused_call_gets_the_same_answer_and_does_not_run() -> None:
    """R8: what the first was told would be made false by the second."""
    gate = Gate()
    gate.open()
    async with alone([gated(gate)]) as first, second(first) as other:
        await first.deny("write", reason="it is being repaired")
        refused = (await first.dispatch(call("write", label="x"), **SAME))[0]
        await first.allow("write")
        again = (await other.dispatch(call("write", label="x"), **SAME))[0]
        of_its_own = (await other.dispatch(call("write", "d", label="y"), **SAME))[0]
    assert (refused.code, refused.executed) == (Code.DENIED, Executed.NO)
    assert (again.code, again.executed) == (Code.DENIED, Executed.NO)
    assert of_its_own.ok
    assert gate.came == ["y"]


async def test_a_refused_call_is_run_when_it_is_asked_again_as_its_result_said() -> None:
    """R18: `retryAfter` is when; before that it is refused to everybody."""
    gate, busy = Gate(), Gate()

    @tool
    async def hold(number: int) -> None:
        """Hold."""
        await busy.wait("hold")

    tools = [gated(gate), hold]
    async with alone(tools, in_flight_per_session=1, waiting_per_session=1) as dispatcher:
        for number in range(2):
            held = asyncio.ensure_future(
                dispatcher.dispatch(call("hold", str(number), number=number), session="s")
            )
            await eventually(lambda: dispatcher.in_flight() == number + 1, "no room is left")  # noqa: B023
        full = (await dispatcher.dispatch(call("write", label="x"), **SAME))[0]
        assert full.code is Code.OVERLOADED
        assert full.retry_after is not None
        busy.open()
        gate.open()
        await held
        at_once = (await dispatcher.dispatch(call("write", label="x"), **SAME))[0]
        assert (at_once.code, at_once.executed) == (Code.OVERLOADED, Executed.NO)
        await asyncio.sleep(full.retry_after)
        again = (await dispatcher.dispatch(call("write", label="x"), **SAME))[0]
    assert again.data == "x"
    assert gate.came == ["x"]


async def test_each_asker_of_one_dispatcher_is_answered_by_its_own_deadline() -> None:
    """R33: the second has less time than the first, whose call goes on."""
    gate = Gate()
    async with alone([gated(gate)], queue_timeout=0.1) as dispatcher:
        first = asyncio.ensure_future(dispatcher.dispatch(call("write", label="x"), **SAME))
        await eventually(lambda: gate.came, "it runs")
        hurried = (await dispatcher.dispatch(call("write", label="x"), **SAME, timeout=0.1))[0]
        assert (hurried.code, hurried.executed) == (Code.TIMEOUT, Executed.UNKNOWN)
        told = "timed out after 0.1 s but still runs for another caller"
        assert told in str(hurried.error)
        assert not first.done()
        gate.open()
        answered = (await first)[0]
    assert answered.data == "x"
    assert gate.came == ["x"]


@pytest.mark.parametrize("gives_up", ["before", "after"])
async def test_what_one_has_given_up_is_cancelled_with_the_other(gives_up: str) -> None:
    """R34: nobody waits for it any more, whoever was the last."""
    gate = Gate()
    async with alone([gated(gate)], queue_timeout=0.1) as dispatcher:
        first = asyncio.ensure_future(dispatcher.dispatch(call("write", label="x"), **SAME))
        await eventually(lambda: gate.came, "it runs")
        second = asyncio.ensure_future(
            dispatcher.dispatch(call("write", label="x"), **SAME, timeout=0.1)
        )
        if gives_up == "before":
            await second
        else:
            await eventually(lambda: len(_waiters(dispatcher)) >= 2, "both wait")
        first.cancel()
        await asyncio.wait({first, second})
        await eventually(lambda: not dispatcher.in_flight(), "it is cancelled")
        worker = dispatcher._worker._executor
        await eventually(lambda: not worker.running, "and stopped")


def _waiters(dispatcher: Any) -> list[Any]:
    return [latch for each in dispatcher._in_flight.all_open() for latch in each.latches]


async def test_a_wait_budget_begins_when_it_is_asked_for() -> None:
    """R35: also of a call that somebody else asked for before, longer ago than the budget."""
    gate = Gate()
    async with alone([gated(gate)]) as dispatcher:
        first = asyncio.ensure_future(dispatcher.dispatch(call("write", label="x"), **SAME))
        await eventually(lambda: gate.came, "it runs")
        next(iter(dispatcher._in_flight.all_open())).began -= 60.0
        again = asyncio.ensure_future(
            dispatcher.dispatch(call("write", label="x"), **SAME, wait=20.0)
        )
        await eventually(lambda: len(_waiters(dispatcher)) >= 2, "both wait")
        gate.open()
        results = [(await turn)[0] for turn in (first, again)]
    assert [(result.data, result.handle) for result in results] == [("x", None)] * 2


async def test_every_one_of_very_many_askers_is_answered() -> None:
    """A record notes so many; the others look for themselves."""
    gate = Gate()
    async with alone([gated(gate)]) as first, AsyncExitStack() as stack:
        others = [await stack.enter_async_context(second(first)) for _ in range(24)]
        asked = [
            asyncio.ensure_future(each.dispatch(call("write", label="x"), **SAME))
            for each in (first, *others)
        ]
        await eventually(lambda: gate.came, "it runs")
        await eventually(lambda: all(each.in_flight() for each in others), "all wait")
        gate.open()
        async with asyncio.timeout(10.0):
            results = [(await turn)[0] for turn in asked]
    assert {result.data for result in results} == {"x"}
    assert gate.came == ["x"]


async def test_a_rejection_holds_at_every_dispatcher_and_says_if_the_call_runs_at_another() -> None:
    gate = Gate()
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(alone([gated(gate)]))
        other = await stack.enter_async_context(second(one))
        rejected = (await one.dispatch(call("write", label="a"), only=[], **SAME))[0]
        elsewhere = (await other.dispatch(call("write", label="a"), **SAME))[0]
        assert (rejected.code, rejected.executed) == (Code.UNKNOWN_TOOL, Executed.NO)
        assert (elsewhere.code, elsewhere.executed) == (Code.UNKNOWN_TOOL, Executed.NO)
        running = asyncio.ensure_future(other.dispatch(call("write", label="b"), **SAME))
        await eventually(lambda: gate.came, "it runs")
        rejected = (await one.dispatch(call("write", label="b"), only=[], **SAME))[0]
        assert (rejected.code, rejected.executed) == (Code.UNKNOWN_TOOL, Executed.UNKNOWN)
        gate.open()
        assert (await running)[0].ok
    assert gate.came == ["b"]

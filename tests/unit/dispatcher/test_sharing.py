"""Equal reads share a run, or a result that is kept, where their tool says so (R56)."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.fleet import call
from tests.integration.twins import Gate, alone, second
from tests.waiting import eventually
from toolpool import (
    Allow,
    AskApproval,
    Deny,
    Dispatcher,
    Hooks,
    Observer,
    Rewrite,
    ToolContext,
    ToolError,
    tool,
)
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.settings import Settings
from toolpool.dispatcher.observer import CallFacts, Ended
from toolpool.workers.tool import Tool


def gated(gate: Gate, **options: Any) -> Tool:
    """A shared read that waits at a gate, and says how often it was begun."""

    @tool(effects="read", name="look", **({"single_flight": True} | options))
    async def look(what: Any = None) -> list[Any]:
        """Look."""
        await gate.wait("look")
        return [what, len(gate.came)]

    return look


def counted(begun: list[Any], **options: Any) -> Tool:
    """A shared read that notes each run, and tells its number."""

    @tool(effects="read", name="look", **options)
    async def look(what: Any = None) -> int:
        """Look."""
        begun.append(what)
        return len(begun)

    return look


async def _asked(dispatcher: Any, count: int, **arguments: Any) -> "list[asyncio.Future[Any]]":
    asked = [
        asyncio.ensure_future(
            dispatcher.dispatch(call("look", f"c{n}", **arguments), session=f"s{n}")
        )
        for n in range(count)
    ]
    await eventually(lambda: dispatcher.in_flight() >= count, "all were asked")
    return asked


async def _results(asked: "list[asyncio.Future[Any]]") -> list[Any]:
    return [(await one)[0] for one in asked]


async def test_equal_calls_in_flight_share_one_run_of_the_whole_fleet() -> None:
    """Each has a result of its own, under its own id."""
    gate = Gate()
    async with alone([gated(gate)]) as one, second(one) as other:
        asked = await _asked(one, 5) + await _asked(other, 5)
        await eventually(lambda: gate.came, "it runs")
        gate.open()
        results = await _results(asked)
        assert one.in_flight() == other.in_flight() == 0
    assert gate.came == ["look"]
    assert [result.data for result in results] == [[None, 1]] * 10
    assert [result.call_id for result in results] == [f"c{n}" for n in range(5)] * 2
    told = [result.note for result in results]
    assert told.count(None) == 1, "whose call it is"
    assert all("equal call" in note for note in told if note)


async def test_calls_without_it_run_each_by_itself() -> None:
    begun: list[Any] = []
    async with alone([counted(begun)]) as dispatcher:
        await _results(await _asked_at_once(dispatcher, 4))
    assert len(begun) == 4


async def _asked_at_once(dispatcher: Any, count: int) -> "list[asyncio.Future[Any]]":
    return [
        asyncio.ensure_future(dispatcher.dispatch(call("look", f"c{n}"), session=f"s{n}"))
        for n in range(count)
    ]


async def test_a_run_that_is_over_is_not_shared_without_a_cache() -> None:
    begun: list[Any] = []
    async with alone([counted(begun, single_flight=True)]) as dispatcher:
        results = [(await dispatcher.dispatch(call("look")))[0] for _ in range(3)]
    assert [result.data for result in results] == [1, 2, 3]
    assert [result.note for result in results] == [None] * 3


async def test_a_kept_result_is_given_to_equal_calls_until_it_is_too_old() -> None:
    begun: list[Any] = []
    async with alone([counted(begun, cache_seconds=0.5)]) as one, second(one) as other:
        first = (await one.dispatch(call("look"), session="a"))[0]
        again = (await one.dispatch(call("look", "x"), session="b"))[0]
        elsewhere = (await other.dispatch(call("look", "y")))[0]

        async def is_run_again() -> bool:
            return bool((await one.dispatch(call("look")))[0].data == 2)

        await eventually(is_run_again, "it is too old")
    assert [first.data, again.data, elsewhere.data] == [1, 1, 1]
    assert (first.note, again.call_id, elsewhere.call_id) == (None, "x", "y")
    assert "0.0 s old" in str(again.note) and "s old" in str(elsewhere.note)
    assert again.executed is Executed.YES


@pytest.mark.parametrize(
    "one_and_other",
    [
        ({"what": 1}, {"what": 1.0}),
        ({"what": "1"}, {"what": 1}),
        ({"what": True}, {"what": 1}),
        ({"what": [1, 2]}, {"what": [2, 1]}),
        ({"what": {"a": {"b": 1}}}, {"what": {"a": {"b": 2}}}),
    ],
)
async def test_other_arguments_are_other_calls(one_and_other: Any) -> None:
    begun: list[Any] = []
    async with alone([counted(begun, cache_seconds=60)]) as dispatcher:
        for arguments in one_and_other:
            await dispatcher.dispatch(call("look", **arguments))
    assert len(begun) == 2


async def test_the_order_of_keys_makes_no_difference() -> None:
    begun: list[Any] = []
    async with alone([counted(begun, cache_seconds=60)]) as dispatcher:
        await dispatcher.dispatch(call("look", what={"a": 1, "b": {"c": 2, "d": 3}}))
        await dispatcher.dispatch(call("look", what={"b": {"d": 3, "c": 2}, "a": 1}))
    assert len(begun) == 1


async def test_arguments_that_are_repaired_are_equal_to_those_that_need_not_be() -> None:
    """What would run counts, not what the model wrote."""
    begun: list[Any] = []

    @tool(effects="read", cache_seconds=60)
    async def count_to(number: int) -> int:
        """Count."""
        begun.append(number)
        return number

    async with alone([count_to]) as dispatcher:
        await dispatcher.dispatch(call("count_to", number=3))
        repaired = (await dispatcher.dispatch(call("count_to", number="3")))[0]
    assert (repaired.data, len(begun)) == (3, 1)


def failing(begun: list[Any], gate: Gate, **options: Any) -> Tool:
    """A read that fails once, after a gate."""

    @tool(effects="read", name="look", cache_seconds=60, **options)
    async def look() -> int:
        """Look."""
        begun.append(1)
        if len(begun) == 1:
            await gate.wait("look")
            raise ToolError("not today")
        return len(begun)

    return look


async def test_a_failure_is_shared_with_waiting_calls_and_not_stored() -> None:
    begun: list[Any] = []
    gate = Gate()
    async with alone([failing(begun, gate)]) as one, second(one) as other:
        asked = await _asked(one, 3) + await _asked(other, 3)
        await eventually(lambda: gate.came, "it runs")
        gate.open()
        assert [r.code for r in await _results(asked)] == [Code.REPORTED] * 6
        later = [(await each.dispatch(call("look")))[0].data for each in (one, other)]
    assert later == [2, 2]


async def test_retries_of_a_shared_run_are_shared() -> None:
    begun: list[Any] = []
    gate = Gate()
    async with (
        alone([failing(begun, gate, retries=2)], retry_delay=0.05) as one,
        second(one, retry_delay=0.05) as other,
    ):
        asked = await _asked(one, 3) + await _asked(other, 3)
        await eventually(lambda: gate.came, "it runs")
        gate.open()
        results = await _results(asked)
    assert [result.data for result in results] == [2] * 6
    assert len(begun) == 2


async def test_retries_of_a_shared_run_are_counted_once_for_the_fleet() -> None:
    """All under one idempotency key, whichever dispatcher tries again, and when."""
    keys: list[str] = []
    gate = Gate()

    @tool(effects="read", name="look", single_flight=True, retries=2)
    async def look(ctx: ToolContext) -> None:
        """Look."""
        keys.append(ctx.idempotency_key)
        await gate.wait("look")
        raise ToolError("not today")

    async with (
        alone([look], retry_delay=0.01) as one,
        second(one, retry_delay=0.3) as other,
    ):
        asked = [
            asyncio.ensure_future(each.dispatch(call("look", f"c{n}"), session="s", turn=f"t{n}"))
            for n, each in enumerate((one, other, one, other))
        ]
        await eventually(lambda: one.in_flight() >= 2 and other.in_flight() >= 2, "all joined")
        await eventually(lambda: gate.came, "it runs")
        gate.open()
        results = await _results(asked)
    assert {result.code for result in results} == {Code.REPORTED}
    assert {result.attempts for result in results} == {3}
    assert (len(keys), len(set(keys))) == (3, 1)


async def test_a_retry_has_the_time_of_those_who_came_later() -> None:
    """The first has no time for another try."""
    gate = Gate()

    @tool(effects="read", name="look", single_flight=True, retries=1)
    async def look() -> None:
        """Look."""
        await gate.wait("look")
        raise ToolError("not today")

    async with alone([look], retry_delay=1_000.0) as dispatcher:  # ten seconds at most
        asked = await _asked(dispatcher, 2)
        await eventually(lambda: gate.came, "it runs")
        first, later = (p for p in dispatcher._in_flight.all_open() if p.shares_run)
        assert first.share is not None
        assert first.share.run is not None
        first.deadline = first.share.run.deadline = time.monotonic() + 5.0
        later.deadline = time.monotonic() + 60.0
        gate.open()
        await eventually(lambda: first.share.run.retries == 1, "it is to be tried again")
        for session in ("s0", "s1"):
            await dispatcher.cancel(session)
        assert Executed.NO not in {result.executed for result in await _results(asked)}


async def test_who_comes_to_a_retry_shares_it() -> None:
    gate, begun = Gate(), []

    @tool(effects="read", name="look", single_flight=True, retries=1)
    async def look() -> int:
        """Look."""
        begun.append(1)
        if len(begun) == 1:
            raise ToolError("not today")
        await gate.wait("look")
        return len(begun)

    async with alone([look], retry_delay=0.01) as one, second(one) as other:
        asked = await _asked(one, 1)
        await eventually(lambda: gate.came, "it is tried again")
        asked += await _asked(other, 2)
        await eventually(
            lambda: all(p.share and p.share.run for p in other._in_flight.all_open()), "they joined"
        )
        gate.open()
        results = await _results(asked)
    assert [result.data for result in results] == [2] * 3


async def test_the_age_of_a_kept_result_is_by_its_signed_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its record may be kept for longer than it says, as after a jump of the server's clock."""
    begun: list[Any] = []
    async with alone([counted(begun, cache_seconds=60)]) as dispatcher:
        await dispatcher.dispatch(call("look"))
        now = dispatcher._server.time
        monkeypatch.setattr(dispatcher._server, "time", lambda: now() + 59.0)
        assert "59 s old" in str((await dispatcher.dispatch(call("look")))[0].note)
        monkeypatch.setattr(dispatcher._server, "time", lambda: now() + 60.0)
        assert (await dispatcher.dispatch(call("look")))[0].data == 2
    assert len(begun) == 2


async def test_a_truncated_result_is_not_shared() -> None:
    """Its whole output is one session's, and may be gone before the result is too old."""
    begun: list[Any] = []

    @tool(effects="read", cache_seconds=60, max_output=2_000)
    async def read() -> str:
        """Read."""
        begun.append(1)
        return "x" * 10_000

    async with alone([read]) as dispatcher:
        own = (await dispatcher.dispatch(call("read"), session="a"))[0]
        other = (await dispatcher.dispatch(call("read"), session="b"))[0]
    assert len(begun) == 2
    assert own.handle and other.handle and own.handle != other.handle


async def test_a_shared_run_does_not_share_its_output_handle() -> None:
    gate = Gate()

    @tool(effects="read", single_flight=True, max_output=2_000)
    async def look() -> str:
        """Look."""
        await gate.wait("look")
        return "x" * 10_000

    async with alone([look]) as dispatcher:
        asked = await _asked(dispatcher, 3)
        await eventually(lambda: gate.came, "it runs")
        gate.open()
        results = await _results(asked)
        handles = [result.handle for result in results]
        whole = await dispatcher.output(str(handles[0]), session="s0", page=1)
    assert len(gate.came) == 1
    assert handles[1:] == [None, None]
    assert whole["text"].startswith("xxx")


def in_context(begun: list[Any], gate: Gate | None = None) -> Tool:
    """A read that may act by its session and by its host's context."""

    @tool(effects="read", cache_seconds=60)
    async def mine(ctx: ToolContext) -> Any:
        """Mine."""
        begun.append(ctx.session)
        if gate is not None:
            await gate.wait("mine")
        return [ctx.session, dict(ctx.context or {})]

    return mine


@pytest.mark.parametrize("in_flight", [True, False])
async def test_a_tool_with_a_context_is_shared_in_its_session_and_context_alone(
    in_flight: bool,
) -> None:
    begun: list[Any] = []
    gate = Gate()
    if not in_flight:
        gate.open()
    whose: list[dict[str, Any]] = [
        {"session": "a", "context": {"user": "x"}},
        {"session": "a", "context": {"user": "y"}},
        {"session": "a", "context": {"user": "x", "more": None}},
        {"session": "a", "context": {}},
        {"session": "a"},
        {"session": "b", "context": {"user": "x"}},
        {"session": "b"},
        {"context": {"user": "x"}},
        {},
        {},
    ]
    async with alone([in_context(begun, gate)]) as one, second(one) as other:
        asked: list[tuple[dict[str, Any], asyncio.Future[Any]]] = []
        for dispatcher in (one, other):
            for host in whose:
                turn = asyncio.ensure_future(dispatcher.dispatch(call("mine"), **host))
                asked.append((host, turn))
                if not in_flight:
                    await turn
        distinct = 6  # an empty context is none
        runs = distinct + 2 * 3
        await eventually(lambda: len(begun) >= runs, "each runs for itself")
        gate.open()
        for host, turn in asked:
            result = (await turn)[0]
            assert result.data == [host.get("session"), host.get("context") or {}]
    assert len(begun) == runs


async def _turn_with_a_write(dispatcher: Any, session: str) -> list[Any]:
    calls = call("look", "r1") + call("put", "w") + call("look", "r2")
    return [result.data for result in await dispatcher.dispatch(calls, session=session)]


async def test_a_read_behind_a_write_of_its_turn_sees_that_write() -> None:
    """Neither a kept result nor a run from before it will do."""
    store = [0]

    @tool(effects="read", cache_seconds=60)
    async def look() -> int:
        """Look."""
        return store[0]

    @tool(effects="write")
    async def put() -> None:
        """Put."""
        store[0] += 1

    async with alone([look, put]) as one, second(one) as other:
        assert await _turn_with_a_write(one, "a") == [0, None, 1]
        assert await _turn_with_a_write(other, "b") == [1, None, 2]
        assert (await one.dispatch(call("look")))[0].data == 2, "what is kept now is the newest"


async def test_a_read_behind_a_write_does_not_join_a_run_from_before_it() -> None:
    gate = Gate()
    store = [0]

    @tool(effects="read", single_flight=True)
    async def look() -> int:
        """Look."""
        seen = store[0]
        if not seen:
            await gate.wait("look")
        return seen

    @tool(effects="write")
    async def put() -> None:
        """Put."""
        store[0] += 1

    async with alone([look, put]) as dispatcher:
        early = asyncio.ensure_future(dispatcher.dispatch(call("look")))
        await eventually(lambda: gate.came, "it runs")
        calls = call("put", "w") + call("look", "r1") + call("look", "r2")
        turn = [result.data for result in await dispatcher.dispatch(calls)]
        gate.open()
        assert (await early)[0].data == 0
    assert turn == [None, 1, 1]


@pytest.mark.parametrize("leaves", [0, 1])
async def test_one_who_leaves_does_not_cancel_the_run_of_the_others(leaves: int) -> None:
    """Whether it was its call that began it, or not."""
    gate = Gate()
    async with alone([gated(gate)]) as one, second(one) as other:
        asked = await _asked(one, 3)
        await eventually(lambda: gate.came, "it runs")
        asked += await _asked(other, 1)
        assert await one.cancel(f"s{leaves}") == 1
        left = (await asked.pop(leaves))[0]
        asked.pop(0).cancel()
        gate.open()
        results = await _results(asked)
        assert one.in_flight() == 0
    assert (left.code, left.executed) == (Code.CANCELLED, Executed.UNKNOWN)
    assert [result.data for result in results] == [[None, 1]] * 2
    assert len(gate.came) == 1


async def test_a_run_that_nobody_waits_for_is_cancelled() -> None:
    gate = Gate()
    stopped: list[str] = []

    @tool(effects="read", single_flight=True)
    async def look() -> None:
        """Look."""
        try:
            await gate.wait("look")
        finally:
            stopped.append("look")

    async with alone([look]) as dispatcher:
        calls = [each for n in range(3) for each in call("look", f"c{n}")]
        asked = asyncio.ensure_future(dispatcher.dispatch(calls, session="s"))
        await eventually(lambda: gate.came, "it runs")
        assert await dispatcher.cancel("s") == 3
        codes = [result.code for result in await asked]
        await eventually(lambda: stopped, "its tool was stopped")
        gate.open()
        anew = (await dispatcher.dispatch(call("look")))[0]
    assert codes == [Code.CANCELLED] * 3
    assert anew.ok


async def test_one_who_joins_waits_no_longer_than_it_would_have_alone() -> None:
    gate = Gate()
    async with alone([gated(gate)], queue_timeout=0.2) as dispatcher:
        asked = await _asked(dispatcher, 1)
        await eventually(lambda: gate.came, "it runs")
        hasty = (await dispatcher.dispatch(call("look", "h"), timeout=0.05))[0]
        assert (hasty.code, hasty.call_id) == (Code.TIMEOUT, "h")
        assert "still runs" in str(hasty.error)
        gate.open()
        assert [result.data for result in await _results(asked)] == [[None, 1]]


async def test_one_with_more_time_does_not_join_a_run_that_has_less() -> None:
    gate = Gate()
    async with alone([gated(gate)]) as dispatcher:
        hasty = asyncio.ensure_future(dispatcher.dispatch(call("look", "h"), timeout=0.3))
        await eventually(lambda: gate.came, "it runs")
        patient = asyncio.ensure_future(dispatcher.dispatch(call("look", "p"), timeout=30))
        await eventually(lambda: len(gate.came) == 2, "it has a run of its own")
        assert (await hasty)[0].code is Code.TIMEOUT
        gate.open()
        assert (await patient)[0].ok


async def test_each_is_judged_by_itself_and_what_would_run_is_shared() -> None:
    """A policy denies one, and gives another the arguments of a third."""
    begun: list[Any] = []

    def before_call(asked: Any) -> Any:
        if asked.session == "denied":
            return Deny("not you")
        if asked.session == "rewritten":
            return Rewrite({"what": "mine"})
        return Allow()

    tools = [counted(begun, cache_seconds=60)]
    async with Dispatcher.in_memory(tools, hooks=Hooks(before_call=before_call)) as dispatcher:
        first = (await dispatcher.dispatch(call("look", what="mine"), session="a"))[0]
        denied = (await dispatcher.dispatch(call("look", what="mine"), session="denied"))[0]
        other = (await dispatcher.dispatch(call("look", what="x"), session="rewritten"))[0]
    assert (first.data, other.data, begun) == (1, 1, ["mine"])
    assert (denied.code, denied.executed, denied.data) == (Code.DENIED, Executed.NO, None)


async def test_a_call_that_may_be_handed_over_has_a_run_of_its_own() -> None:
    """Its handle stands for it, whatever becomes of the others."""
    gate = Gate()
    async with alone([gated(gate)]) as dispatcher:
        asked = await _asked(dispatcher, 1)
        await eventually(lambda: gate.came, "it runs")
        handed = (await dispatcher.dispatch(call("look", "h"), session="s", wait=0.05))[0]
        assert handed.handle and len(gate.came) == 2
        gate.open()
        final = await dispatcher.task_result(handed.handle, session="s", wait=5)
        assert final is not None and final.data == [None, 2]
        await _results(asked)


async def test_the_same_call_asked_again_is_answered_as_any_equal_one() -> None:
    begun: list[Any] = []
    async with alone([counted(begun, single_flight=True)]) as one, second(one) as other:
        same: dict[str, Any] = {"session": "s", "turn": "t"}
        first = (await one.dispatch(call("look"), **same))[0]
        again = (await other.dispatch(call("look"), again=True, **same))[0]
    assert (first.data, again.data) == (1, 2)
    assert again.ok and again.call_id == "c"


async def test_a_ledger_that_cannot_be_asked_costs_sharing_with_others_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()
    async with alone([gated(gate)]) as one, second(one) as other:

        async def away(asks: Any) -> Any:
            raise OSError("away")

        monkeypatch.setattr(one._server.shared, "ask", away)
        asked = await _asked(one, 3) + await _asked(other, 3)
        await eventually(lambda: len(gate.came) == 2, "each dispatcher has a run")
        gate.open()
        assert all(result.ok for result in await _results(asked))
    assert len(gate.came) == 2


class Watching(Observer):
    """Notes what is told of each call."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.ends: list[Ended] = []

    def accepted(self, call: CallFacts) -> None:
        """See `Observer`."""
        self.told.append((call.call_id, "accepted"))

    def started(self, call: CallFacts, worker: str) -> None:
        """See `Observer`."""
        self.told.append((call.call_id, "started"))

    def ended(self, call: CallFacts, ended: Ended) -> None:
        """See `Observer`."""
        self.told.append((call.call_id, "ended"))
        self.ends.append(ended)


async def test_observers_are_told_of_each_call_by_itself() -> None:
    """Once each, and whose result is another's."""
    gate, watching = Gate(), Watching()
    tools = [gated(gate, cache_seconds=60)]
    async with Dispatcher.in_memory(tools, observers=[watching]) as dispatcher:
        asked = await _asked(dispatcher, 3)
        await eventually(lambda: gate.came, "it runs")
        gate.open()
        await _results(asked)
        await dispatcher.dispatch(call("look", "late"))
    for n in range(3):
        own = [moment for who, moment in watching.told if who == f"c{n}"]
        assert own == ["accepted", "started", "ended"]
    assert [m for who, m in watching.told if who == "late"] == ["accepted", "ended"]
    assert [ended.shared for ended in watching.ends] == ["", "joined", "joined", "cached"]
    assert all(ended.is_first for ended in watching.ends)


async def test_more_askers_than_there_is_room_for_are_told_so() -> None:
    gate = Gate()
    async with alone([gated(gate)], waiting_per_dispatcher=3) as dispatcher:
        asked = [
            asyncio.ensure_future(dispatcher.dispatch(call("look", f"c{n}"))) for n in range(5)
        ]
        await eventually(lambda: gate.came, "it runs")
        gate.open()
        codes = [result.code for result in await _results(asked)]
    assert codes == [None] * 3 + [Code.OVERLOADED] * 2


async def test_a_run_that_had_failed_before_it_was_joined_is_another_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Told that it goes on, a dispatcher finds that it is over: its own calls have not failed."""
    begun: list[Any] = []
    gate = Gate()
    async with alone([failing(begun, gate)]) as one, second(one) as other:
        failed = await _asked(one, 1)
        await eventually(lambda: gate.came, "it runs")
        ask = one._server.shared.ask

        async def slowly(asks: Any) -> Any:
            found = await ask(asks)
            gate.open()
            await asyncio.wait(failed)
            return found

        monkeypatch.setattr(one._server.shared, "ask", slowly)
        later = (await other.dispatch(call("look")))[0]
        assert (await failed[0])[0].code is Code.REPORTED
    assert later.data == 2


async def test_a_later_call_of_an_unstarted_run_gets_its_own_run() -> None:
    """Its own queue wait is not over yet."""
    gate = Gate()
    async with alone([gated(gate, concurrency=1)], queue_timeout=1.0) as dispatcher:
        busy = asyncio.ensure_future(dispatcher.dispatch(call("look", what="busy")))
        await eventually(lambda: gate.came, "the tool's one place is taken")
        first = asyncio.ensure_future(dispatcher.dispatch(call("look", "first")))
        await asyncio.sleep(0.6)
        later = asyncio.ensure_future(dispatcher.dispatch(call("look", "later")))
        expired = (await first)[0]
        gate.open()
        assert (await later)[0].data == [None, 2]
        await busy
    assert (expired.code, expired.executed) == (Code.EXPIRED, Executed.NO)


async def test_what_others_cancel_is_not_cancelled_here() -> None:
    """Though this dispatcher was taken for dead, and its calls for nobody's."""
    gate = Gate()
    async with alone([gated(gate)]) as one, second(one) as other:
        asked = await _asked(one, 1)
        await eventually(lambda: gate.came, "it runs")
        staying = await _asked(other, 1)
        await eventually(
            lambda: [len(r.replies) for r in one._server.records.values()] == [2], "it is joined"
        )
        one._server.dispatchers.discard(other._parts.in_flight._transport.reply)
        await one.cancel("s0")
        assert (await asked[0])[0].code is Code.CANCELLED
        gate.open()
        assert (await staying[0])[0].ok


async def test_a_dispatcher_that_is_closed_answers_all_who_share() -> None:
    gate = Gate()
    async with alone([gated(gate)]) as one, second(one) as other:
        leaving = await _asked(other, 3)
        await eventually(lambda: gate.came, "it runs")
        staying = await _asked(one, 3)
        await eventually(
            lambda: [len(r.replies) for r in one._server.records.values()] == [2], "it is joined"
        )
        await other.close()
        assert {result.code for result in await _results(leaving)} == {Code.CANCELLED}
        gate.open()
        assert all(result.ok for result in await _results(staying))
    assert len(gate.came) == 1


async def test_the_same_call_asked_twice_at_once_is_one_call() -> None:
    gate = Gate()
    async with alone([gated(gate)]) as dispatcher:
        same: dict[str, Any] = {"session": "s", "turn": "t"}
        asked = [asyncio.ensure_future(dispatcher.dispatch(call("look"), **same)) for _ in range(2)]
        await eventually(lambda: gate.came, "it runs")
        assert dispatcher.in_flight() == 1
        gate.open()
        assert all(result.ok for result in await _results(asked))


async def test_calls_of_one_turn_that_are_equal_share() -> None:
    gate = Gate()
    gate.open()
    async with alone([gated(gate)]) as dispatcher:
        calls = [each for n in range(50) for each in call("look", f"c{n}")]
        results = await dispatcher.dispatch(calls, session="s", turn="t")
    assert len(gate.came) == 1
    assert [result.call_id for result in results] == [f"c{n}" for n in range(len(results))]
    assert all(result.ok for result in results)


async def test_the_circuit_counts_runs_and_not_those_who_share_them() -> None:
    """Ten who share one failing run are one failure of the tool."""
    gate, states = Gate(), []

    class Circuits(Observer):
        def circuit(self, tool: str, state: str) -> None:
            states.append(state)

    @tool(effects="read", single_flight=True)
    async def look() -> None:
        """Look."""
        await gate.wait("look")
        raise OSError("broken")

    settings = Settings(circuit_minimum_calls=5, circuit_failure_rate=0.5)
    async with Dispatcher.in_memory([look], settings=settings, observers=[Circuits()]) as one:
        asked = await _asked(one, 10)
        await eventually(lambda: gate.came, "it runs")
        gate.open()
        assert {result.code for result in await _results(asked)} == {Code.RAISED}
        assert states == []
        for n in range(5):
            await one.dispatch(call("look", f"d{n}"))
    assert states == ["open"]


async def test_events_and_rows_are_of_each_call_by_itself(tmp_path: Path) -> None:
    """One says that a tool was executed; each call has an end, and two rows in the record."""
    gate = Gate()
    told: list[Any] = []
    record = tmp_path / "record.jsonl"
    async with Dispatcher.in_memory(
        [gated(gate, cache_seconds=60)], hooks=Hooks(on_event=told.append), record=record
    ) as dispatcher:
        asked = await _asked(dispatcher, 3)
        await eventually(lambda: gate.came, "it runs")
        gate.open()
        await _results(asked)
        await dispatcher.dispatch(call("look", "late"), session="s9")
        await eventually(lambda: "late" in {e.call_id for e in told}, "all is told")
    kinds = [(event.kind, event.call_id) for event in told]
    ids = ["c0", "c1", "c2"]
    assert [i for kind, i in kinds if kind == "tool:start"] == ids
    assert [i for kind, i in kinds if kind == "tool:end"] == [*ids, "late"]
    assert [i for kind, i in kinds if kind == "tool_executed"] == ["c0"]
    shared = [event.detail.get("shared") for event in told if event.kind == "tool:end"]
    assert shared == [None, "joined", "joined", "cached"]
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    results = [row for row in rows if row["type"] == "tool_result"]
    assert sorted(row["metadata"]["session"] for row in results) == ["s0", "s1", "s2", "s9"]
    assert len({row["parentId"] for row in results}) == 4
    noted = [json.loads(row["content"]).get("note") for row in results]
    assert noted.count(None) == 1


async def test_a_run_counts_against_the_limit_of_the_session_that_began_it() -> None:
    """Another session is not refused what it has room for."""
    gate, begun = Gate(), []

    @tool(effects="read", single_flight=True, rate="1/h", rate_per="session")
    async def look(what: str) -> str:
        """Look."""
        begun.append(what)
        await gate.wait("look")
        return what

    settings = Settings(rate_limit_action="refuse")
    async with Dispatcher.in_memory([look], settings=settings) as dispatcher:
        spent = asyncio.ensure_future(dispatcher.dispatch(call("look", what="x"), session="a"))
        await eventually(lambda: begun == ["x"], "it has had its one run")
        asked = [
            asyncio.ensure_future(dispatcher.dispatch(call("look", what="y"), session=session))
            for session in ("a", "b", "c")
        ]
        await eventually(lambda: begun == ["x", "y"], "another session's run")
        gate.open()
        codes = [(await turn)[0].code for turn in asked]
        assert (await spent)[0].ok
    assert codes == [Code.OVERLOADED, None, None]


async def test_what_is_denied_while_it_waits_is_denied_to_all_who_share_it() -> None:
    gate = Gate()
    async with alone([gated(gate, concurrency=1)]) as dispatcher:
        busy = asyncio.ensure_future(dispatcher.dispatch(call("look", what="busy")))
        await eventually(lambda: gate.came, "the tool's one place is taken")
        asked = await _asked(dispatcher, 3)
        await dispatcher.deny("look", reason="maintenance")
        gate.open()
        results = await _results(asked)
        assert (await busy)[0].ok
    assert [(r.code, r.executed) for r in results] == [(Code.DENIED, Executed.NO)] * 3


async def test_a_conversation_is_resumed_whose_calls_shared_a_run() -> None:
    begun: list[Any] = []
    async with alone([counted(begun, single_flight=True)]) as one, second(one) as other:
        calls = [{"type": "tool_use", "id": "t1", "name": "look", "input": {}}]
        response = {"id": "msg_1", "type": "message", "role": "assistant", "content": calls}
        await one.dispatch(response, session="s", format="anthropic")
        history = [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": calls},
        ]
        resumed = await other.resume(history, session="s", format="anthropic")
    (block,) = resumed[-1]["content"]
    assert (block["type"], block["tool_use_id"]) == ("tool_result", "t1")
    assert "is_error" not in block or block["is_error"] is False
    assert len(begun) == 2, "a read that is run once more does no harm"


async def test_one_that_is_not_allowed_now_may_have_run_before() -> None:
    """It has no record of its own that would say so."""
    begun: list[Any] = []
    same: dict[str, Any] = {"session": "s", "turn": "t"}
    async with alone([counted(begun, single_flight=True)]) as dispatcher:
        await dispatcher.dispatch(call("look"), **same)
        again = (await dispatcher.dispatch(call("look"), only=["other"], **same))[0]
    assert (again.code, again.executed) == (Code.UNKNOWN_TOOL, Executed.UNKNOWN)


async def test_a_call_that_a_person_approved_has_a_run_of_its_own() -> None:
    """It was approved for one; nor is its result for those who were not asked about."""
    begun: list[Any] = []

    def before_call(asked: Any) -> Any:
        return AskApproval() if asked.session == "careful" else Allow()

    hooks, tools = Hooks(before_call=before_call), [counted(begun, cache_seconds=60)]
    async with Dispatcher.in_memory(tools, hooks=hooks) as dispatcher:
        assert (await dispatcher.dispatch(call("look"), session="a"))[0].data == 1
        waiting = asyncio.ensure_future(dispatcher.dispatch(call("look"), session="careful"))

        async def is_asked() -> bool:
            return bool(await dispatcher.approvals.waiting())

        await eventually(is_asked, "a person is asked")
        (approval,) = await dispatcher.approvals.waiting()
        await dispatcher.approvals.approve(approval.id, by="anna")
        approved = (await waiting)[0]
        kept = (await dispatcher.dispatch(call("look"), session="b"))[0]
    assert (approved.data, approved.note, kept.data) == (2, None, 1)

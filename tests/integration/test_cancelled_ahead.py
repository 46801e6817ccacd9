"""What was cancelled before it was sent is run by nobody, and what a person decided binds all."""

import asyncio
import time
from typing import Any

import pytest

from tests.integration.twins import Gate, alone, second
from tests.waiting import eventually
from toolpool import AskApproval, Deny, Dispatcher, Hooks, ToolResult, tool
from toolpool.contract.errors import ServerUnavailable
from toolpool.contract.outcome import Code, Executed
from toolpool.dispatcher.transports.memory import MemoryTransport


class Tools:
    """Tools that note what ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.gate = Gate()

        @tool(effects="write")
        async def first() -> str:
            """Write first."""
            await self.gate.wait("first")
            return "first"

        @tool(effects="write")
        async def later(text: str) -> str:
            """Write later."""
            self.ran.append(text)
            return text

        @tool(effects="read")
        async def look(text: str) -> str:
            """Look at the gate."""
            self.ran.append(text)
            await self.gate.wait(text)
            return text

        @tool(effects="read", single_flight=True)
        async def shared(text: str) -> str:
            """Read what all share."""
            self.ran.append(text)
            return text

        @tool(effects="read", retries=1)
        async def failing(text: str) -> str:
            """Fail."""
            self.ran.append(text)
            raise OSError(text)

        @tool(effects="read", retries=1, single_flight=True)
        async def shared_failing(text: str) -> str:
            """Fail for all."""
            self.ran.append(text)
            raise OSError(text)

        self.all = [first, later, look, shared, failing, shared_failing]


def one(name: str, **arguments: Any) -> list[dict[str, Any]]:
    return [{"id": "c", "name": name, "input": arguments}]


TURN = [
    {"id": "1", "name": "first", "input": {}},
    {"id": "2", "name": "later", "input": {"text": "a"}},
]


async def test_a_call_that_is_cancelled_behind_others_of_its_turn_is_run_by_no_other() -> None:
    """By the other dispatcher that was asked for the same turn, and by one that is asked later."""
    tools = Tools()
    async with alone(tools.all) as owner, second(owner) as other:
        asking = [
            asyncio.ensure_future(by.dispatch(TURN, session="s", turn="t")) for by in (owner, other)
        ]
        await eventually(lambda: tools.gate.came, "the first runs")
        assert await owner.cancel("s", call_id="2") == 1
        tools.gate.open()
        for answered in await asyncio.gather(*asking):
            assert [r.code for r in answered] == [None, Code.CANCELLED]
            assert answered[1].executed is Executed.NO
        again = await other.dispatch(TURN, session="s", turn="t")
    assert again[1].code is Code.CANCELLED
    assert tools.ran == []


async def test_a_call_that_is_cancelled_while_a_hook_judges_it_is_run_by_no_other() -> None:
    tools, judging, gate = Tools(), asyncio.Event(), asyncio.Event()

    async def slow(_: Any) -> None:
        judging.set()
        await gate.wait()

    hooks = Hooks(before_call=slow)
    async with alone(tools.all) as quick, second(quick, hooks) as owner:
        asking = asyncio.ensure_future(
            owner.dispatch(one("later", text="a"), session="s", turn="t")
        )
        await judging.wait()
        assert await owner.cancel("s") == 1
        [elsewhere] = await quick.dispatch(one("later", text="a"), session="s", turn="t")
        gate.set()
        [answered] = await asking
    assert (elsewhere.code, answered.code) == (Code.CANCELLED, Code.CANCELLED)
    assert tools.ran == []


class Judging:
    """A hook that takes its time with all calls but those of `later`, and allows them."""

    def __init__(self) -> None:
        self.has_begun, self.goes_on = asyncio.Event(), asyncio.Event()
        self.hooks = Hooks(before_call=self._judge)

    async def _judge(self, call: Any) -> None:
        if call.tool != "later":
            self.has_begun.set()
            await self.goes_on.wait()


async def test_a_call_of_a_shared_run_that_is_cancelled_unsent_may_have_run() -> None:
    """Another dispatcher may have been answered by a run, which is not in the call's own record."""
    tools, judging, call = Tools(), Judging(), one("shared", text="a")
    async with alone(tools.all) as quick, second(quick, judging.hooks) as owner:
        asking = asyncio.ensure_future(owner.dispatch(call, session="s", turn="t"))
        await judging.has_begun.wait()
        [elsewhere] = await quick.dispatch(call, session="s", turn="t")
        assert await owner.cancel("s") == 1
        judging.goes_on.set()
        [answered] = await asking
    assert elsewhere.ok
    assert (answered.code, answered.executed) == (Code.CANCELLED, Executed.UNKNOWN)


async def test_the_end_of_an_unsent_call_outlives_the_turns_that_others_hold_it_in() -> None:
    tools, judging, call = Tools(), Judging(), one("look", text="a")
    async with alone(tools.all) as server, second(server, judging.hooks) as owner:
        asking = asyncio.ensure_future(owner.dispatch(call, session="s", turn="t"))
        await judging.has_begun.wait()
        await owner.cancel("s")
        [record] = server._server.records.values()
        assert record.gone_at - time.monotonic() > 80_000
        judging.goes_on.set()
        await asking


async def test_a_cancelled_call_of_the_pool_s_own_tools_does_nothing() -> None:
    tools, judging = Tools(), Judging()
    async with alone(tools.all) as server, second(server, judging.hooks) as owner:
        [handed] = await server.dispatch(one("look", text="a"), session="s", turn="1", wait=0.0)
        calls = [
            {"id": "1", "name": "look", "input": {"text": "b"}},
            {"id": "2", "name": "task_cancel", "input": {"handle": handed.handle}},
        ]
        asking = asyncio.ensure_future(owner.dispatch(calls, session="s", turn="2"))
        await judging.has_begun.wait()
        assert await owner.cancel("s", call_id="2") == 1
        judging.goes_on.set()
        tools.gate.open()
        _, ended = await asking
        result = await server.task_result(handed.handle or "", session="s", wait=5.0)
    assert ended.code is Code.CANCELLED
    assert result is not None and result.ok


async def test_a_dispatcher_that_closes_ends_no_unsent_call_for_another() -> None:
    tools, closes, stays = Tools(), Judging(), Judging()
    call = one("look", text="a")
    async with (
        alone(tools.all) as server,
        second(server, closes.hooks) as leaving,
        second(server, stays.hooks) as other,
    ):
        left = asyncio.ensure_future(leaving.dispatch(call, session="s", turn="t"))
        asking = asyncio.ensure_future(other.dispatch(call, session="s", turn="t"))
        for judging in (closes, stays):
            await judging.has_begun.wait()
        await leaving.close()
        closes.goes_on.set()
        await asyncio.wait({left})
        stays.goes_on.set()
        tools.gate.open()
        [result] = await asking
    assert result.ok
    assert tools.ran == ["a"]


async def test_a_cancelled_session_starts_nothing_that_waited_behind_a_provider_s_question() -> (
    None
):
    tools = Tools()
    response = {
        "id": "r",
        "object": "response",
        "status": "completed",
        "output": [
            {"type": "mcp_approval_request", "id": "q", "server_label": "srv", "name": "x",
             "arguments": "{}"},
            {"type": "function_call", "id": "f", "call_id": "c", "name": "later",
             "arguments": '{"text": "a"}', "status": "completed"},
        ],
    }  # fmt: skip
    asks = Hooks(before_call=lambda call: AskApproval("why") if call.tool == "srv.x" else None)
    async with alone(tools.all) as first, second(first, asks) as owner:
        asking = asyncio.ensure_future(owner.dispatch(response, session="s", turn="t", wait=30.0))

        async def is_asked() -> bool:
            return len(await owner.approvals.waiting()) == 1

        await eventually(is_asked, "a person is asked")
        assert await owner.cancel("s") == 2
        answered = await asking
    assert {r.name: r.code for r in answered}["later"] is Code.CANCELLED
    assert tools.ran == []


async def test_a_cancel_reaches_the_responses_that_a_resumed_history_still_has() -> None:
    tools = Tools()
    history: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    for number in (1, 2):
        used = {"type": "tool_use", "id": f"toolu_01{number:022}", "name": "look",
                "input": {"text": str(number)}}  # fmt: skip
        history += [
            {"role": "assistant", "content": [used]},
            {"role": "user", "content": "and?"},
        ]
    async with alone(tools.all) as owner:
        resuming = asyncio.ensure_future(owner.resume(history, session="s"))
        await eventually(lambda: tools.gate.came or resuming.done(), "the first runs")
        assert await owner.cancel("s") == 2
        tools.gate.open()
        await resuming
    assert tools.ran == ["1"]


@pytest.mark.parametrize("decided", ["denied", "cancelled", "waits"])
async def test_a_decision_about_a_call_that_shares_runs_binds_a_dispatcher_without_the_rule(
    decided: str,
) -> None:
    tools = Tools()
    asks = Hooks(before_call=lambda _: AskApproval("why"))
    call = one("shared", text="a")
    async with alone(tools.all) as plain, second(plain, asks) as owner:
        asking = asyncio.ensure_future(owner.dispatch(call, session="s", turn="t", wait=30.0))

        async def is_asked() -> bool:
            return len(await owner.approvals.waiting()) == 1

        await eventually(is_asked, "a person is asked")
        if decided == "denied":
            [approval] = await owner.approvals.waiting()
            await owner.approvals.deny(approval.id, by="anna")
        elif decided == "cancelled":
            await owner.cancel("s")
        elsewhere = asyncio.ensure_future(plain.dispatch(call, session="s", turn="t"))
        if decided == "waits":
            await asyncio.wait({elsewhere}, timeout=0.3)
            assert tools.ran == []
            [approval] = await owner.approvals.waiting()
            await owner.approvals.deny(approval.id, by="anna")
        [result], _ = await asyncio.gather(elsewhere, asking)
    assert not result.ok
    assert tools.ran == []


async def test_a_dispatcher_that_leaves_between_two_tries_ends_the_call_for_no_other() -> None:
    tools = Tools()
    call = one("failing", text="a")
    async with alone(tools.all, retry_delay=1.0) as stays, second(stays, retry_delay=1.0) as leaves:
        asking = [
            asyncio.ensure_future(by.dispatch(call, session="s", turn="t"))
            for by in (stays, leaves)
        ]
        await eventually(lambda: tools.ran, "the first try failed")
        await eventually(
            lambda: all(p.retries for d in (stays, leaves) for p in d._in_flight.all_open()),
            "both wait for the next try",
        )
        asking[1].cancel()
        [result] = await asking[0]
    assert result.code is Code.RAISED
    assert len(tools.ran) == 2


async def test_a_cancel_between_two_tries_ends_a_shared_run_for_no_other_session() -> None:
    tools = Tools()
    call = one("shared_failing", text="a")
    async with alone(tools.all, retry_delay=1.0) as stays, second(stays, retry_delay=1.0) as other:
        asking = asyncio.ensure_future(stays.dispatch(call, session="s", turn="t"))
        cancelled = asyncio.ensure_future(other.dispatch(call, session="c", turn="t"))
        await eventually(
            lambda: all(any(p.retries for p in d._in_flight.all_open()) for d in (stays, other)),
            "both wait for the next try",
        )
        assert await other.cancel("c") == 1
        [result], [ended] = await asyncio.gather(asking, cancelled)
    assert (result.code, ended.code) == (Code.RAISED, Code.CANCELLED)
    assert len(tools.ran) == 2


async def test_a_host_that_resumes_beside_the_living_one_takes_no_later_call_for_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It comes to the next call of the turn a moment earlier, when nobody has noted that yet."""
    tools = Tools()
    used = [
        {"type": "tool_use", "id": f"toolu_01{number:022}", "name": name, "input": given}
        for number, (name, given) in enumerate(
            [("first", {}), *(("later", {"text": text}) for text in "abcd")]
        )
    ]
    message = {"role": "assistant", "content": used}
    response = {"type": "message", "id": "msg_1", "stop_reason": "tool_use", **message}
    async with alone(tools.all) as host, second(host) as other:
        asking = asyncio.ensure_future(host.dispatch(response, session="s"))
        await eventually(lambda: tools.gate.came, "the first runs")
        history = [{"role": "user", "content": "go"}, message]
        resuming = asyncio.ensure_future(other.resume(history, session="s"))
        await eventually(lambda: other.in_flight("s") == 1, "the other waits for it, too")
        publish = host._in_flight._transport.publish

        async def late(*args: Any, **options: Any) -> Any:
            await asyncio.sleep(0.1)
            return await publish(*args, **options)

        monkeypatch.setattr(host._in_flight._transport, "publish", late)
        tools.gate.open()
        answered = await asking
        await resuming
    assert [result.code for result in answered] == [None] * 5
    assert tools.ran == list("abcd")


async def test_each_follower_of_completed_handles_ends_with_the_dispatcher() -> None:
    tools = Tools()
    async with alone(tools.all) as dispatcher:
        following = [asyncio.ensure_future(_all(dispatcher)) for _ in range(3)]
        await asyncio.sleep(0)
        await dispatcher.close()
        async with asyncio.timeout(5.0):
            assert await asyncio.gather(*following) == [[], [], []]


async def _all(dispatcher: Dispatcher) -> list[str]:
    return [handle async for handle in dispatcher.completed(session="s")]


async def _refused_elsewhere(other: Dispatcher, call: Any) -> ToolResult:
    """The call is refused by a dispatcher whose session has no room."""
    for number in range(2):
        full = other.dispatch(one("look", text=f"{number}"), session="s", turn=f"full{number}")
        asyncio.ensure_future(full)  # noqa: RUF006 - the dispatcher ends it
        await eventually(lambda: other.in_flight() == number + 1, "no room is left")  # noqa: B023
    _, refused = await other.dispatch([NO_TOOL, call], session="s", turn="t")
    assert (refused.code, refused.executed) == (Code.OVERLOADED, Executed.NO)
    return refused


NO_TOOL = {"id": "0", "name": "no_such_tool", "input": {}}
NO_ROOM = {"in_flight_per_session": 1, "waiting_per_session": 1}


async def test_a_call_that_waits_in_its_turn_is_not_sent_once_another_refused_it() -> None:
    """Also if whoever obeys `retry_after` could ask for it again by then."""
    tools = Tools()
    async with alone(tools.all) as owner, second(owner, **NO_ROOM) as other:
        asking = asyncio.ensure_future(owner.dispatch(TURN, session="s", turn="t"))
        await eventually(lambda: tools.gate.came, "the first runs")
        refused = await _refused_elsewhere(other, TURN[1])
        assert refused.retry_after is not None
        await asyncio.sleep(refused.retry_after + 0.5)
        tools.gate.open()
        answered = await asking
    assert (answered[1].code, answered[1].executed) == (Code.OVERLOADED, Executed.NO)
    assert "a" not in tools.ran


@pytest.mark.parametrize("how", ["for a time", "for good"])
async def test_a_refusal_that_is_forgotten_while_a_call_waits_in_its_turn_is_remembered(
    how: str,
) -> None:
    tools = Tools()
    deny = None if how == "for a time" else Hooks(before_call=lambda _: Deny("not here"))
    room = NO_ROOM if how == "for a time" else {}
    async with alone(tools.all) as owner, second(owner, deny, **room) as other:
        asking = asyncio.ensure_future(owner.dispatch(TURN, session="s", turn="t"))
        await eventually(lambda: tools.gate.came, "the first runs")
        before = set(owner._server.records)
        if how == "for a time":
            await _refused_elsewhere(other, TURN[1])
        else:
            _, denied = await other.dispatch([NO_TOOL, TURN[1]], session="s", turn="t")
            assert (denied.code, denied.executed) == (Code.DENIED, Executed.NO)
        for key in owner._server.records.keys() - before:
            del owner._server.records[key]
        tools.gate.open()
        answered = await asking
    assert (answered[1].code, answered[1].executed) == (Code.WORKER_LOST, Executed.UNKNOWN)
    assert "a" not in tools.ran


@pytest.mark.parametrize("when", ["runs", "ran"])
async def test_a_call_that_shares_a_run_is_not_told_by_another_that_it_did_not_run(
    when: str,
) -> None:
    tools = Tools()

    @tool(effects="read", single_flight=True)
    async def watch(text: str) -> str:
        """Watch the gate."""
        await tools.gate.wait(text)
        return text

    deny = Hooks(before_call=lambda _: Deny("not here"))
    async with alone([watch]) as owner, second(owner, deny) as other:
        asking = asyncio.ensure_future(
            owner.dispatch(one("watch", text="a"), session="s", turn="t")
        )
        await eventually(lambda: tools.gate.came, "it runs")
        if when == "ran":
            tools.gate.open()
            assert (await asking)[0].ok
        [denied] = await other.dispatch(one("watch", text="a"), session="s", turn="t")
        tools.gate.open()
        assert (await asking)[0].ok
    assert (denied.code, denied.executed) == (Code.DENIED, Executed.UNKNOWN)


async def test_a_call_that_is_cancelled_while_its_shared_run_is_looked_up_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tools, looking, gate = Tools(), asyncio.Event(), asyncio.Event()
    note = MemoryTransport.note_shared

    async def slow(self: MemoryTransport, keys: Any, keep: float) -> Any:
        states = await note(self, keys, keep)
        looking.set()
        await gate.wait()
        return states

    monkeypatch.setattr(MemoryTransport, "note_shared", slow)
    async with alone(tools.all) as owner:
        asking = asyncio.ensure_future(
            owner.dispatch(one("shared", text="a"), session="s", turn="t")
        )
        await looking.wait()
        assert await owner.cancel("s") == 1
        gate.set()
        [answered] = await asking
        await asyncio.sleep(0.1)
    assert answered.code is Code.CANCELLED
    assert tools.ran == []


@pytest.mark.parametrize("why", ["its reply is lost", "it is dispatched with wait="])
async def test_a_read_that_shared_a_run_may_run_by_itself(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it shared a run is noted under its own key; that must not stop its own record."""
    tools, note = Tools(), MemoryTransport.note_shared

    async def lost(self: MemoryTransport, keys: Any, keep: float) -> Any:
        await note(self, keys, keep)
        raise ServerUnavailable("step", sent=True, reason="(away)")

    async with alone(tools.all) as owner:
        wait = None
        if why == "its reply is lost":
            monkeypatch.setattr(MemoryTransport, "note_shared", lost)
        else:
            [first] = await owner.dispatch(one("shared", text="a"), session="s", turn="t")
            assert first.ok
            wait = 5.0
        [answered] = await owner.dispatch(one("shared", text="a"), session="s", turn="t", wait=wait)
    assert answered.ok


async def test_a_resumed_turn_that_cannot_be_looked_up_ends_when_it_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def away(self: MemoryTransport, session: str) -> list[Any]:
        raise ServerUnavailable("step", sent=True, reason="(away)")

    monkeypatch.setattr(MemoryTransport, "turns", away)
    tools = Tools()
    blocks = [
        {"type": "tool_use", "id": f"c{n}", "name": "later", "input": {"text": f"{n}"}}
        for n in (1, 2)
    ]
    async with alone(tools.all, queue_timeout=60.0) as owner:
        resuming = asyncio.ensure_future(
            owner.resume([{"role": "assistant", "content": blocks}], session="s")
        )
        await eventually(lambda: owner._turns.running, "it waits")
        await owner.cancel("s")
        answered = await resuming
    assert "aborted.cancelled" in str(answered)
    assert tools.ran == []

"""Calls that outlive their wait budget (R35)."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.fleets import slow
from tests.integration import fleet as fleets
from tests.integration.fleet import call
from tests.integration.twins import alone, second
from tests.waiting import eventually
from toolpool import Dispatcher
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.result import ToolResult
from toolpool.contract.server import connection
from toolpool.dispatcher.admission import task_tools
from toolpool.dispatcher.formats import FORMATS
from toolpool.dispatcher.ordered_turns import stages
from toolpool.local import LocalFleet


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with fleets.running("tests.fleets.slow") as running:
        yield running


@pytest.fixture
async def dispatcher(fleet: LocalFleet) -> AsyncIterator[Dispatcher]:
    async with fleets.connected(fleet) as connected:
        yield connected


async def handle_of(dispatcher: Dispatcher, name: str = "crunch", **arguments: object) -> str:
    turn = await dispatcher.dispatch(call(name, **arguments), session="s", wait=0.05)
    result = turn[0]
    assert result.ok
    assert result.executed is Executed.UNKNOWN
    assert result.handle is not None
    assert result.data["handle"] == result.handle
    assert result.data["state"] in ("QUEUED", "RUNNING")
    assert "task_result" in (result.note or "")
    assert turn.messages("anthropic")[0]["content"][0]["is_error"] is False
    return result.handle


async def ask(
    dispatcher: Dispatcher, name: str, session: str = "s", **arguments: object
) -> ToolResult:
    return (await dispatcher.dispatch(call(name, **arguments), session=session))[0]


async def test_a_slow_call_answers_with_a_handle_and_its_result_is_fetched(
    dispatcher: Dispatcher,
) -> None:
    handle = await handle_of(dispatcher, seconds=0.4)
    early = await ask(dispatcher, "task_result", handle=handle, wait=0)
    assert early.data["state"] in ("QUEUED", "RUNNING")
    late = await ask(dispatcher, "task_result", handle=handle, wait=10)
    assert late.data == {
        "handle": handle,
        "tool": "crunch",
        "state": "COMPLETED",
        "result": "done",
    }
    again = await ask(dispatcher, "task_result", handle=handle)
    assert again.data["result"] == "done"


async def test_a_call_that_ends_within_its_budget_is_an_ordinary_one(
    dispatcher: Dispatcher,
) -> None:
    result = (await dispatcher.dispatch(call("crunch", seconds=0.0), session="s"))[0]
    assert (result.data, result.handle) == ("done", None)


async def test_a_failure_is_reported_under_the_handle(dispatcher: Dispatcher) -> None:
    handle = await handle_of(dispatcher, "crunch_and_fail", seconds=0.2)
    result = await ask(dispatcher, "task_result", handle=handle, wait=10)
    assert result.ok
    assert result.data["state"] == "FAILED"
    assert result.data["code"] == Code.RAISED


@pytest.mark.parametrize("tool", ["crunch", "crunch_process"])
async def test_a_background_call_can_be_cancelled(dispatcher: Dispatcher, tool: str) -> None:
    handle = await handle_of(dispatcher, tool, seconds=30)
    result = await ask(dispatcher, "task_cancel", handle=handle)
    assert result.data["state"] == "FAILED"
    assert result.data["code"] == Code.CANCELLED


async def test_unknown_expired_and_foreign_handles_have_one_answer(dispatcher: Dispatcher) -> None:
    handle = await handle_of(dispatcher, seconds=5)
    answers = [
        await ask(dispatcher, "task_result", handle="0" * 32),
        await ask(dispatcher, "task_result", session="another", handle=handle),
        await ask(dispatcher, "task_cancel", session="another", handle=handle),
    ]
    assert {answer.code for answer in answers} == {Code.REPORTED}
    assert len({answer.error for answer in answers}) == 1
    with pytest.raises(KeyError):
        await dispatcher.task_result(handle, session="another")
    await dispatcher.task_cancel(handle, session="s")


async def test_the_list_shows_the_session_its_own_calls(fleet: LocalFleet) -> None:
    async with fleets.connected(fleet, tenant="lists") as dispatcher:
        handle = await handle_of(dispatcher, seconds=0.2)
        listed = await dispatcher.task_list(session="s")
        assert [entry["handle"] for entry in listed] == [handle]
        assert listed[0]["tool"] == "crunch"
        assert await dispatcher.task_list(session="another") == []


async def test_the_three_tools_are_offered_beside_a_background_tool(
    dispatcher: Dispatcher,
) -> None:
    offered = {tool["name"] for tool in dispatcher.tools()}
    assert {"task_result", "task_cancel", "task_list"} <= offered


async def test_a_handle_whose_dispatcher_ended_is_adopted_by_who_asks(fleet: LocalFleet) -> None:
    """The call goes on: the end of the dispatcher that sent it does not end it."""
    async with fleets.connected(fleet) as first:
        handle = await handle_of(first, seconds=1.0, answer="adopted")
    async with fleets.connected(fleet) as second:
        result = await second.task_result(handle, session="s", wait=10)
    assert result is not None
    assert result.data == "adopted"


async def test_completed_handles_can_be_awaited_as_a_stream(dispatcher: Dispatcher) -> None:
    handle = await handle_of(dispatcher, seconds=0.2)
    async for completed in dispatcher.completed(session="s"):
        if completed == handle:
            break
    assert (await dispatcher.task_result(handle, session="s")) is not None


async def test_a_whole_session_can_be_cancelled(dispatcher: Dispatcher) -> None:
    """R34: confirmed with `executed`."""
    turn = asyncio.ensure_future(dispatcher.dispatch(call("until_cancelled"), session="to-cancel"))
    await eventually(lambda: dispatcher.in_flight("to-cancel"), "the call is open")
    assert await dispatcher.cancel("to-cancel") == 1
    result = (await turn)[0]
    assert result.code is Code.CANCELLED


async def test_one_call_of_a_session_can_be_cancelled(dispatcher: Dispatcher) -> None:
    """R34: by its id, and its siblings go on; an id alone is not enough to go by (R18)."""
    calls = [{"id": name, "name": "until_cancelled", "input": {}} for name in ("one", "two")]
    turn = asyncio.ensure_future(dispatcher.dispatch(calls, session="siblings"))
    await eventually(lambda: dispatcher.in_flight("siblings") == 2, "both are open")
    assert await dispatcher.cancel("another", call_id="one") == 0
    assert await dispatcher.cancel("siblings", call_id="one") == 1
    await eventually(lambda: dispatcher.in_flight("siblings") == 1, "one is left")
    assert await dispatcher.cancel(call_id="two") == 1
    assert [result.code for result in await turn] == [Code.CANCELLED] * 2
    with pytest.raises(ValueError, match="session, a call_id"):
        await dispatcher.cancel()


async def test_a_wait_for_a_background_call_can_be_cancelled(dispatcher: Dispatcher) -> None:
    """R34: the pool's own tools belong to their session as any other call, and end with it."""
    handle = await handle_of(dispatcher, "until_cancelled")
    for by in ({"session": "s"}, {"call_id": "w"}, {"session": "s", "call_id": "w"}):
        asked = call("task_result", "w", handle=handle, wait=60)
        turn = asyncio.ensure_future(dispatcher.dispatch(asked, session="s"))
        await eventually(lambda: dispatcher.in_flight("s") == 2, "it waits")
        tasks = len(asyncio.all_tasks())
        if by == {"session": "s"}:
            assert await dispatcher.cancel("another") == 0
            assert await dispatcher.cancel("s", call_id="w") == 1
        else:
            assert await dispatcher.cancel(**by) == 1
        assert (await turn)[0].code is Code.CANCELLED
        await eventually(lambda tasks=tasks: len(asyncio.all_tasks()) < tasks, "nothing waits on")
    assert await dispatcher.cancel("s") == 1  # the background call itself


async def test_a_model_is_shown_the_newest_calls_and_how_many_more_there_are(
    fleet: LocalFleet,
) -> None:
    """However many a session has handed out, and though some have expired."""
    async with fleets.connected(fleet, tenant="many") as dispatcher:
        handles = [await handle_of(dispatcher, seconds=60) for _ in range(63)]
        listed = await ask(dispatcher, "task_list")
        assert [entry["handle"] for entry in listed.data] == handles[-50:]
        assert listed.note == "There are 13 older background tasks, which are not listed."
        assert len(await dispatcher.task_list(session="s")) == 63
        with connection.open_sync(fleet.settings) as server:
            server.delete(*(RedisKeys().background(handle) for handle in handles[40:60]))
        async with fleets.connected(fleet, tenant="many") as other:
            listed = await ask(other, "task_list")
        assert [entry["handle"] for entry in listed.data] == handles[:40] + handles[60:]
        assert listed.note is None
        assert await dispatcher.cancel("s") == 63


@pytest.mark.parametrize("where", ["fleet", "memory"])
async def test_calls_without_a_session_are_listed_only_to_their_owner(
    where: str, fleet: LocalFleet
) -> None:
    """Whoever has the handle may use it; nobody learns of the others."""
    async with AsyncExitStack() as stack:
        if where == "fleet":
            own = await stack.enter_async_context(fleets.connected(fleet))
            other: Any = await stack.enter_async_context(fleets.connected(fleet))
        else:
            own = await stack.enter_async_context(alone([slow.crunch]))
            other = await stack.enter_async_context(second(own))
        asked = call("crunch", seconds=60)
        handle = str((await own.dispatch(asked, wait=0.05))[0].handle)
        theirs = str((await other.dispatch(asked, wait=0.05))[0].handle)
        assert [entry["handle"] for entry in await own.task_list()] == [handle]
        assert [entry["handle"] for entry in await other.task_list()] == [theirs]
        listed = (await other.dispatch(call("task_list")))[0]
        assert (listed.ok, listed.data) == (True, [])
        assert "no session" in (listed.note or "")
        completed = asyncio.ensure_future(anext(other.completed()))
        await asyncio.sleep(0.05)
        assert await other.task_result(handle) is None  # a handle is enough
        assert (await own.task_cancel(handle)).code is Code.CANCELLED
        assert (await other.task_cancel(theirs)).code is Code.CANCELLED
        assert await completed in (theirs, handle)


def test_cancelling_is_offered_as_no_read_and_holds_nothing_up() -> None:
    """R32: it is no barrier either."""
    specs = task_tools.SPECS
    offered = {tool["name"]: tool for tool in FORMATS["mcp"].offer([*specs.values()])}
    assert "readOnlyHint" not in offered["task_cancel"].get("annotations", {})
    assert offered["task_result"]["annotations"]["readOnlyHint"] is True
    names = ["task_cancel", "task_result", "task_cancel"]
    assert stages(names, lambda name: specs[name].effects) == [names]

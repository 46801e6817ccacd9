"""Progress from any kind of tool reaches whoever follows the events (R36)."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.integration import fleet as fleets
from tests.integration.fleet import call
from tests.waiting import eventually
from toolpool import Dispatcher
from toolpool.contract.event_entries import Position
from toolpool.contract.outcome import Code
from toolpool.dispatcher.events import Event
from toolpool.local import LocalFleet


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with fleets.running("tests.fleets.slow", slots_process=1) as running:
        yield running


@pytest.fixture
async def dispatcher(fleet: LocalFleet) -> AsyncIterator[Dispatcher]:
    async with fleets.connected(fleet) as connected:
        yield connected


async def collect(dispatcher: Dispatcher, seen: list[Event]) -> None:
    async for event in dispatcher.events(channels=["progress"]):
        seen += [event]


@pytest.mark.parametrize("tool", ["steps", "steps_process"])
async def test_progress_is_followed_and_limited_at_its_source(
    dispatcher: Dispatcher, tool: str
) -> None:
    seen: list[Event] = []
    following = asyncio.ensure_future(collect(dispatcher, seen))
    await asyncio.sleep(0)
    result = (await dispatcher.dispatch(call(tool, count=500)))[0]
    assert result.data == 500
    await eventually(lambda: seen and seen[-1].kind == "tool:end", "the end is seen")
    progress = [event.detail for event in seen if event.kind == "tool:progress"]
    assert progress
    assert progress[0] is not None
    assert progress[0]["total"] == 500
    assert len(progress) < 50
    places = [Position.parse(event.bookmark) for event in seen]
    assert places == sorted(set(places))
    following.cancel()


def progress_of(seen: list[Event]) -> list[Event]:
    return [event for event in seen if event.kind == "tool:progress"]


async def test_a_thread_that_a_coroutine_waits_for_may_report(dispatcher: Dispatcher) -> None:
    seen: list[Event] = []
    following = asyncio.ensure_future(collect(dispatcher, seen))
    await asyncio.sleep(0)
    assert (await dispatcher.dispatch(call("steps_aside")))[0].ok
    await eventually(lambda: progress_of(seen), "it is seen")
    following.cancel()


async def test_threads_of_a_child_report_at_once(dispatcher: Dispatcher) -> None:
    """What they write stays apart, is short, and that all is done is said once."""
    seen: list[Event] = []
    following = asyncio.ensure_future(collect(dispatcher, seen))
    await asyncio.sleep(0)
    result = (await dispatcher.dispatch(call("report_at_once", count=20)))[0]
    assert (result.data, result.code) == (20, None)
    await eventually(lambda: seen and seen[-1].kind == "tool:end", "the end is seen")
    messages = [(event.detail or {})["message"] for event in progress_of(seen)]
    assert messages[:1] == ["x" * 1000]
    assert len(messages) < 20
    following.cancel()


async def test_a_thread_left_behind_reports_into_no_later_call(
    dispatcher: Dispatcher, tmp_path: Path
) -> None:
    """Both calls run in the one child process there is."""
    paths = {"gate": str(tmp_path / "gate"), "trace": str(tmp_path / "trace")}
    first = (await dispatcher.dispatch(call("leave_a_reporter", "one", **paths)))[0]
    assert first.data == "left"
    seen: list[Event] = []
    following = asyncio.ensure_future(collect(dispatcher, seen))
    await asyncio.sleep(0)
    second = (await dispatcher.dispatch(call("wait_for", "two", **paths)))[0]
    assert second.data == "seen"
    await eventually(lambda: seen and seen[-1].kind == "tool:end", "the end is seen")
    assert progress_of(seen) == []
    following.cancel()


async def test_a_follower_resumes_after_its_bookmark(dispatcher: Dispatcher) -> None:
    """R41: nothing that is still kept is missed."""
    seen: list[Event] = []
    following = asyncio.ensure_future(collect(dispatcher, seen))
    await asyncio.sleep(0)
    await dispatcher.dispatch(call("steps", count=1))
    await eventually(lambda: seen and seen[-1].kind == "tool:end", "the end is seen")
    following.cancel()
    await dispatcher.dispatch(call("steps", count=1) + call("steps", "d", count=1))
    ends: list[str] = []
    async for event in dispatcher.events(since=seen[-1].bookmark):
        ends += [event.call_id] if event.kind == "tool:end" else []
        if len(ends) == 2:
            break
    assert sorted(ends) == ["c", "d"]


async def test_a_cancelled_thread_sees_it_and_frees_its_slot(dispatcher: Dispatcher) -> None:
    """`ctx.cancelled` is how a tool that cannot be stopped stops itself."""
    turn = asyncio.ensure_future(dispatcher.dispatch(call("until_cancelled"), session="c"))
    await eventually(lambda: dispatcher.in_flight("c"), "the call is open")
    await dispatcher.cancel("c")
    assert (await turn)[0].code is Code.CANCELLED


async def test_a_bookmark_from_before_a_restart_delays_no_reader(dispatcher: Dispatcher) -> None:
    """R41: what is no more is told, and what comes is followed."""
    async with asyncio.timeout(10.0):
        following = aiter(dispatcher.events(since="1700000000000-1000000"))
        told = await anext(following)
        assert (told.kind, (told.detail or {})["after"]) == ("gap", "1700000000000-1000000")
        event = asyncio.ensure_future(anext(following))
        await asyncio.sleep(0)
        await dispatcher.dispatch(call("steps", count=1))
        assert (await event).tool == "steps"

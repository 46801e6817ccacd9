"""Events of the whole fleet, on real workers: published by one dispatcher, followed by another."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from tests.integration import fleet as fleets
from tests.integration.fleet import call
from tests.integration.test_cli_run import environment
from tests.integration.twins import Gate, alone, second
from tests.waiting import eventually
from toolpool import Dispatcher, SyncDispatcher, ToolContext, ToolError, tool
from toolpool.contract.event_entries import Position
from toolpool.contract.outcome import Code
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.settings import Settings
from toolpool.dispatcher.events import _MESSAGES, Event
from toolpool.local import LocalFleet


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with fleets.running("tests.fleets.slow", "tests.fleets.road", events=True) as running:
        yield running


@pytest.fixture
async def dispatcher(fleet: LocalFleet) -> AsyncIterator[Dispatcher]:
    async with fleets.connected(fleet) as connected:
        yield connected


class Seen:
    """What a follower has seen so far."""

    def __init__(self, dispatcher: Any, **options: Any) -> None:
        self.events: list[Event] = []
        self._task = asyncio.ensure_future(self._follow(dispatcher.events("0", **options)))

    async def _follow(self, events: AsyncIterator[Event]) -> None:
        async for event in events:
            self.events.append(event)

    def kinds(self, session: str) -> list[str]:
        return [event.kind for event in self.events if event.session == session]

    async def until(self, session: str, kind: str) -> list[Event]:
        """Those of a session, once there is one of that kind."""
        await eventually(lambda: kind in self.kinds(session), f"{kind} of {session}")
        return [event for event in self.events if event.session == session]

    def stop(self) -> None:
        self._task.cancel()


async def test_another_process_sees_every_call_in_order(
    fleet: LocalFleet, dispatcher: Dispatcher
) -> None:
    """R41: start precedes progress, progress precedes the end."""
    async with fleets.connected(fleet) as other:
        seen = Seen(other)
        asked = [each for n in range(20) for each in call("steps", f"c{n}", count=3)]
        await dispatcher.dispatch(asked, session="order", turn="t")
        await eventually(lambda: seen.kinds("order").count("tool_executed") == 20, "all have ended")
        assert [e.bookmark for e in seen.events] == list({e.bookmark: 0 for e in seen.events})
        for number in range(20):
            told = [e for e in seen.events if e.session == "order" and e.call_id == f"c{number}"]
            assert (told[0].kind, told[0].state) == ("tool:start", "RUNNING")
            assert [e.kind for e in told[-2:]] == ["tool:end", "tool_executed"]
            assert {e.kind for e in told[1:-2]} <= {"tool:progress"}
            assert (told[-2].state, told[-2].turn, told[-2].channel) == (
                "COMPLETED", "t", "progress",
            )  # fmt: skip
            assert {e.source for e in told} != {""}
        seen.stop()


async def test_errors_are_told_on_both_channels(dispatcher: Dispatcher) -> None:
    """R41, R42: the snapshot says FAILED; nothing of what was sent or raised is in it."""
    seen = Seen(dispatcher)
    asked = call("fail", "raised", message="secret-424242")
    asked += call("refuse", "reported", reason="secret-424242")
    asked += call("echo", "rejected", valeu="secret-424242")
    asked += call("nobody", "unknown", value="secret-424242")
    await dispatcher.dispatch(asked, session="errors", turn="m")
    await eventually(lambda: seen.kinds("errors").count("error") == 4, "all are told")
    told = {(e.call_id, e.kind): e for e in seen.events if e.session == "errors"}
    assert {e.turn for e in told.values()} == {"m"}
    severities = {"raised": "error", "reported": "warn", "rejected": "warn", "unknown": "warn"}
    for call_id, severity in severities.items():
        failed, error = told[call_id, "tool:error"], told[call_id, "error"]
        assert (failed.state, failed.channel) == ("FAILED", "progress")
        assert (error.phase, error.severity, error.channel) == ("tool", severity, "monitor")
        assert error.message
    assert (told["raised", "error"].detail or {}).items() >= {
        "errorType": "runtime", "code": "runtime.raised", "retryable": True, "executed": "yes",
    }.items()  # fmt: skip
    assert (told["raised", "error"].detail or {})["recommendations"]
    assert ("raised", "tool_executed") in told
    assert ("rejected", "tool_executed") not in told
    assert "424242" not in repr(seen.events)
    seen.stop()


async def test_a_cancelled_call_says_so(dispatcher: Dispatcher) -> None:
    """R42: it is FAILED, and not without saying why."""
    seen = Seen(dispatcher)
    turn = asyncio.ensure_future(dispatcher.dispatch(call("until_cancelled"), session="cancelled"))
    await seen.until("cancelled", "tool:start")
    await dispatcher.cancel("cancelled")
    assert (await turn)[0].code is Code.CANCELLED
    told = await seen.until("cancelled", "tool:error")
    event = next(event for event in told if event.kind == "tool:error")
    assert event.state == "FAILED"
    assert (event.detail or {}).items() >= {"code": "aborted.cancelled", "cancelled": True}.items()
    seen.stop()


async def test_the_pool_s_own_tools_are_events_of_their_session(dispatcher: Dispatcher) -> None:
    seen = Seen(dispatcher)
    await dispatcher.dispatch(call("task_list"), session="own")
    told = await seen.until("own", "tool_executed")
    assert [e.kind for e in told] == ["tool:start", "tool:end", "tool_executed"]
    assert {e.tool for e in told} == {"task_list"}
    seen.stop()


async def test_who_was_away_resumes_without_a_gap(
    fleet: LocalFleet, dispatcher: Dispatcher
) -> None:
    """R41: every event once, however often a follower stops."""
    await dispatcher.dispatch(call("echo", "first", value=0), session="away")
    seen = Seen(dispatcher)
    first = (await seen.until("away", "tool:start"))[0]
    seen.stop()
    asked = [each for n in range(30) for each in call("echo", f"c{n}", value=n)]
    await dispatcher.dispatch(asked, session="away", turn="2")
    got: list[str] = []
    at = first.bookmark
    async with fleets.connected(fleet) as other, asyncio.timeout(20):
        while sum(kind.startswith("tool:end") for kind in got) < 31:
            async for event in other.events(since=at):
                assert event.kind != "gap"
                at = event.bookmark
                if event.session == "away":
                    got.append(f"{event.kind} {event.call_id}")
                    break
    assert len(got) == len(set(got))
    assert {f"tool:start c{n}" for n in range(30)} <= set(got)


async def test_channels_are_chosen_and_checked(dispatcher: Dispatcher) -> None:
    seen = Seen(dispatcher, channels=["monitor"])
    await dispatcher.dispatch(call("fail", message="x"), session="monitor")
    await seen.until("monitor", "tool_executed")
    assert {event.channel for event in seen.events} == {"monitor"}
    seen.stop()
    wrong: list[Any] = ["monitor", [], ["metrics"], 5]
    for channels in wrong:
        with pytest.raises(ValueError, match="channel"):
            dispatcher.events(channels=channels)
    with pytest.raises(ValueError, match="since must be"):
        dispatcher.events(since="yesterday")


@pytest.mark.parametrize("events", [False, True])
async def test_the_events_of_one_session_are_chosen(events: bool) -> None:
    async with alone([report], events=events) as dispatcher:
        seen = Seen(dispatcher, session="one")
        everything = Seen(dispatcher)
        await asyncio.sleep(0)  # both follow
        for session in ("other", "one", None, "one"):
            await dispatcher.dispatch(call("report"), session=session)
        await eventually(lambda: everything.kinds("one").count("tool_executed") == 2, "all ended")
        await eventually(lambda: seen.kinds("one").count("tool_executed") == 2, "seen, too")
        assert seen.events == [event for event in everything.events if event.session == "one"]
        with pytest.raises(ValueError, match="session must not be empty"):
            dispatcher.events(session="")
        seen.stop(), everything.stop()


async def test_the_stream_expires(fleet: LocalFleet, dispatcher: Dispatcher) -> None:
    seen = Seen(dispatcher)
    await dispatcher.dispatch(call("echo", value=1), session="expires")
    await seen.until("expires", "tool:end")
    seen.stop()
    with redis.Redis.from_url(str(fleet.settings.redis_url)) as client:
        assert 0 < client.ttl(RedisKeys().events) <= 86_400


async def test_nothing_is_published_where_it_is_off(fleet: LocalFleet) -> None:
    """Whoever follows that dispatcher sees its own events all the same."""
    with redis.Redis.from_url(str(fleet.settings.redis_url)) as client:
        before = client.xinfo_stream(RedisKeys().events)["last-generated-id"]
        async with fleets.connected(fleet, events=False) as quiet:
            seen = Seen(quiet)
            await asyncio.sleep(0)
            await quiet.dispatch(call("echo", value=1), session="quiet")
            await seen.until("quiet", "tool_executed")
            seen.stop()
        assert client.xinfo_stream(RedisKeys().events)["last-generated-id"] == before


def test_blocking_code_follows_as_well(fleet: LocalFleet) -> None:
    with SyncDispatcher.connect(settings=fleet.settings) as dispatcher:
        dispatcher.dispatch(call("echo", value=1), session="sync")
        kinds = []
        for event in dispatcher.events(since="0", channels=["progress"]):
            kinds += [event.kind] if event.session == "sync" else []
            if kinds and kinds[-1] == "tool:end":
                break
        assert kinds == ["tool:start", "tool:end"]


async def test_a_slow_follower_delays_no_other(dispatcher: Dispatcher) -> None:
    """It keeps one page, and the dispatcher nothing for it."""
    slow = dispatcher.events("0")
    await dispatcher.dispatch(call("echo", "one", value=0), session="slow")
    first = await anext(slow)
    for turn in range(5):
        asked = [each for n in range(50) for each in call("echo", f"{turn}-{n}", value=n)]
        assert (await dispatcher.dispatch(asked, session="slow", turn=str(turn))).ok
    watching = dispatcher._parts.watching
    assert watching._publisher is not None
    await eventually(lambda: not watching._publisher._waiting, "all are published")
    rest = 0
    async for event in slow:
        rest += event.kind == "tool:end" and event.session == "slow"
        if rest == 251:
            break
    assert Position.parse(first.bookmark) < Position.parse(event.bookmark)


@contextmanager
def follower(settings: Settings, *options: str) -> "Iterator[subprocess.Popen[bytes]]":
    """`toolpool tail`; killed in the end."""
    signs = settings.signing_key
    key = {"TOOLPOOL_SIGNING_KEY": signs.get_secret_value()} if signs is not None else {}
    with subprocess.Popen(
        [sys.executable, "-m", "toolpool", "tail", *options],
        env=environment(TOOLPOOL_REDIS_URL=str(settings.redis_url), **key),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_tail_follows_and_ends_on_ctrl_c(fleet: LocalFleet, dispatcher: Dispatcher) -> None:
    await dispatcher.dispatch(call("echo", value=1), session="tail")
    await dispatcher.dispatch(call("echo", value=1), session="not this")
    options = ("--since", "0", "--session", "tail", "--channel", "progress", "--json")
    with follower(fleet.settings, *options) as process:
        assert process.stdout is not None and process.stderr is not None
        lines = [json.loads(await asyncio.to_thread(process.stdout.readline)) for _ in range(2)]
        assert [(line["kind"], line["session"]) for line in lines] == [
            ("tool:start", "tail"), ("tool:end", "tail"),
        ]  # fmt: skip
        assert b"following progress of toolpool" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert process.stdout.read() == b""
        assert process.stderr.read() == b""
    with follower(fleet.settings, "--since", lines[0]["bookmark"], "--session", "tail") as process:
        assert process.stdout is not None
        line = (await asyncio.to_thread(process.stdout.readline)).decode()
        assert "tool:end" in line and "session=tail" in line


def test_tail_ends_when_its_reader_goes_away(fleet: LocalFleet) -> None:
    """While nothing comes, too."""
    with follower(fleet.settings, "--session", "nobody") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stderr.readline()
        process.stdout.close()
        assert process.wait(10) == 141
        assert process.stderr.read() == b""


def test_tail_says_what_is_wrong(fleet: LocalFleet, redis_url: str) -> None:
    for options, said in (
        (("--since", "x"), b"since must be the bookmark"),
        (("--channel", "x"), b"there are progress, monitor"),
    ):
        with follower(fleet.settings, *options) as process:
            assert process.stderr is not None
            assert said in process.stderr.read()
            assert process.wait(10) == 2
    with follower(Settings(redis_url=redis_url)) as process:
        assert process.stderr is not None
        assert b"following" in process.stderr.readline()
        assert b"TOOLPOOL_EVENTS=on" in process.stderr.readline()


@tool(effects="read")
async def read() -> str:
    """Read."""
    return "done"


@tool
async def report() -> None:
    """Fail."""
    raise ToolError("no", recommendations=["a tool's own hint: secret-5"])


@pytest.mark.parametrize("events", [True, False])
async def test_memory_tells_the_same(events: bool) -> None:
    """R41: a host's own tests see what it will see on a fleet."""
    gate = Gate()

    @tool(effects="read")
    async def half_way(ctx: ToolContext) -> None:
        """Report progress."""
        ctx.progress(1, 2, "half")
        await gate.wait("half")

    async with alone([half_way, report], events=events) as dispatcher:
        seen = Seen(dispatcher)
        await asyncio.sleep(0)
        turn = asyncio.ensure_future(dispatcher.dispatch(call("half_way"), session="s"))
        await seen.until("s", "tool:progress")
        gate.open()
        await turn
        told = await seen.until("s", "tool_executed")
        assert [e.kind for e in told] == [
            "tool:start", "tool:progress", "tool:end", "tool_executed",
        ]  # fmt: skip
        assert told[1].detail == {"done": 1.0, "total": 2.0, "message": "half"}
        await dispatcher.dispatch(call("report"), session="t")
        assert "secret" not in repr(await seen.until("t", "error"))
        seen.stop()


async def test_dispatchers_in_memory_share_their_events() -> None:
    async with alone([read], events=True) as first, second(first, events=True) as other:
        seen = Seen(other)
        await first.dispatch(call("read"), session="first")
        await other.dispatch(call("read"), session="second")
        await seen.until("first", "tool_executed")
        await seen.until("second", "tool_executed")
        assert len({event.source for event in seen.events}) == 2
        seen.stop()


async def test_the_last_events_are_published_before_a_dispatcher_closes() -> None:
    gate = Gate()

    @tool
    async def work() -> None:
        """Work."""
        await gate.wait("work")

    async with alone([work], events=True) as first:
        async with second(first, events=True) as other:
            seen = Seen(first)
            turn = asyncio.ensure_future(other.dispatch(call("work"), session="s"))
            await eventually(lambda: gate.came, "it runs")
        assert (await turn)[0].code is Code.CANCELLED
        await seen.until("s", "tool:error")
        seen.stop()


def test_every_code_has_words() -> None:
    assert set(_MESSAGES) == set(Code)

"""The dispatcher for blocking code: from many threads, with Ctrl-C, and with a start that fails."""

import asyncio
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.fleets import road as tools
from tests.integration import fleet as fleets
from tests.integration.fleet import call
from tests.processes import python, read_line
from tests.waiting import wait_until
from toolpool import BrokerUnreachable, SyncDispatcher
from toolpool.contract.outcome import Code
from toolpool.contract.settings import Settings
from toolpool.local import LocalFleet


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with fleets.running("tests.fleets.road") as running:
        yield running


@pytest.fixture(params=["fleet", "memory"])
def dispatcher(request: pytest.FixtureRequest) -> Iterator[SyncDispatcher]:
    if request.param == "memory":
        with SyncDispatcher.in_memory([tools]) as opened:
            yield opened
    else:
        running: LocalFleet = request.getfixturevalue("fleet")
        with SyncDispatcher.connect(settings=running.settings) as opened:
            yield opened


def dispatcher_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "dispatcher"]


def test_it_answers_as_the_asynchronous_one(dispatcher: SyncDispatcher) -> None:
    turn = dispatcher.dispatch(call("echo", value=1) + call("echo", "d"), session="s-1")
    assert [result.code for result in turn] == [None, Code.INVALID_ARGUMENTS]
    assert turn.messages()[0]["data"] == 1
    assert "echo" in [tool["name"] for tool in dispatcher.tools("bare")]


def test_many_threads_share_it(dispatcher: SyncDispatcher) -> None:
    """Each gets its own results."""

    def ask(number: int) -> Any:
        return dispatcher.dispatch(call("echo", f"c{number}", value=number))[0].data

    with ThreadPoolExecutor(32) as threads:
        assert list(threads.map(ask, range(500))) == list(range(500))


def test_its_thread_ends_with_it() -> None:
    with SyncDispatcher.in_memory([tools]) as opened:
        assert dispatcher_threads() == ["dispatcher"]
        opened.dispatch(call("echo", value=1))
    assert dispatcher_threads() == []


def test_a_start_that_fails_leaves_nothing_behind() -> None:
    settings = Settings(redis_url="unix:///nowhere.sock", connect_timeout=0.2)
    with pytest.raises(BrokerUnreachable), SyncDispatcher.connect(settings=settings):
        pass
    assert dispatcher_threads() == []


def test_it_can_be_used_beside_a_running_loop() -> None:
    """In a notebook, or in a handler that is called from asynchronous code."""

    async def inside() -> Any:
        with SyncDispatcher.in_memory([tools]) as opened:
            return opened.dispatch(call("echo", value=1))[0].data

    assert asyncio.run(inside()) == 1


INTERRUPTED = """
import sys
from toolpool import SyncDispatcher
from tests.fleets import road
from tests.integration.fleet import call

gate, trace = sys.argv[1:]
with SyncDispatcher.in_memory([road]) as dispatcher:
    try:
        dispatcher.dispatch(call("hold", gate=gate, trace=trace))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    sys.stdin.readline()
    print(dispatcher.dispatch(call("echo", value="goes on"))[0].data, flush=True)
"""


def test_ctrl_c_cancels_the_calls_and_leaves_the_dispatcher_usable(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with python(INTERRUPTED, str(tmp_path / "gate"), str(trace)) as process:
        wait_until(trace.exists, "the call runs", 30.0)
        process.send_signal(signal.SIGINT)
        assert read_line(process) == "interrupted"
        wait_until(lambda: "cancelled " in trace.read_text().splitlines(), "the tool is stopped")
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert read_line(process) == "goes on"
        assert process.wait(10) == 0


@pytest.mark.parametrize("is_begun", [False, True])
def test_an_interrupt_before_the_thread_knows_of_its_call_cancels_it(
    is_begun: bool,
    dispatcher: SyncDispatcher,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine the tool runs before the thread that asked has had its next turn."""
    trace, ask = tmp_path / "trace", asyncio.run_coroutine_threadsafe

    def interrupted(work: Any, loop: asyncio.AbstractEventLoop) -> Any:
        if is_begun:
            ask(work, loop)
            wait_until(trace.exists, "the call runs")
        else:
            loop.call_soon_threadsafe(lambda: wait_until(left.is_set, "it was interrupted"))
            ask(work, loop)
        raise KeyboardInterrupt

    left = threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            dispatcher.dispatch(call("hold", gate=str(tmp_path / "gate"), trace=str(trace)))
    left.set()
    if is_begun:
        wait_until(lambda: "cancelled " in trace.read_text().splitlines(), "the tool is stopped")
    assert dispatcher.dispatch(call("echo", value="goes on"))[0].data == "goes on"
    assert trace.exists() == is_begun
    assert dispatcher._opened().in_flight() == 0


@pytest.mark.parametrize("handled_by", ["cancel", "close"])
def test_a_signal_handler_may_use_the_dispatcher_that_its_thread_is_asking(
    handled_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = asyncio.run_coroutine_threadsafe

    def interrupted(work: Any, loop: asyncio.AbstractEventLoop) -> Any:
        patched.undo()
        dispatcher.cancel("nobody") if handled_by == "cancel" else dispatcher.close()
        return ask(work, loop)

    with SyncDispatcher.in_memory([tools]) as dispatcher, monkeypatch.context() as patched:
        patched.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
        if handled_by == "cancel":
            assert dispatcher.dispatch(call("echo", value="goes on"))[0].data == "goes on"
        else:
            with pytest.raises(RuntimeError, match="this dispatcher is closed"):
                dispatcher.dispatch(call("echo", value="too late"))


def test_background_calls_are_reached_from_blocking_code(
    dispatcher: SyncDispatcher, tmp_path: Path
) -> None:
    """R35: the same through every API."""
    started = dispatcher.dispatch(
        call("hold", gate=str(tmp_path / "gate"), trace=str(tmp_path / "trace")),
        session="s-b",
        wait=0.0,
    )[0]
    assert started.handle is not None
    (listed,) = dispatcher.task_list(session="s-b")
    assert listed["handle"] == started.handle
    assert dispatcher.task_result(started.handle, session="s-b") is None
    ended = dispatcher.task_cancel(started.handle, session="s-b")
    assert ended.code is Code.CANCELLED
    with pytest.raises(KeyError):
        dispatcher.output(started.handle, session="s-b")


def test_another_thread_can_cancel_a_session(dispatcher: SyncDispatcher, tmp_path: Path) -> None:
    """R34."""
    with ThreadPoolExecutor(1) as threads:
        turn = threads.submit(
            dispatcher.dispatch,
            call("hold", gate=str(tmp_path / "gate"), trace=str(tmp_path / "trace")),
            session="s-c",
        )
        while not dispatcher.cancel("s-c"):
            assert not turn.done()
        assert turn.result()[0].code is Code.CANCELLED

"""The dispatcher for blocking code, opened and closed by hand, and used wrongly (R62)."""

import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tests.fleets import road as tools
from tests.integration import fleet as fleets
from tests.integration.fleet import call
from tests.waiting import wait_until
from toolpool import BrokerUnreachable, Dispatcher, Observer, SyncDispatcher
from toolpool.contract.outcome import Code
from toolpool.contract.settings import Settings
from toolpool.contract.signing import generate_key
from toolpool.local import LocalFleet

pytestmark = pytest.mark.long

ASKED: dict[str, Callable[[SyncDispatcher], Any]] = {
    "dispatch": lambda d: d.dispatch(call("echo", value=1)),
    "call": lambda d: d.call("echo", {"value": 1}),
    "resume": lambda d: d.resume([], session="s"),
    "tools": lambda d: d.tools(),
    "specs": lambda d: d.specs,
    "refused": lambda d: d.refused,
    "check": lambda d: d.check(call("echo", value=1)),
    "preview": lambda d: d.preview(call("echo", value=1)),
    "in_flight": lambda d: d.in_flight(),
    "cancel": lambda d: d.cancel("s"),
    "task_result": lambda d: d.task_result("0" * 32),
    "task_cancel": lambda d: d.task_cancel("0" * 32),
    "task_list": lambda d: d.task_list(session="s"),
    "output": lambda d: d.output("0" * 32),
    "deny": lambda d: d.deny("echo", reason="no"),
    "allow": lambda d: d.allow("echo"),
    "approvals": lambda d: d.approvals,
    "events": lambda d: next(d.events()),
    "completed": lambda d: next(d.completed(session="s")),
}


KEY = generate_key()


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with fleets.running("tests.fleets.road", signing_key=SecretStr(KEY)) as running:
        yield running


def public(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}


def test_it_has_all_that_the_asynchronous_one_has() -> None:
    assert public(SyncDispatcher) - public(Dispatcher) == {"approvals", "open", "close_at_exit"}
    assert public(Dispatcher) <= public(SyncDispatcher)
    assert public(SyncDispatcher) == {
        *ASKED,
        *("connect", "local", "in_memory", "open", "close", "close_at_exit"),
    }


def refused(dispatcher: SyncDispatcher, why: str) -> None:
    for ask in ASKED.values():
        with pytest.raises(RuntimeError, match=why):
            ask(dispatcher)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "dispatcher"]


def test_not_open() -> None:
    dispatcher = SyncDispatcher.in_memory([tools])
    refused(dispatcher, "is not open: use it inside `with SyncDispatcher")
    dispatcher.close()
    refused(dispatcher, "is closed: make another")
    with pytest.raises(RuntimeError, match="is closed"):
        dispatcher.open()


def test_opened_and_closed_by_hand() -> None:
    dispatcher = SyncDispatcher.in_memory([tools]).open()
    assert dispatcher.dispatch(call("echo", value=1))[0].data == 1
    with pytest.raises(RuntimeError, match="open already"):
        dispatcher.open()
    dispatcher.close()
    dispatcher.close()
    refused(dispatcher, "is closed: make another")
    assert threads() == []


def test_closed_within_its_block() -> None:
    with SyncDispatcher.in_memory([tools]) as dispatcher:
        dispatcher.close()
        refused(dispatcher, "is closed")


def test_one_that_could_not_be_opened_is_closed() -> None:
    settings = Settings(redis_url="unix:///nowhere.sock", connect_timeout=0.2)
    dispatcher = SyncDispatcher.connect(settings=settings)
    with pytest.raises(BrokerUnreachable):
        dispatcher.open()
    refused(dispatcher, "is closed")
    assert threads() == []


@pytest.mark.parametrize("kind", ["memory", "fleet"])
def test_closing_answers_what_other_threads_wait_for(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if kind == "memory":
        dispatcher = SyncDispatcher.in_memory([tools]).open()
    else:
        settings = request.getfixturevalue("fleet").settings
        dispatcher = SyncDispatcher.connect(settings=settings).open()
    gate, trace = str(tmp_path / "gate"), str(tmp_path / "trace")
    held = dispatcher.dispatch(call("hold", gate=gate, trace=trace), session="s", wait=0.0)[0]
    assert held.handle is not None
    with ThreadPoolExecutor(4) as pool:
        asked = call("hold", gate=gate, trace=str(tmp_path / "other"))
        turn = pool.submit(dispatcher.dispatch, asked, session="s")
        waits = pool.submit(dispatcher.task_result, held.handle, session="s", wait=600)
        events = pool.submit(list, dispatcher.events())
        wait_until((tmp_path / "other").exists, "the call runs")
        dispatcher.close()
        assert turn.result(10)[0].code is Code.CANCELLED
        with pytest.raises(RuntimeError, match="is closed"):
            waits.result(10)
        assert all(event.tool == "hold" for event in events.result(10))
    assert threads() == []


def test_closing_while_threads_keep_asking() -> None:
    """Each is answered, or told that it is closed; none hangs."""
    dispatcher = SyncDispatcher.in_memory([tools]).open()
    asked = threading.Barrier(9)

    def ask(number: int) -> str:
        for turn in range(100_000):
            if turn == 3:
                asked.wait(10)
            try:
                result = dispatcher.dispatch(call("echo", value=number))[0]
            except RuntimeError as error:
                return str(error)
            assert result.data == number or result.code is Code.CANCELLED
        return "never closed"

    with ThreadPoolExecutor(8) as pool:
        told = [pool.submit(ask, number) for number in range(8)]
        asked.wait(10)
        dispatcher.close()
        assert all("is closed" in each.result(10) for each in told)


def test_asked_from_its_own_thread() -> None:
    """In an observer that the loop itself calls: it would wait for itself."""
    with SyncDispatcher.in_memory([tools]) as dispatcher:
        told: list[str] = []

        class Asking(Observer):
            def looped(self, loop: Any) -> None:
                for ask in (ASKED["dispatch"], SyncDispatcher.close):
                    try:
                        ask(dispatcher)
                    except RuntimeError as error:
                        told.append(str(error))

        assert dispatcher._dispatcher is not None
        dispatcher._dispatcher._parts.observers.add(Asking())
        for _ in range(4):
            dispatcher.dispatch(call("echo"), session="loops")
        assert len(told) == 2
        assert all("its own thread" in each for each in told)


def test_events_are_a_plain_iterator() -> None:
    with SyncDispatcher.in_memory([tools]) as dispatcher:
        stream = dispatcher.events()
        dispatcher.events("0")  # never iterated
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(next, stream)
            wait_until(
                lambda: dispatcher.dispatch(call("echo", value=1))[0].ok and first.done(), "it came"
            )
        assert first.result().kind == "tool:start"
        stream.close()


AT_EXIT = """
import atexit, sys
from toolpool import Settings, SyncDispatcher
from tests.fleets import road
from tests.integration.fleet import call

def ask(label):
    try:
        print(label, dispatcher.dispatch(call("echo", value="ok"))[0].data, flush=True)
    except RuntimeError as error:
        print(label, error, flush=True)

atexit.register(ask, "registered before")
how = sys.argv[1]
if how == "memory":
    dispatcher = SyncDispatcher.in_memory([road])
elif how == "local":
    dispatcher = SyncDispatcher.local(["tests.fleets.road"])
else:
    dispatcher = SyncDispatcher.connect(how)
if "open" in sys.argv:
    dispatcher.open()
    ask("now")
if "close" in sys.argv:
    atexit.register(dispatcher.close)
atexit.register(ask, "registered after")
if "thread" in sys.argv:
    import threading
    from tests.integration.fleet import call
    hold = call("hold", gate=sys.argv[-1] + "/gate", trace=sys.argv[-1] + "/trace")
    threading.Thread(target=dispatcher.dispatch, args=(hold,), daemon=True).start()
    import os, time
    while not os.path.exists(sys.argv[-1] + "/trace"):
        time.sleep(0.01)
"""


def exited(how: str, *argv: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", AT_EXIT, how, *argv],
        capture_output=True,
        text=True,
        timeout=40,
        env={**os.environ, "TOOLPOOL_SIGNING_KEY": KEY},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.fixture(params=["memory", "local", "connect"])
def how(request: pytest.FixtureRequest) -> str:
    if request.param == "connect":
        return str(request.getfixturevalue("fleet").settings.redis_url)
    return str(request.param)


def test_it_works_and_can_be_closed_while_the_program_ends(how: str) -> None:
    """In handlers of atexit, when no thread can be started any more."""
    closed = "registered before this dispatcher is closed: make another"
    assert exited(how, "open") == ["now ok", "registered after ok", "registered before ok"]
    told = exited(how, "open", "close")
    assert told[:2] == ["now ok", "registered after ok"]
    assert told[2].startswith(closed)


def test_it_need_not_be_closed_for_the_program_to_end(how: str, tmp_path: Path) -> None:
    """With a call on its way, too."""
    told = exited(how, "open", "thread", str(tmp_path))
    assert told == ["now ok", "registered after ok", "registered before ok"]


FORKED = """
import os, sys
from toolpool import SyncDispatcher
from tests.fleets import road
from tests.integration.fleet import call
from tests.integration.test_sync_misuse import ASKED

with SyncDispatcher.in_memory([road]) as dispatcher:
    assert dispatcher.dispatch(call("echo", value=1))[0].data == 1
    child = os.fork()
    if child == 0:
        for name, ask in ASKED.items():
            try:
                ask(dispatcher)
            except RuntimeError as error:
                assert "forked: make one of its own" in str(error), (name, error)
            else:
                raise AssertionError(name)
        with SyncDispatcher.in_memory([road]) as own:
            assert own.dispatch(call("echo", value=2))[0].data == 2
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert dispatcher.dispatch(call("echo", value=3))[0].data == 3
print("ok")
"""


def test_after_a_fork_the_child_makes_its_own() -> None:
    """Leaving the block in the child touches nothing of its parent's."""
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=40
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr

"""A pool of real child processes: each call's answer is its own, whatever another call did."""

import asyncio
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import is_running
from tests.waiting import eventually
from toolpool.contract import encoding
from toolpool.contract.envelope import CallMessage
from toolpool.contract.exception_report import faults_in, traceback_of
from toolpool.contract.outcome import Code, Executed, Outcome
from toolpool.workers.running import frames
from toolpool.workers.running.children import ChildPool

TOOLS = ["tests.fleets.straying"]
_numbers = itertools.count(1)


def run_of(
    tool: str, arguments: dict[str, Any], *, timeout: float = 20.0, **more: Any
) -> frames.Run:
    call = CallMessage(key="k", id="c", tool=tool, digest="", arguments=arguments)
    return frames.Run(run=next(_numbers), call=call, timeout=timeout, **more)


class Calls:
    """A pool, and calls to it."""

    def __init__(self, pool: ChildPool) -> None:
        self.pool = pool
        self.progress: list[tuple[float, float | None, str | None]] = []

    async def call(
        self, name: str, /, *, timeout: float = 20.0, within: float = 20.0, **arguments: Any
    ) -> Outcome:
        run = run_of(name, arguments, timeout=timeout)
        report = lambda *said: self.progress.append(said)  # noqa: E731
        return (await self.pool.run(run, report, within=within)).outcome

    async def data(self, name: str, /, **arguments: Any) -> Any:
        outcome = await self.call(name, **arguments)
        assert outcome.ok, outcome
        return encoding.decode(encoding.encode(outcome.data))

    def pids(self) -> list[int]:
        return [child.pid for child in self.pool._idle]


async def started(size: int, tools: list[str] = TOOLS) -> ChildPool:
    pool = ChildPool(size=size, tools=tools, max_result_bytes=1 << 20, calls_per_child=1000)
    await pool.start()
    return pool


@pytest.fixture
async def one() -> AsyncIterator[Calls]:
    pool = await started(1)
    yield Calls(pool)
    await pool.close()


@pytest.fixture
async def two() -> AsyncIterator[Calls]:
    pool = await started(2)
    yield Calls(pool)
    await pool.close()


@pytest.mark.parametrize("how", ["os", "libc"])
@pytest.mark.parametrize("ends", ["exec", "exit", "return"])
async def test_a_fork_that_comes_out_of_its_tool_ends_at_once(
    one: Calls, how: str, ends: str, tmp_path: Path
) -> None:
    """R1, R8: it would answer other sessions' calls, with its own data, and writes nobody ran."""
    assert await one.data("fork_that_climbs_out", how=how, ends=ends) == "the fork ended with 70"
    for number in range(50):
        assert await one.data("echo", text=str(number)) == str(number)
    lines = [f"line {number}" for number in range(10)]
    for line in lines:
        assert await one.data("append", path=str(tmp_path / "file"), line=line) == line
    assert (tmp_path / "file").read_text().splitlines() == lines


async def test_a_tool_whose_process_ends_is_answered_though_a_fork_holds_the_socket(
    one: Calls,
) -> None:
    """R33: nothing closes the socket, so its end never comes."""
    outcome = await one.call("fork_holding_on", seconds=8, timeout=6.0)
    assert (outcome.code, outcome.executed) == (Code.CRASHED, Executed.UNKNOWN)
    assert "exited with code 4" in outcome.error
    assert outcome.details is not None
    assert outcome.details["cause"] == "exited with code 4"
    assert await one.data("echo", text="hi") == "hi"


async def test_a_fork_does_not_answer_in_place_of_its_tool(one: Calls, tmp_path: Path) -> None:
    outcome = await one.call("fork_and_end", pid_file=str(tmp_path / "pid"))
    assert (outcome.code, outcome.executed) == (Code.CRASHED, Executed.UNKNOWN)
    assert await one.data("echo", text="hi") == "hi"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("garbage", "sent its worker an invalid frame"),
        ("form", "sent its worker an invalid frame"),
        ("another_run", "answered a call that it does not run"),
        ("another_process", "was forked, and its fork answered in its place"),
        ("close", "closed its connection to the worker"),
        ("close_all", "closed its connection to the worker"),
        ("replace", "closed its connection to the worker"),
        ("shut", ""),
    ],
)
async def test_a_tool_that_breaks_into_its_own_socket_has_crashed(
    one: Calls, how: str, said: str
) -> None:
    """And no other call is touched by it."""
    outcome = await one.call("write_to_the_socket", how=how, timeout=5.0)
    assert (outcome.code, outcome.executed) == (Code.CRASHED, Executed.UNKNOWN)
    assert said in outcome.error
    assert await one.data("echo", text="hi") == "hi"


@pytest.mark.parametrize("how", ["text", "zeros", "truncate"])
async def test_a_tool_that_writes_over_what_is_not_its_own_was_started_once(
    one: Calls, tmp_path: Path, how: str
) -> None:
    """Whatever it does to the mark: nobody says that it did not run, or starts it again (R8)."""
    starts = tmp_path / "starts"
    for count in (1, 2, 3):
        outcome = await one.call("write_over_all", path=str(starts), how=how)
        assert (outcome.code, outcome.executed) == (Code.CRASHED, Executed.UNKNOWN)
        assert len(starts.read_text().splitlines()) == count
    assert await one.data("echo", text="hi") == "hi"


async def test_half_a_message_hides_the_answer_until_the_timeout(one: Calls) -> None:
    """Nobody can tell the rest of it from the answer: the end was not seen."""
    outcome = await one.call("write_to_the_socket", how="half", timeout=0.5)
    assert (outcome.code, outcome.executed) == (Code.TIMEOUT, Executed.UNKNOWN)
    assert await one.data("echo", text="hi") == "hi"


@pytest.mark.parametrize(
    ("directory", "is_inherited"), [("/dev/shm/toolpool-metrics-x", False), ("/host", True)]
)
async def test_a_child_does_not_write_to_the_metrics_of_its_worker(
    directory: str, is_inherited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", directory)
    pool = await started(1)
    try:
        seen = await Calls(pool).data("look_around")
    finally:
        await pool.close()
    assert ("PROMETHEUS_MULTIPROC_DIR" in seen["variables"]) is is_inherited


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
async def test_a_process_tool_may_use_multiprocessing(one: Calls, method: str) -> None:
    for _ in range(2):
        assert await one.data("use_multiprocessing", method=method) == [1, 2, 3]
        assert await one.data("echo", text="hi") == "hi"


@pytest.mark.parametrize("how", ["plain", "preexec"])
async def test_a_process_tool_may_start_programs(one: Calls, how: str) -> None:
    pid = one.pids()
    assert await one.data("run_program", how=how) == "hi"
    assert one.pids() == pid, "and its process serves the next call"


async def test_what_a_thread_still_says_is_not_said_of_the_next_call(one: Calls) -> None:
    assert await one.data("report_from_thread") == "returned"
    one.progress.clear()
    assert await one.data("echo", text="hi") == "hi"
    assert one.progress == []


async def test_an_idle_child_that_is_killed_costs_no_call(two: Calls) -> None:
    """R8: nothing had begun in it. It is noticed and replaced without a call."""
    before = two.pids()
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    answers = await asyncio.gather(*(two.data("echo", text=str(n)) for n in range(8)))
    assert answers == [str(number) for number in range(8)]
    pid = two.pids()[0]
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: len(two.pids()) == 2 and pid not in two.pids(), "it is replaced")
    assert not is_running(pid)


async def test_a_call_whose_child_is_killed_before_it_begins_goes_to_another(one: Calls) -> None:
    pid = one.pids()[0]
    os.kill(pid, signal.SIGSTOP)
    calling = asyncio.ensure_future(one.data("echo", text="hi"))
    await eventually(lambda: not one.pids(), "it was given to the child")
    os.kill(pid, signal.SIGKILL)
    assert await calling == "hi"


async def test_a_call_that_begins_nowhere_was_not_executed(one: Calls) -> None:
    """R8, R9: after three children it is the pool's fault, and it did not run."""
    calling = asyncio.ensure_future(one.call("echo", text="hi"))
    stopped: set[int] = set()

    async def end_the_next() -> bool:
        for child in list(one.pool._living):
            if child.pid not in stopped:
                stopped.add(child.pid)
                os.kill(child.pid, signal.SIGKILL)
        return calling.done()

    for child in one.pool._living:
        os.kill(child.pid, signal.SIGSTOP)
    await eventually(end_the_next, "it is answered", 30.0)
    outcome = calling.result()
    if not outcome.ok:  # one may have begun it before it was ended
        assert outcome.executed is Executed.NO or outcome.code is Code.CRASHED


async def test_a_child_that_freezes_before_the_call_begins_did_not_execute_it(one: Calls) -> None:
    os.kill(one.pids()[0], signal.SIGSTOP)
    outcome = await one.call("echo", text="hi", timeout=0.5)
    assert (outcome.code, outcome.executed) == (Code.EXPIRED, Executed.NO)


async def test_a_child_that_is_still_importing_is_not_charged_to_the_call(
    tmp_path: Path,
) -> None:
    """R8: the call waits for a process, within its own time, and has not begun."""
    slow = tmp_path / "slow_tools.py"
    slow.write_text(
        "import pathlib, time\nfrom toolpool import tool\n"
        f"flag = pathlib.Path({str(tmp_path / 'slow')!r})\n"
        "time.sleep(30 if flag.exists() else 0)\n"
        "@tool\ndef echo(text: str) -> str:\n    'Say it.'\n    return text\n"
    )
    pool = await started(1, [str(slow)])
    calls = Calls(pool)
    (tmp_path / "slow").touch()
    os.kill(calls.pids()[0], signal.SIGKILL)
    await eventually(lambda: not calls.pids(), "its child is lost")
    began = time.monotonic()
    outcome = await calls.call("echo", text="hi", timeout=0.3, within=1.0)
    assert (outcome.code, outcome.executed) == (Code.EXPIRED, Executed.NO)
    assert time.monotonic() - began < 20.0
    await pool.close()


async def test_the_timeout_counts_from_the_begin(one: Calls) -> None:
    """A call that waited for its process still has all of its own time."""
    waiting = asyncio.ensure_future(one.call("sleep_short", seconds=0.4, timeout=0.6))
    outcome = await one.call("sleep_short", seconds=0.4, timeout=0.6, within=5.0)
    assert outcome.ok, outcome
    assert (await waiting).ok


async def test_a_call_that_is_cancelled_while_it_waits_was_not_executed(one: Calls) -> None:
    busy = asyncio.ensure_future(one.call("sleep_short", seconds=1, timeout=5.0))
    await eventually(lambda: not one.pids(), "the child is taken")
    waiting = asyncio.ensure_future(one.call("echo", text="hi"))
    await eventually(lambda: len(one.pool._waiters) == 1, "it waits")
    waiting.cancel()
    assert (await waiting).executed is Executed.NO
    assert (await busy).ok
    assert await one.data("echo", text="next") == "next"


LEFT = [
    "folder", "removed_folder", "variable", "environ", "time_zone", "umask", "handler", "mask",
    "alarm", "limit", "nice", "thread", "streams", "stdout_file", "closed_stdout", "path", "tracer",
    "timeout", "context", "process", "daemon",
]  # fmt: skip
KEPT = {
    "folder", "removed_folder", "variable", "environ", "time_zone", "umask", "handler", "mask",
    "alarm", "streams", "timeout", "context",
}  # fmt: skip


@pytest.mark.parametrize("what", LEFT)
async def test_nothing_carries_over_to_the_next_call(one: Calls, what: str, tmp_path: Path) -> None:
    """What can be put back is; of anything else the process is replaced."""
    before, pid = await one.data("look_around"), one.pids()
    assert await one.data("leave", what=what, folder=str(tmp_path)) == what
    assert await one.data("look_around") == before
    assert (one.pids() == pid) is (what in KEPT)


async def test_a_thread_that_the_tools_started_at_import_is_theirs(one: Calls) -> None:
    pid = one.pids()
    assert await one.data("echo", text="hi") == "hi"
    assert one.pids() == pid


async def test_a_child_that_dies_after_its_answer_costs_nothing(one: Calls) -> None:
    assert await one.data("end_after", seconds=0.05) == "returned"
    for number in range(20):
        assert await one.data("echo", text=str(number)) == str(number)
        await asyncio.sleep(0.01)


@pytest.mark.long
async def test_many_children_are_killed_at_any_moment(two: Calls, tmp_path: Path) -> None:
    """R8: every answer is true. What says `ok` was written, what says `no` was not."""
    path = tmp_path / "lines"
    path.touch()
    ends_at = time.monotonic() + 4.0

    async def kill() -> None:
        while time.monotonic() < ends_at:
            await asyncio.sleep(0.05)
            for child in list(two.pool._living)[:1]:
                os.kill(child.pid, signal.SIGKILL)

    said: dict[str, Outcome] = {}

    async def write(lane: int) -> None:
        for number in itertools.count():
            if time.monotonic() > ends_at:
                return
            line = f"{lane}-{number}"
            said[line] = await two.call("append", path=str(path), line=line)

    killing = asyncio.ensure_future(kill())
    await asyncio.gather(write(1), write(2))
    await killing
    written = path.read_text().splitlines()
    assert len(written) == len(set(written)), "nothing ran twice"
    for line, outcome in said.items():
        if outcome.executed is Executed.YES:
            assert outcome.ok and line in written
        if outcome.executed is Executed.NO:
            assert line not in written


async def test_what_a_tool_wrote_is_in_no_report_of_the_process_that_replaces_its_own(
    tmp_path: Path,
) -> None:
    tools = tmp_path / "runner_tools.py"
    tools.write_text(
        "import importlib, pathlib, sys\n"
        "from toolpool import tool\n"
        "@tool\n"
        "def run(source: str) -> str:\n"
        "    'Run it.'\n"
        "    here = pathlib.Path(__file__).parent\n"
        "    sys.path.insert(0, str(here))\n"
        "    if source: (here / 'written.py').write_text(source)\n"
        "    importlib.import_module('written').fails()\n"
    )
    pool = ChildPool(size=1, tools=[str(tools)], max_result_bytes=1_000, calls_per_child=1)
    await pool.start()
    try:
        for source in ("def fails(): raise KeyError(jane_doe)", ""):
            outcome = await Calls(pool).call("run", source=source)
            faults = faults_in(outcome.details)
            assert "jane" not in traceback_of(faults)
            assert "importlib.import_module" in traceback_of(faults)
    finally:
        await pool.close()


async def test_a_frozen_child_is_not_said_to_have_entered_a_tool(one: Calls) -> None:
    """A rate's window begins when the tool is entered, not when the call is sent to its process."""
    begun, entered = asyncio.Event(), asyncio.Event()
    pid = one.pids()[0]
    os.kill(pid, signal.SIGSTOP)
    run = run_of("echo", {"text": "hi"}, enter_by=time.monotonic() + 60.0)
    running = asyncio.ensure_future(
        one.pool.run(run, lambda *_: None, within=20.0, on_begin=begun.set, on_entered=entered.set)
    )
    await begun.wait()
    await asyncio.sleep(0.2)
    assert not entered.is_set()
    os.kill(pid, signal.SIGCONT)
    assert (await running).outcome.ok
    assert entered.is_set()


async def test_a_child_that_gets_its_call_too_late_does_not_enter_the_tool(one: Calls) -> None:
    """Its place under a rate may be gone by then."""
    entered = asyncio.Event()
    run = run_of("echo", {"text": "hi"}, enter_by=time.monotonic() - 0.001)
    done = await one.pool.run(run, lambda *_: None, within=20.0, on_entered=entered.set)
    assert (done.outcome.code, done.outcome.executed) == (Code.EXPIRED, Executed.NO)
    assert not entered.is_set()

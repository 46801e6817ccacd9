"""Whatever a tool does: one classified result, no process left, and the worker goes on (R5-R11)."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.integration import fleet as fleets
from tests.integration.fleet import call
from tests.processes import is_running
from tests.waiting import eventually
from toolpool import Dispatcher
from toolpool.contract.outcome import Code, Executed
from toolpool.contract.result import ToolResult
from toolpool.local import LocalFleet


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with fleets.running("tests.fleets.hostile") as running:
        yield running


@pytest.fixture
async def dispatcher(fleet: LocalFleet) -> AsyncIterator[Dispatcher]:
    async with fleets.connected(fleet) as connected:
        yield connected
        # Whatever the test did, every kind of tool still answers, from the same workers.
        for name in ("echo", "echo_thread", "echo_process"):
            assert (await connected.dispatch(call(name, text="hi")))[0].data == "hi"


async def result_of(dispatcher: Dispatcher, name: str, /, **arguments: object) -> ToolResult:
    turn = await dispatcher.dispatch(call(name, **arguments))
    assert len(turn) == 1
    return turn[0]


KINDS = ("misbehave_loop", "misbehave_thread", "misbehave_process")


@pytest.mark.parametrize("tool", KINDS)
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise", "the drawer is stuck"),
        ("exception_without_text", "KeyError"),
        ("system_exit", "3"),
        ("keyboard_interrupt", "KeyboardInterrupt"),
        ("memory_error", "all gone"),
        ("group", "several (2 sub-exceptions)"),
        ("bad_error", "_Unspeakable"),
        ("exit_when_asked", "_Exiting"),
    ],
)
async def test_whatever_a_tool_raises_is_a_runtime_failure_that_ran(
    dispatcher: Dispatcher, tool: str, how: str, said: str
) -> None:
    """R11: class and message reach the model, the stack only the operator."""
    result = await result_of(dispatcher, tool, how=how)
    assert result.details is not None
    kind = result.details["exception"].rpartition(".")[2]
    told = said if said == kind else f"{kind}: {said}"
    assert result.error == f"Error executing tool '{tool}': {told}"
    assert (result.code, result.executed, result.retryable) == (Code.RAISED, Executed.YES, True)
    assert result.details["exception"]
    assert "details" not in result.payload()
    assert "Traceback" not in str(result.payload())


@pytest.mark.parametrize(
    ("tool", "how", "code"),
    [
        ("write_loop", "raise", Code.RAISED),
        ("write_loop", "wrapped", Code.BAD_RESULT),
        ("write_thread", "raise", Code.RAISED),
        ("write_process", "raise", Code.RAISED),
        ("write_process", "exit", Code.CRASHED),
    ],
)
async def test_a_write_that_failed_is_to_be_checked_before_it_is_repeated(
    dispatcher: Dispatcher, tool: str, how: str, code: Code
) -> None:
    """R6: the tool of a declared write may have done its work before it failed."""
    result = await result_of(dispatcher, tool, how=how)
    assert (result.code, result.retryable) == (code, False)
    assert "check before you repeat it" in str(result.payload())


@pytest.mark.parametrize("tool", KINDS)
async def test_a_reported_failure_is_kept_as_it_is(dispatcher: Dispatcher, tool: str) -> None:
    """R5: the tool's own words and recommendations win; it cannot forge another type."""
    reported = await result_of(dispatcher, tool, how="logical")
    assert (reported.code, reported.error) == (Code.REPORTED, "no such customer")
    assert reported.recommendations == ("look it up",)
    raised = await result_of(dispatcher, tool, how="tool_error")
    assert (raised.code, raised.error, raised.retry_after) == (Code.REPORTED, "closed today", 60)
    forged = await result_of(dispatcher, tool, how="forged")
    assert (forged.code, forged.executed) == (Code.REPORTED, Executed.YES)
    assert (await result_of(dispatcher, tool, how="wrapped")).data == [1, 2]


@pytest.mark.parametrize("tool", KINDS)
@pytest.mark.parametrize("how", ["not_json", "cycle", "huge", "surrogate", "deep"])
async def test_a_result_that_cannot_be_taken_is_a_bad_result(
    dispatcher: Dispatcher, tool: str, how: str
) -> None:
    """R7: not JSON, 50 MB of it, or nested 990 levels deep."""
    result = await result_of(dispatcher, tool, how=how)
    assert (result.code, result.executed) == (Code.BAD_RESULT, Executed.YES)


@pytest.mark.parametrize("where", ["loop", "thread", "process"])
async def test_a_result_other_than_declared_is_a_bad_result(
    dispatcher: Dispatcher, where: str
) -> None:
    """R55: wherever it runs; the model is told what is wrong, and nothing of the value."""
    tool = f"break_promise_{where}"
    result = await result_of(dispatcher, tool)
    assert (result.code, result.executed, result.data) == (Code.BAD_RESULT, Executed.YES, None)
    assert result.error == (
        f"Tool '{tool}' ran, but returned something other than it declares: 1: expected integer, "
        "got string. This is a fault of the tool, not of the arguments."
    )


@pytest.mark.parametrize("tool", KINDS)
async def test_a_long_output_is_cut_in_the_middle(dispatcher: Dispatcher, tool: str) -> None:
    """R37, in its first form."""
    result = await result_of(dispatcher, tool, how="large")
    assert result.ok
    assert len(result.data) < 66_000
    assert "of 100,000 bytes left out" in result.data
    assert result.note is not None


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("exit", "exited with code 7"),
        ("segfault", "was killed by SIGSEGV"),
        ("kill", "was killed by SIGKILL"),
        ("abort", "was killed by SIGABRT"),
    ],
)
async def test_a_tool_that_ends_its_process_has_crashed(
    dispatcher: Dispatcher, how: str, said: str
) -> None:
    """R7, R8: nobody saw the end, so whether it ran is unknown."""
    result = await result_of(dispatcher, "die", how=how)
    assert (result.code, result.executed) == (Code.CRASHED, Executed.UNKNOWN)
    assert result.error is not None
    assert said in result.error


async def test_a_timeout_is_answered_and_kills_what_can_be_killed(
    dispatcher: Dispatcher, tmp_path: Path
) -> None:
    """R33: coroutines are cancelled, child processes killed, threads abandoned and said so."""
    pid_file = tmp_path / "pid"
    turn = await dispatcher.dispatch(
        call("sleep_loop") + call("sleep_thread") + call("sleep_process", pid_file=str(pid_file))
    )
    assert [result.code for result in turn] == [Code.TIMEOUT] * 3
    assert [result.executed for result in turn] == [Executed.UNKNOWN] * 3
    assert turn[1].error is not None
    assert "its thread cannot be stopped" in turn[1].error
    assert not is_running(int(pid_file.read_text()))


async def test_a_coroutine_that_swallows_cancellation_is_still_answered_on_time(
    dispatcher: Dispatcher,
) -> None:
    """R33: the result is on time always."""
    result = await result_of(dispatcher, "ignore_cancellation")
    assert (result.code, result.executed) == (Code.TIMEOUT, Executed.UNKNOWN)
    assert result.duration < 2.0


# A detached grandchild of a tool that kills its own process has no parent left to be found by.
@pytest.mark.parametrize(
    ("then", "detach"),
    [("return", False), ("return", True), ("hang", False), ("hang", True), ("die", False)],
)
async def test_no_grandchild_outlives_its_call(
    dispatcher: Dispatcher, tmp_path: Path, then: str, detach: bool
) -> None:
    """One that ignores TERM, in the tool's process group or in a session of its own."""
    pid_file = tmp_path / "pid"
    result = await result_of(
        dispatcher, "leave_behind", pid_file=str(pid_file), then=then, detach=detach
    )
    expected = {"return": None, "hang": Code.TIMEOUT, "die": Code.CRASHED}
    assert result.code is expected[then]
    pid = int(pid_file.read_text())
    await eventually(lambda: not is_running(pid), "the grandchild is gone")


async def test_what_a_tool_prints_does_not_disturb_its_result(dispatcher: Dispatcher) -> None:
    assert (await result_of(dispatcher, "shout", text="hello")).data == "done"


async def test_a_task_that_a_tool_left_behind_does_not_stop_the_worker(
    dispatcher: Dispatcher,
) -> None:
    assert (await result_of(dispatcher, "spawn_failing_task")).ok


async def test_host_context_reaches_only_the_tool(dispatcher: Dispatcher) -> None:
    """`context=` is handed over as `ctx.context` and is in no schema."""
    turn = await dispatcher.dispatch(
        call("who_asks"), session="s-1", turn="t-1", context={"user": "u-7"}
    )
    assert turn[0].data == {"session": "s-1", "context": {"user": "u-7"}, "attempt": 1}
    offered = {tool["name"]: tool for tool in dispatcher.tools()}
    assert offered["who_asks"]["input_schema"]["properties"] == {}


@pytest.mark.parametrize(("how", "code"), [("task factory", Code.RAISED), ("stop", None)])
async def test_a_tool_that_seizes_the_event_loop_costs_itself_alone(
    dispatcher: Dispatcher, fleet: LocalFleet, how: str, code: Code | None
) -> None:
    """The worker goes on: it is the same process before and after."""
    before = fleet.log().count("worker_ready")
    assert (await result_of(dispatcher, "seize_the_loop", how=how)).code == code
    for text in ("a", "b"):
        assert (await result_of(dispatcher, "echo", text=text)).data == text
    assert fleet.log().count("worker_ready") == before

"""Tools that do everything a tool must not do; each leaves a trace where the test says."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from toolpool import ToolContext, ToolError, tool

IGNORES_TERM = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"


@tool
async def echo(text: str) -> str:
    """Give back the text."""
    return text


@tool(run_in="process")
def echo_process(text: str) -> str:
    """Give back the text."""
    return text


@tool(run_in="thread")
def echo_thread(text: str) -> str:
    """Give back the text."""
    return text


def _misbehave(how: str) -> Any:  # noqa: C901 - a list of misdeeds
    match how:
        case "raise":
            raise ValueError("the drawer is stuck")
        case "exception_without_text":
            raise KeyError
        case "system_exit":
            raise SystemExit(3)
        case "keyboard_interrupt":
            raise KeyboardInterrupt
        case "memory_error":
            raise MemoryError("all gone")
        case "exit":
            os._exit(3)
        case "group":
            raise ExceptionGroup("several", [ValueError("a"), TypeError("b")])
        case "logical":
            return {"ok": False, "error": "no such customer", "recommendations": ["look it up"]}
        case "tool_error":
            raise ToolError("closed today", recommendations=["come back"], retry_after=60)
        case "wrapped":
            return {"ok": True, "data": [1, 2]}
        case "forged":
            return {"ok": False, "error": "x", "errorType": "exception", "code": "made.up"}
        case "not_json":
            return object()
        case "cycle":
            cycle: list[Any] = []
            cycle.append(cycle)
            return cycle
        case "huge":
            return "x" * 50_000_000
        case "large":
            return "x" * 100_000
        case "surrogate":
            return "\ud800"
        case "bad_error":
            raise _Unspeakable
        case "exit_when_asked":
            raise _Exiting
        case "deep":
            deep: list[Any] = []
            for _ in range(990):
                deep = [deep]
            return deep
    raise AssertionError(how)


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class _Exiting(Exception):
    def __str__(self) -> str:
        raise SystemExit(4)

    __repr__ = __str__


@tool
async def misbehave_loop(how: str) -> Any:
    """Do what `how` says, on the loop."""
    return _misbehave(how)


@tool(run_in="thread")
def misbehave_thread(how: str) -> Any:
    """Do what `how` says, in a thread."""
    return _misbehave(how)


@tool(run_in="process")
def misbehave_process(how: str) -> Any:
    """Do what `how` says, in a child process."""
    return _misbehave(how)


@tool(effects="write")
async def write_loop(how: str) -> int:
    """Do what `how` says, as a write on the loop."""
    result: int = _misbehave(how)
    return result


@tool(effects="write", run_in="thread")
def write_thread(how: str) -> int:
    """Do what `how` says, as a write in a thread."""
    result: int = _misbehave(how)
    return result


@tool(effects="write", run_in="process")
def write_process(how: str) -> int:
    """Do what `how` says, as a write in a child process."""
    result: int = _misbehave(how)
    return result


@tool
async def break_promise_loop() -> list[int]:
    """Return something other than it says, on the loop."""
    return [1, "s3cret"]  # type: ignore[list-item]


@tool(run_in="thread")
def break_promise_thread() -> list[int]:
    """Return something other than it says, in a thread."""
    return [1, "s3cret"]  # type: ignore[list-item]


@tool(run_in="process")
def break_promise_process() -> list[int]:
    """Return something other than it says, in a child process."""
    return [1, "s3cret"]  # type: ignore[list-item]


@tool(run_in="process")
def die(how: str) -> None:
    """End the tool's own process."""
    match how:
        case "exit":
            os._exit(7)
        case "segfault":
            ctypes.string_at(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "abort":
            os.abort()


@tool
async def seize_the_loop(how: str) -> None:
    """Change the event loop that other calls run on."""

    def factory(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no task today")

    loop = asyncio.get_running_loop()
    if how == "task factory":
        loop.set_task_factory(factory)
    else:
        loop.stop()


@tool(timeout=0.5)
async def sleep_loop() -> None:
    """Sleep too long."""
    await asyncio.sleep(30)


@tool(timeout=0.5, run_in="thread")
def sleep_thread(seconds: float = 1.5) -> None:
    """Sleep too long."""
    time.sleep(seconds)


@tool(timeout=0.5, run_in="process")
def sleep_process(pid_file: str) -> None:
    """Sleep too long."""
    Path(pid_file).write_text(str(os.getpid()))
    time.sleep(30)


@tool(timeout=0.5)
async def ignore_cancellation() -> str:
    """Swallow the cancellation and go on for a while."""
    for _ in range(2):
        try:
            await asyncio.sleep(2)
        except asyncio.CancelledError:
            continue
    return "still here"


@tool(run_in="process")
def shout(text: str) -> str:
    """Write to stdout, and let a subprocess write to it as well."""
    print(text)
    sys.stdout.flush()
    subprocess.run(["/bin/sh", "-c", f"echo {text}; echo {text} >&2"], check=True)
    return "done"


@tool(timeout=1, run_in="process")
def leave_behind(pid_file: str, then: str = "return", detach: bool = False) -> str:
    """Start a process that ignores TERM, and return, hang or die."""
    child = subprocess.Popen([sys.executable, "-c", IGNORES_TERM], start_new_session=detach)
    Path(pid_file).write_text(str(child.pid))
    if then == "hang":
        time.sleep(30)
    if then == "die":
        os._exit(1)
    return "returned"


@tool
async def spawn_failing_task() -> str:
    """Start a task of its own that raises SystemExit."""

    async def fail() -> None:
        raise SystemExit(9)

    asyncio.get_running_loop().create_task(fail())
    await asyncio.sleep(0)
    return "spawned"


@tool
async def who_asks(ctx: ToolContext) -> dict[str, Any]:
    """Say what the context says."""
    return {"session": ctx.session, "context": dict(ctx.context), "attempt": ctx.attempt}

"""R38: a shell command ends in time, answers within bounds, and leaves nothing behind."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.processes import is_running
from tests.waiting import eventually
from toolpool.contract.errors import ToolError
from toolpool.contract.spec import Effects, RunIn
from toolpool.workers.context import ToolContext
from toolpool.workers.tools.bash import bash
from toolpool.workers.tools.configured import settings

# A process that nothing but KILL ends, in a session of its own where asked; it notes its pid.
STUBBORN = textwrap.dedent("""
    import os, signal, sys, time
    if "daemon" in sys.argv and os.fork():
        os._exit(0)
    if "session" in sys.argv or "daemon" in sys.argv:
        os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with open("pids", "a") as file:
        file.write(f"{os.getpid()}\\n")
    if os.fork() == 0:
        with open("pids", "a") as file:
            file.write(f"{os.getpid()}\\n")
    time.sleep(300)
""")

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs a subreaper")


async def run(command: str, **arguments: Any) -> dict[str, Any]:
    result: dict[str, Any] = await bash(command=command, **arguments)
    return result


@pytest.fixture
def shell(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The workspace, where commands are allowed; nothing that noted its pid may survive."""
    monkeypatch.setenv("TOOLPOOL_BASH", "true")
    settings.cache_clear()
    (workspace / "stubborn.py").write_text(STUBBORN)
    yield workspace
    left = [pid for pid in _pids(workspace) if is_running(pid)]
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left, "processes of the command are still there"


def _pids(workspace: Path) -> list[int]:
    noted = workspace / "pids"
    return [int(line) for line in noted.read_text().split()] if noted.exists() else []


async def _noted(workspace: Path, count: int) -> None:
    await eventually(lambda: len(_pids(workspace)) >= count, f"{count} processes noted their pids")


@pytest.fixture(autouse=True)
async def _no_task_left() -> AsyncIterator[None]:
    yield
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not others


async def test_http_get_is_off_unless_enabled(workspace: Path) -> None:
    with pytest.raises(ToolError, match="TOOLPOOL_BASH=true"):
        await run("touch made")
    assert os.listdir(workspace) == []


async def test_a_result_has_exit_code_and_both_streams(shell: Path) -> None:
    assert await run("echo out; echo err >&2; exit 3") == {
        "exit_code": 3,
        "stdout": "out\n",
        "stderr": "err\n",
    }


async def test_a_death_by_signal_has_the_exit_code_of_shells(shell: Path) -> None:
    assert (await run("kill -SEGV $$"))["exit_code"] == 128 + signal.SIGSEGV


async def test_runs_in_the_workspace_with_nothing_to_read(shell: Path) -> None:
    result = await run("pwd -P; cat; echo end")
    assert result["stdout"] == f"{shell.resolve()}\nend\n"


async def test_the_environment_is_clean(shell: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLPOOL_SIGNING_KEY", "a-secret-signing-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    lines = (await run("env"))["stdout"].splitlines()
    names = {line.partition("=")[0] for line in lines}
    assert names <= {"PATH", "HOME", "LANG", "TERM", "PWD", "SHLVL", "_", "LC_CTYPE"}
    assert f"HOME={shell}" in lines
    assert "TERM=dumb" in lines


async def test_the_command_has_no_open_files_of_ours(shell: Path) -> None:
    mine = os.open(shell / "stubborn.py", os.O_RDONLY)
    os.set_inheritable(mine, True)
    probe = "import os\nfor n in range(3, 256):\n try: os.fstat(n); print(n)\n except OSError: 0"
    try:
        result = await run(f'"{sys.executable}" -c "{probe}"')
    finally:
        os.close(mine)
    assert result["stdout"] == ""


async def test_long_output_keeps_start_and_end(shell: Path) -> None:
    result = await run("echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last")
    text = result["stdout"]
    assert len(text) < 30_000
    assert text.startswith("first\nxxx")
    assert text.endswith("x\nlast\n")
    assert "[… 2,975,436 of 3,000,012 bytes left out …]" in text


async def test_output_that_is_not_text_is_still_an_answer(shell: Path) -> None:
    assert (await run("printf 'a\\377\\000b'"))["stdout"] == "a\ufffd\0b"


async def test_a_command_over_its_time_is_killed_and_its_output_told(shell: Path) -> None:
    started = time.monotonic()
    with pytest.raises(ToolError, match=r"timed out after 0\.5 s") as raised:
        await run("echo half; sleep 60", timeout=0.5)
    assert time.monotonic() - started < 30
    assert "stdout until then:\nhalf" in str(raised.value)


async def test_the_calls_own_time_bounds_the_command(shell: Path) -> None:
    context = ToolContext(call_id="c", tool="bash", ends_at=time.monotonic() + 4.5)
    with pytest.raises(ToolError, match="timed out"):
        await run("sleep 60", timeout=60, context=context)
    assert context.remaining > 1


@pytest.mark.parametrize(
    "how",
    ["", pytest.param("session", marks=linux_only), pytest.param("daemon", marks=linux_only)],
)
async def test_a_timeout_kills_grandchildren_that_ignore_term(shell: Path, how: str) -> None:
    command = f'trap "" TERM; "{sys.executable}" stubborn.py {how} & sleep 300; sleep 300'
    task = asyncio.ensure_future(run(command, timeout=1.5))
    await _noted(shell, 2)
    with pytest.raises(ToolError, match="timed out"):
        await task


@pytest.mark.parametrize(
    "how",
    ["", pytest.param("session", marks=linux_only), pytest.param("daemon", marks=linux_only)],
)
async def test_a_cancelled_call_leaves_no_process(shell: Path, how: str) -> None:
    task = asyncio.ensure_future(run(f'"{sys.executable}" stubborn.py {how}; sleep 300'))
    await _noted(shell, 2)
    started = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.01, 0.02, 0.03, 0.05])
async def test_a_call_cancelled_while_it_starts_leaves_no_process(
    shell: Path, delay: float
) -> None:
    task = asyncio.ensure_future(run("echo $$ > pids; sleep 300"))
    await asyncio.sleep(delay)
    started = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("steps", range(1, 8))
async def test_a_call_cancelled_while_a_busy_loop_starts_it_leaves_no_process(
    shell: Path, steps: int
) -> None:
    """The command runs already when the loop, held up by others, comes to know that it does."""
    task = asyncio.ensure_future(run("echo $$ > pids; sleep 300"))
    for _ in range(steps):
        await asyncio.sleep(0)
    time.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_runs_on_in_the_background_is_killed_with_the_command(shell: Path) -> None:
    started = time.monotonic()
    result = await run(
        f'touch pids; "{sys.executable}" stubborn.py daemon; "{sys.executable}" stubborn.py & '
        "while [ $(wc -l < pids) -lt 4 ]; do sleep 0.05; done; echo done"
    )
    assert result["exit_code"] == 0
    assert result["stdout"].endswith("done\n")
    assert time.monotonic() - started < 10
    assert len(_pids(shell)) == 4


async def test_a_command_that_kills_its_warden_is_answered_and_killed(shell: Path) -> None:
    with pytest.raises(ToolError, match="killed the process that watches over it"):
        await run(f'"{sys.executable}" stubborn.py & kill -9 $PPID; sleep 300')


async def test_nothing_outlives_a_worker_killed_with_sigkill(shell: Path) -> None:
    script = textwrap.dedent(f"""
        import asyncio
        from toolpool.workers.tools.bash import bash
        asyncio.run(bash(command='"{sys.executable}" stubborn.py session; sleep 300'))
    """)
    worker = subprocess.Popen([sys.executable, "-c", script])
    try:
        await _noted(shell, 2)
    finally:
        worker.kill()
        worker.wait()
    await eventually(lambda: not any(map(is_running, _pids(shell))), "the command is gone")


async def test_unusable_commands_are_refused_in_words(shell: Path) -> None:
    for command in ("echo \0", "x" * 200_000):
        with pytest.raises(ToolError, match="holds a NUL or is over"):
            await run(command)


async def test_a_missing_workspace_is_the_operators_to_repair(
    shell: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLPOOL_WORKSPACE", str(shell / "gone"))
    settings.cache_clear()
    with pytest.raises(ToolError, match="operator's to repair"):
        await run("true")


async def test_descriptors_are_given_back(shell: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    for _ in range(5):
        await run("true")
    await asyncio.sleep(0.1)
    assert len(os.listdir("/dev/fd")) <= before + 1


def test_it_is_a_write_on_the_loop() -> None:
    assert bash.spec.effects is Effects.WRITE
    assert bash.spec.run_in is RunIn.LOOP
    assert set(bash.spec.input_schema["properties"]) == {"command", "timeout"}  # type: ignore[index]

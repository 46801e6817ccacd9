"""R62: workers import a script for its tools, and must not start another fleet on the way."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from toolpool.workers.running.descendants import _below

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="counts processes in /proc"),
]

TOOL = """
import asyncio
from toolpool import Dispatcher, Settings, SyncDispatcher, tool

@tool
async def add(a: int, b: int) -> int:
    "Add."
    return a + b

CALL = [{"id": "c", "name": "add", "input": {"a": 1, "b": 2}}]

async def main():
    async with Dispatcher.local([add], settings=Settings(slots_process=1)) as dispatcher:
        print("answer", (await dispatcher.dispatch(CALL))[0].data)

def main_sync():
    with SyncDispatcher.local([add], settings=Settings(slots_process=1)) as dispatcher:
        print("answer", dispatcher.dispatch(CALL)[0].data)
"""
UNGUARDED = {
    "async": "asyncio.run(main())",
    "sync": "main_sync()",
    "thread": "import threading, time; threading.Thread(target=main_sync).start(); time.sleep(1)",
    "caught": "try:\n    main_sync()\nexcept Exception as error:\n    print('caught', error)",
}
GUARD = '__name__ == "__main__"'


def run(script: Path, *command: str) -> tuple[str, int, int]:
    """What it said, its exit code, and the most processes it ever had below it."""
    process = subprocess.Popen(
        [sys.executable, *(command or (str(script),))],
        cwd=script.parent,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    most, give_up_at = 0, time.monotonic() + 40.0
    try:
        while process.poll() is None and time.monotonic() < give_up_at and most < 30:
            most = max(most, len(_below(process.pid)))
            time.sleep(0.02)
    finally:
        process.kill()
    said, _ = process.communicate()
    return said, process.returncode, most


@pytest.mark.parametrize("last", ["async", "sync"])
def test_a_script_without_a_guard_is_told_to_have_one(tmp_path: Path, last: str) -> None:
    """It started 186 processes in 45 seconds."""
    script = tmp_path / "my_script.py"
    script.write_text(TOOL + UNGUARDED[last])
    said, code, most = run(script)
    assert code == 1
    assert GUARD in said.strip().splitlines()[-1]
    assert "my_script.py" in said.strip().splitlines()[-1]
    assert most < 12, "a server, two supervisors, their workers, and what ties them to us"


@pytest.mark.parametrize("last", ["thread", "caught"])
def test_a_program_that_hides_the_marker_does_not_multiply_either(
    tmp_path: Path, last: str
) -> None:
    """In a thread, or with the error caught: it works, or says so."""
    script = tmp_path / "my_script.py"
    script.write_text(TOOL + UNGUARDED[last])
    said, _, most = run(script)
    assert most < 12
    assert "answer 3" in said or GUARD in said


def test_a_script_with_a_guard_works(tmp_path: Path) -> None:
    script = tmp_path / "my_script.py"
    script.write_text(f"{TOOL}\nif {GUARD}:\n    asyncio.run(main())\n    main_sync()")
    said, code, _ = run(script)
    assert (said.count("answer 3"), code) == (2, 0), said


@pytest.mark.parametrize("command", ["run", "worker"])
def test_such_a_script_named_to_the_command_line_is_refused(tmp_path: Path, command: str) -> None:
    script = tmp_path / "my_script.py"
    script.write_text(TOOL + UNGUARDED["async"])
    said, code, most = run(script, "-m", "toolpool", command, "--tools", "my_script.py")
    assert code == 2
    assert GUARD in said or "no Redis URL" in said
    assert most < 12

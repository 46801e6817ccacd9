"""Looking at real processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether the process runs; one that ended and was not yet collected does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    if sys.platform == "linux":
        try:
            status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return status.rpartition(")")[2].split()[0] not in ("Z", "X")
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(state.stdout.strip()) and not state.stdout.strip().startswith("Z")


@contextmanager
def python(script: str, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that runs `script`, with pipes to talk to it; killed in the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def read_line(process: subprocess.Popen[str]) -> str:
    """The next line the process writes; fails with its exit status when it ended instead."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"ended without a word, status {process.wait(10)}"
    return line.rstrip("\n")


def kill_hard(process: subprocess.Popen[str]) -> None:
    """SIGKILL, which gives the process no chance to clean up."""
    process.send_signal(signal.SIGKILL)
    process.wait(10)

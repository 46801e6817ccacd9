"""Finds and kills the processes that a tool started, so that no call leaves one behind.

On Linux a child process adopts its orphans (PR_SET_CHILD_SUBREAPER), so that even a daemonised
program stays in its tree. Elsewhere only the process group is killed.
"""

import contextlib
import ctypes
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

WORKER = "TOOLPOOL_WORKER"
"""The variable that tells a worker the id that its supervisor gave it."""
CHILD_OF = "TOOLPOOL_CHILD_OF"
"""The variable by which programs of child processes are recognized: the id of the worker."""
_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS = 20


def adopt() -> None:
    """Make this process the parent of its orphaned descendants (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_own() -> bool:
    """Kill all descendants of this process; True if there were none.

    Without descendants it takes one system call.
    """
    for done in range(_ROUNDS):
        if not _reap():
            return done == 0
        _kill(_below(os.getpid()))
        with contextlib.suppress(ChildProcessError):
            if sys.platform == "linux":
                os.waitpid(-1, 0)
    return False


def end_tree(pid: int) -> None:
    """Kill a child process, its process group and all its descendants."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGSTOP)  # it must not fork while its tree is read
    for _ in range(_ROUNDS):
        below = _below(pid)
        if not below:
            break
        _kill(below)
    end_group(pid)


def end_group(pid: int) -> None:
    """Kill the process group that `pid` leads."""
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(pid, signal.SIGKILL)


def marked() -> dict[str, str]:
    """The environment for a child process."""
    return {**os.environ, CHILD_OF: os.environ.get(WORKER, "")}


def end_orphans(worker: str) -> None:
    """Kill what the child processes of an ended worker started (Linux).

    The kernel kills the child processes with their worker, but not the programs that they run.
    """
    variable = f"{CHILD_OF}={worker}".encode()
    for _ in range(_ROUNDS):
        found = list(_with_variable(variable))
        if not found:
            return
        _kill(found)


def _with_variable(variable: bytes) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if variable in (entry / "environ").read_bytes().split(b"\0"):
                        yield int(entry.name)


def _reap() -> bool:
    """Reap ended children; whether any is alive."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _below(pid: int) -> list[int]:
    """The living descendants of `pid`; empty without /proc."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    with contextlib.suppress(OSError):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                    if state not in "ZX":
                        children[int(parent)].append(int(entry.name))
    found = list(children[pid])
    for descendant in found:
        found.extend(children[descendant])
    return found

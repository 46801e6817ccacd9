"""Finds and kills the processes that a tool started, so that no call leaves one behind.

On Linux a child process adopts its orphans (PR_SET_CHILD_SUBREAPER), so that even a daemonised
program stays in its tree. Elsewhere only the process group is killed.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS = 20
_PAUSE_SECONDS = 0.005


def adopt() -> None:
    """Make this process the parent of its orphaned descendants (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_own() -> bool:
    """Kill all descendants of this process.

    Returns True if there were none, which takes one system call.
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


def end_adopted(own: Collection[int]) -> None:
    """Kill the orphans that this process has adopted, with all that they started (Linux).

    The kernel kills child processes with their worker, but not the programs that they run. `own`
    are this process's other children. Processes in its session are not started by tools either: a
    script may have started them before it became this process.
    """
    session = os.getsid(0)
    for _ in range(_ROUNDS):
        adopted = [
            pid
            for pid, parent, its_session in _processes()
            if parent == os.getpid() and its_session != session and pid not in own
        ]
        if not adopted:
            return
        for pid in adopted:
            end_tree(pid)
        reap_adopted(own)
        time.sleep(_PAUSE_SECONDS)  # a killed process takes a moment to end


def reap_adopted(own: Collection[int]) -> None:
    """Reap adopted orphans that have ended. The `own` children are left to their owners."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid in own:
                return  # it hides the others until its owner has reaped it
            os.waitpid(ended.si_pid, os.WNOHANG)


def _reap() -> bool:
    """Reap ended children. Returns whether any child is alive."""
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
    for process, parent, _ in _processes():
        children[parent].append(process)
    found = list(children[pid])
    for descendant in found:
        found.extend(children[descendant])
    return found


def _processes() -> Iterator[tuple[int, int, int]]:
    """Every living process, its parent and its session; nothing without /proc."""
    with contextlib.suppress(OSError):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    if fields[0] not in "ZX":
                        yield int(entry.name), int(fields[1]), int(fields[3])

"""Prevents forks of a worker process, which would be a second worker on the same connections.

`refuse` makes `os.fork` raise when a tool calls it, and ends forks made in other ways. Programs
start as usual: `subprocess` does not fork Python.
"""

import contextlib
import os
import subprocess
import sys
from typing import NoReturn

STRAYED = 70
"""The exit code of a fork that was ended."""
_SAID = (
    "a worker process cannot be forked: the fork would answer calls as well. Declare the tool "
    "with run_in='process' (a plain `def` is by default), start programs with subprocess, or use "
    "multiprocessing with the 'spawn' method"
)
_worker = 0


def refuse() -> None:
    """Refuse forks of this process from now on."""
    global _worker
    if not _worker:
        os.register_at_fork(after_in_child=_end_fork)
    _worker = os.getpid()
    for name in ("fork", "forkpty"):
        if hasattr(os, name):
            setattr(os, name, _refused)


def end_stray() -> None:
    """End this process if it is an unnoticed fork of a worker."""
    if _worker and os.getpid() != _worker:
        end("its worker")


def end(what: str) -> NoReturn:
    """End this fork at once, without flushing or cleaning up the parent's resources."""
    with contextlib.suppress(OSError):
        os.write(2, f"toolpool: a tool forked {what}, and the fork was ended\n".encode())
    os._exit(STRAYED)


def _refused() -> NoReturn:
    raise RuntimeError(_SAID)


def _end_fork() -> None:
    """Runs first in a fork, from the frame that forked.

    `subprocess` with a `preexec_fn` also forks Python, but briefly.
    """
    if sys._getframe(1).f_code is not subprocess.Popen._execute_child.__code__:  # type: ignore[attr-defined]
        end_stray()

"""Ways in which a tool forks: what comes of the fork must never be an answer."""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import time

WAYS = ("fork", "raw_fork", "failed_exec", "pool", "preexec", "daemon")
_NOWHERE = "/nonexistent/program"
_DAEMON_SECONDS = 0.5
_HANGS_SECONDS = 2.0


def fork(how: str, key: str) -> str:
    """Fork in one of `WAYS`; the fork climbs back through the tool as if the call were its own."""
    if how == "pool":
        with multiprocessing.get_context("fork").Pool(2) as pool:
            pool.map(str, range(4))
        return key
    if how == "preexec":
        subprocess.run(["true"], preexec_fn=_nothing, check=True)
        return key
    pid = ctypes.PyDLL(None).fork() if how == "raw_fork" else os.fork()
    if pid:
        _see_off(pid)
        return key
    if how == "failed_exec":
        os.execv(_NOWHERE, [_NOWHERE])
    if how == "daemon":
        os.setsid()
        if os.fork():
            os._exit(0)
        time.sleep(_DAEMON_SECONDS)
    return f"stray:{key}"


def _see_off(pid: int) -> None:
    """Wait for a fork; one that was made behind Python's back may hang in a lock of its own."""
    give_up_at = time.monotonic() + _HANGS_SECONDS
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > give_up_at:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return
        time.sleep(0.001)


def _nothing() -> None:
    """Makes `subprocess` fork Python."""

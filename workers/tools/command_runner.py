"""Runs one command and leaves nothing of it behind. The script that `bash` starts for each call.

    worker ── control pipe ──▶ warden ── its own session ──▶ the command and what it starts

The command ends when it exits by itself, or when the control pipe ends: because the worker
closed it (timeout, cancellation) or because the worker is gone, even by SIGKILL. Either way all
that is left of the command is killed: its process group, and on Linux also what left the group or
became a daemon, since a subreaper inherits every orphan below it. Elsewhere a process that starts
a session of its own escapes.

A command that kills its own warden (`kill -9 $PPID`) escapes in the same way: the worker then kills
the group, and what left the group stays.

It runs without site-packages, so it imports nothing but the standard library, and little of that.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress

_PR_SET_CHILD_SUBREAPER = 36  # from <linux/prctl.h>
_SWEEP_SECONDS = 2.0
_SWEEP_PAUSE = 0.01


def main(status: int, argv: list[str]) -> int:
    """Run `argv`; its pid and then its exit status go to the descriptor `status`, a line each."""
    if sys.platform == "linux":
        _adopt_orphans()
    woken = _wake_on_child()
    pid = _start(argv, (status, *woken))
    code = None
    try:
        os.write(status, b"%d\n" % pid)
        while code is None:
            ready, _, _ = select.select([0, woken[0]], [], [])
            if 0 in ready:  # the pipe's end: it carries no data
                break
            os.read(woken[0], 4096)
            code = _reap(pid)
    finally:
        _kill_group(pid)
        if code is None:
            os.kill(pid, signal.SIGKILL)  # it may not lead its group yet
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if sys.platform == "linux":
            _sweep()
    os.write(status, b"%d\n" % code)
    return 0


def _start(argv: list[str], private: tuple[int, ...]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        for descriptor in private:
            os.close(descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores these, and exec would inherit that
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.execv(argv[0], argv)
    except OSError as error:
        os.write(2, f"cannot run {argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _wake_on_child() -> tuple[int, int]:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reader, writer


def _reap(command: int) -> int | None:
    """Reap ended processes; the exit code of `command` if it is one of them."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if not pid:
            return code
        if pid == command:
            code = os.waitstatus_to_exitcode(status)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _sweep() -> None:
    """Kill children until none is left: each that dies leaves its own to this process."""
    ends = time.monotonic() + _SWEEP_SECONDS
    while time.monotonic() < ends:
        for child in _children():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(_SWEEP_PAUSE)


def _children() -> list[int]:
    own = os.getpid()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # ended meanwhile
        if int(fields[1]) == own:
            found.append(int(name))
    return found


def _adopt_orphans() -> None:
    import ctypes  # imported late: it loads slowly

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))

"""Ends child processes when their parent ends.

A worker killed with SIGKILL cannot clean up, so its children have to notice:
`die_with_parent` for children written in Python, `tethered` for any other program. On Linux the
kernel ends them (`PR_SET_PDEATHSIG`); elsewhere a thread or a small guard process monitors the
parent.

Linux sends the signal when the *thread* that started the child ends, even if its process lives on.
So start children that should stay from the main thread or through `in_lasting_thread`.

This file is also the script by which `tethered` starts a program. It runs there without
site-packages, so it imports only the standard library.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeVar

_Result = TypeVar("_Result")

_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>
_POLL_SECONDS = 0.25


def die_with_parent(parent_pid: int) -> None:
    """Tie this process to its parent: when `parent_pid` ends, this process is killed.

    Call it first in a child, on its main thread. `parent_pid` must be the parent's own
    `os.getpid()`: `os.getppid()` in the child may already return another process. The tie holds
    across `exec`, but not across `fork`: a grandchild needs its own.
    """
    if sys.platform == "linux":
        _request_death_signal()
    else:
        threading.Thread(
            target=_watch_parent, args=(parent_pid,), name="toolpool-lifeline", daemon=True
        ).start()
    if os.getppid() != parent_pid:  # the parent ended before the tie was made
        _die()


def tethered(argv: Sequence[str]) -> list[str]:
    """A command line that runs the program `argv`, and ends it with this process.

    The program is `exec`'ed, so it has the pid that its starter sees, and its own exit status and
    signals. If it cannot be run, the exit status is 127, with a line on stderr.
    """
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), str(os.getpid()), *argv]


def in_lasting_thread(call: Callable[[], _Result]) -> _Result:
    """Run `call` in a thread that lives as long as this process.

    Returns or raises what `call` does. Blocks until `call` is done. The main thread runs it itself;
    any other thread passes it to one shared thread, so `call` must be short.
    """
    if threading.current_thread() is threading.main_thread():
        return call()
    results: list[_Result] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
            errors.append(error)
        finally:
            done.set()

    _lasting_calls().put(run)
    done.wait()
    if errors:
        raise errors[0]
    return results[0]


_lasting: SimpleQueue[Callable[[], None]] | None = None
_lasting_lock = threading.Lock()


def _lasting_calls() -> SimpleQueue[Callable[[], None]]:
    global _lasting
    with _lasting_lock:
        if _lasting is None:
            calls: SimpleQueue[Callable[[], None]] = SimpleQueue()

            def serve() -> None:
                while True:
                    calls.get()()

            # A daemon, so that the interpreter does not wait for it at exit.
            threading.Thread(target=serve, name="toolpool-lasting", daemon=True).start()
            _lasting = calls
        return _lasting


def _forget_lasting_thread() -> None:
    """Threads do not survive a fork: the child starts its own when it needs one."""
    global _lasting, _lasting_lock
    _lasting, _lasting_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_lasting_thread)


def _request_death_signal() -> None:
    import ctypes  # here, because its import is slow

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL)) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def _watch_parent(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_POLL_SECONDS)
    _die()


def _die() -> None:
    """End this process as the kernel would: at once, without handlers or clean-up."""
    os.kill(os.getpid(), signal.SIGKILL)


if sys.platform != "linux":  # Linux has no kqueue, and its kernel ends the process

    def _start_guard(parent_pid: int) -> None:
        """Fork a process that kills this one when `parent_pid` ends, and ends with this one."""
        import select

        program_pid = os.getpid()
        if os.fork() != 0:
            return
        try:
            os.setsid()  # signals to the program's group must not reach the guard
            os.closerange(0, 256)  # the guard must not hold the program's pipes open
            events = select.kqueue().control(
                [
                    select.kevent(
                        pid,
                        select.KQ_FILTER_PROC,
                        select.KQ_EV_ADD | select.KQ_EV_ONESHOT,
                        select.KQ_NOTE_EXIT,
                    )
                    for pid in (parent_pid, program_pid)
                ],
                1,
                None,
            )
            # A process that has ended already gives an error event, which has its pid too.
            if any(event.ident == parent_pid for event in events):
                os.kill(program_pid, signal.SIGKILL)
        finally:
            os._exit(0)


def _run_tethered(parent_pid: int, argv: list[str]) -> int:
    if sys.platform == "linux":
        die_with_parent(parent_pid)
    else:
        _start_guard(parent_pid)
        if os.getppid() != parent_pid:
            _die()
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores these, and exec would pass that on
        with suppress(AttributeError, ValueError):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.stderr.write(f"cannot run {argv[0]}: {error.strerror}\n")
        return 127


if __name__ == "__main__":
    sys.exit(_run_tethered(int(sys.argv[1]), sys.argv[2:]))

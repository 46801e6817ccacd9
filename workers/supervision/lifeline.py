"""Nothing outlives its parent.

A worker killed with SIGKILL cannot clean up after itself, so what it started has to notice:
`die_with_parent` for children written in Python, `tethered` for any other program. Linux does it
in the kernel (`PR_SET_PDEATHSIG`); elsewhere a thread or a small guard process watches.

Linux delivers the signal when the *thread* that started the child ends, even though its process
lives on. So start what is to stay from the main thread or through `in_lasting_thread`.

This file is also the script that `tethered` puts in front of a program. It runs there without
site-packages, so it imports nothing but the standard library.
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
    """Tie this process to its parent: when `parent_pid` is gone, this process is killed.

    To be called first thing in a child and on its main thread. `parent_pid` is what the parent
    itself took from `os.getpid()`; a child that asked `os.getppid()` could already see another.
    The tie holds across `exec`, not across `fork`: a grandchild needs its own.
    """
    if sys.platform == "linux":
        _request_death_signal()
    else:
        threading.Thread(
            target=_watch_parent, args=(parent_pid,), name="toolpool-lifeline", daemon=True
        ).start()
    if os.getppid() != parent_pid:  # it ended before the tie was made
        _die()


def tethered(argv: Sequence[str]) -> list[str]:
    """The command line that runs the program `argv` tied to the life of this process.

    The program is `exec`'ed, so it has the pid that its starter sees, and its exit status and
    signals are its own. A program that cannot be run gives exit status 127 and a line on stderr.
    """
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), str(os.getpid()), *argv]


def in_lasting_thread(call: Callable[[], _Result]) -> _Result:
    """Run `call` in a thread that lives as long as this process; return or raise what it does.

    Blocks until `call` is done. The main thread lasts, and runs it itself; from any other thread
    it goes to one shared thread, which is no place for work that takes long.
    """
    if threading.current_thread() is threading.main_thread():
        return call()
    results: list[_Result] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asked
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

            # A daemon: the interpreter does not wait for it, so it ends with the process itself.
            threading.Thread(target=serve, name="toolpool-lasting", daemon=True).start()
            _lasting = calls
        return _lasting


def _forget_lasting_thread() -> None:
    """Threads do not survive a fork: the child starts one of its own when it needs it."""
    global _lasting, _lasting_lock
    _lasting, _lasting_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_lasting_thread)


def _request_death_signal() -> None:
    import ctypes  # here, because it takes longer to load than all else in this file

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL)) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def _watch_parent(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_POLL_SECONDS)
    _die()


def _die() -> None:
    """End as the kernel would have ended us: at once, without handlers or cleaning up."""
    os.kill(os.getpid(), signal.SIGKILL)


if sys.platform != "linux":  # Linux has the kernel do it, and no kqueue

    def _start_guard(parent_pid: int) -> None:
        """Fork a process that kills this one once `parent_pid` is gone and ends when this does."""
        import select

        program_pid = os.getpid()
        if os.fork() != 0:
            return
        try:
            os.setsid()  # signals meant for the program's group are not for the guard
            os.closerange(0, 256)  # nor does it hold the program's pipes open
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
            # One that is already gone comes back as an error event, with its pid all the same.
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
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores these, and exec would hand that on
        with suppress(AttributeError, ValueError):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.stderr.write(f"cannot run {argv[0]}: {error.strerror}\n")
        return 127


if __name__ == "__main__":
    sys.exit(_run_tethered(int(sys.argv[1]), sys.argv[2:]))

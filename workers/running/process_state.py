"""Restores a child process between the calls of different sessions.

It runs after every call, so it must be cheap: 15 to 30 microseconds. State that can be restored is
restored; other changes are named, and the child is replaced. Module globals belong to the tool's
author.
"""

import locale
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

_THREADS_SECONDS = 0.01
"""How many seconds a thread that is about to end may take."""
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_REAL_TIME = 32
"""Real-time signals are unused, and checking them would double the cost."""
_LIMITS = tuple(
    getattr(resource, "RLIMIT_" + name)
    for name in ("CPU", "FSIZE", "NOFILE", "AS", "NPROC")
    if hasattr(resource, "RLIMIT_" + name)
)
_FIXED = (
    "another standard output",
    "other limits",
    "another priority",
    "other processors",
    "another user",
    "another time zone",
    "a tracer",
    "another recursion limit",
)
"""State that cannot be restored, in the order in which it is checked."""


def _in_c(module: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The faster C function behind one of the standard library."""
    below: Callable[..., Any] = getattr(sys.modules.get(module), function.__name__, function)
    return below


_handler_of = _in_c("_signal", signal.getsignal)
_mask_of = _in_c("_signal", signal.pthread_sigmask)
_locale_of = _in_c("_locale", locale.setlocale)
_affinity: Callable[[int], Any] = getattr(os, "sched_getaffinity", lambda pid: None)


class ProcessState:
    """A snapshot of this process. Use it on the main thread."""

    def __init__(self) -> None:
        self._signals = tuple(
            number
            for number in map(int, signal.valid_signals())
            if number < _REAL_TIME and number not in (signal.SIGKILL, signal.SIGSTOP)
        )
        self._folder = os.getcwd()
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._environ = os.environ
        self._variables = dict(os.environ)
        self._raw_variables = dict(_raw(os.environ))
        self._handlers = [_handler_of(number) for number in self._signals]
        self._mask = _mask_of(signal.SIG_BLOCK, ())
        self._streams = (sys.stdin, sys.stdout, sys.stderr)
        self._threads = frozenset(threading.enumerate())
        self._path = list(sys.path)
        self._locale = locale.setlocale(locale.LC_ALL)
        self._timeout = socket.getdefaulttimeout()
        self._fixed = _look()

    def restore(self) -> str:
        """Restore what can be restored. Returns what cannot be restored, in words. Never raises."""
        try:
            for timer in _TIMERS:
                if signal.getitimer(timer)[0]:
                    signal.setitimer(timer, 0)
            self._restore()
            return self._left()
        except BaseException as error:  # noqa: BLE001 - a tool's own handlers and objects run here
            return f"something that could not be looked at ({type(error).__name__})"

    def _restore(self) -> None:
        if list(map(_handler_of, self._signals)) != self._handlers:
            for number, handler in zip(self._signals, self._handlers, strict=True):
                if _handler_of(number) is not handler:
                    signal.signal(number, handler)  # a TypeError if it was not set from Python
        if _mask_of(signal.SIG_BLOCK, ()) != self._mask:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        os.umask(self._umask)
        os.environ = self._environ  # noqa: B003 - a tool may have replaced it by a dict
        if _raw(os.environ) != self._raw_variables:
            self._restore_variables()
        sys.stdin, sys.stdout, sys.stderr = self._streams
        if self._timeout != socket.getdefaulttimeout():
            socket.setdefaulttimeout(self._timeout)
        if _locale_of(locale.LC_ALL) != self._locale:
            locale.setlocale(locale.LC_ALL, self._locale)
        if not self._is_in_folder():
            os.chdir(self._folder)

    def _restore_variables(self) -> None:
        for name in os.environ.keys() - self._variables.keys():
            del os.environ[name]
        for name, value in self._variables.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
        time.tzset()

    def _left(self) -> str:
        """The first change that cannot be restored."""
        if threading.active_count() != len(self._threads) and self._has_more_threads():
            return "a thread"
        if sys.path != self._path:
            return "another sys.path"
        if any(stream is not None and stream.closed for stream in self._streams):
            return "a closed standard stream"
        now = _look()
        if now == self._fixed:
            return ""
        pairs = zip(_FIXED, now, self._fixed, strict=True)
        return next(what for what, value, then in pairs if value != then)

    def _is_in_folder(self) -> bool:
        try:
            return os.getcwd() == self._folder
        except OSError:  # the directory was removed
            return False

    def _has_more_threads(self) -> bool:
        ends_at = time.monotonic() + _THREADS_SECONDS
        for thread in threading.enumerate():
            if thread not in self._threads:
                thread.join(max(0.0, ends_at - time.monotonic()))
                if thread.is_alive():
                    return True
        return False


def _look() -> tuple[Any, ...]:
    return (
        (_file(1), _file(2)),
        tuple(map(resource.getrlimit, _LIMITS)),
        os.getpriority(os.PRIO_PROCESS, 0),
        _affinity(0),
        (os.geteuid(), os.getuid(), os.getegid(), os.getgid()),
        time.tzname,
        (sys.gettrace(), sys.getprofile()),
        sys.getrecursionlimit(),
    )


def _file(number: int) -> object:
    try:
        return os.fstat(number)[1:3]  # inode and device
    except OSError:
        return None


def _raw(environ: Any) -> dict[Any, Any]:
    """The raw variables, without decoding each of them."""
    raw = getattr(environ, "_data", None)
    return raw if isinstance(raw, dict) else dict(environ)

"""Tools that write every start and end into a journal of their own, outside of the pool's sight."""

import asyncio
import ctypes
import os
import resource
import signal
import time
from collections.abc import Callable
from typing import Any, Literal

from tests.chaos import forking
from toolpool import tool
from toolpool.workers.tool import Tool

JOURNAL = "CHAOS_JOURNAL"
TIMEOUT = 3.0
RATED_A_SECOND = 8
EXITS = (
    "raise",
    "system_exit",
    "keyboard_interrupt",
    "memory_error",
    "cancelled",
    "not_json",
    "exit",
    "kill",
    "segfault",
    "abort",
    "term",
    "stack",
)
"""Every way out that a hostile tool takes; from `exit` on they end the process it runs in."""
FATAL = frozenset(EXITS[EXITS.index("exit") :])

Effects = Literal["read", "write"] | None


def note(word: str, key: str, mode: str) -> None:
    """Append a line to the journal that the environment names."""
    line = f"{word} {key} {mode} {os.getpid()} {time.monotonic():.4f}\n"
    descriptor = os.open(os.environ[JOURNAL], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())  # one short write: lines of two processes never mix
    finally:
        os.close(descriptor)


def _leave(how: str, key: str) -> Any:  # noqa: C901 - a list of ways out
    match how:
        case "raise":
            raise ValueError("the drawer is stuck")
        case "system_exit":
            raise SystemExit(3)
        case "keyboard_interrupt":
            raise KeyboardInterrupt
        case "memory_error":
            raise MemoryError("all gone")
        case "cancelled":
            raise asyncio.CancelledError
        case "not_json":
            return object()
        case "exit":
            os._exit(7)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(5)
        case "segfault":
            ctypes.string_at(0)
        case "abort":
            os.abort()
        case "term":
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        case "stack":
            _overflow()
        case "rlimit":
            return _starve()
        case "stamp":  # no other run returns the same
            return f"{key}:{os.getpid()}:{time.monotonic()}"
    if how in forking.WAYS:
        return forking.fork(how, key)
    raise AssertionError(how)


def _overflow() -> None:
    """Run over the end of the C stack, which Python does not guard in a callback."""
    callback = ctypes.CFUNCTYPE(None)
    buffer = ctypes.create_string_buffer(1 << 16)
    ctypes.memset(ctypes.addressof(buffer) - (1 << 30), 0, 1)
    callback(0)()


def _starve() -> int:
    """Ask for more memory than this process may have."""
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20), resource.RLIM_INFINITY))
    hoard: list[bytearray] = []
    while True:
        hoard.append(bytearray(1 << 20))


def work(mode: str, key: str, seconds: float = 0.0, how: str = "") -> Any:
    """What every tool does that is no coroutine."""
    note("start", key, mode)
    time.sleep(seconds)
    if how:
        return _leave(how, key)
    note("end", key, mode)
    return key


def _work(mode: str) -> Callable[[str, float, str], Any]:
    def in_mode(key: str, seconds: float = 0.0, how: str = "") -> Any:
        return work(mode, key, seconds, how)

    return in_mode


async def coroutine(key: str, seconds: float = 0.0, how: str = "") -> Any:
    """What every tool does that is one."""
    note("start", key, "loop")
    await asyncio.sleep(seconds)
    if how:
        return _leave(how, key)
    note("end", key, "loop")
    return key


def _declared(
    effects: Effects,
    mode: Literal["loop", "thread", "process"],
    name: str = "",
    rate: str | None = None,
) -> Tool:
    function: Callable[..., Any] = coroutine if mode == "loop" else _work(mode)
    declare = tool(
        name=name or f"{effects or 'plain'}_{mode}",
        description="Note the start, sleep, and note the end.",
        effects=effects,
        run_in=mode,
        timeout=TIMEOUT,
        rate=rate,
    )
    return declare(function)


read_loop = _declared("read", "loop")
write_loop = _declared("write", "loop")
plain_loop = _declared(None, "loop")
read_thread = _declared("read", "thread")
write_thread = _declared("write", "thread")
plain_thread = _declared(None, "thread")
read_process = _declared("read", "process")
write_process = _declared("write", "process")
plain_process = _declared(None, "process")
rated_loop = _declared("write", "loop", "rated_loop", f"{RATED_A_SECOND}/s")

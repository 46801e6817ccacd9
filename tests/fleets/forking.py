"""Coroutine and thread tools that fork their worker, and that start programs as they may."""

import asyncio
import contextlib
import ctypes
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from os import fork as fork_by_name
from pathlib import Path
from typing import Any

from toolpool import tool

SECRET = "private data of another session"


@tool
async def echo(text: str) -> str:
    """Give back the text."""
    return text


@tool(run_in="thread")
def echo_thread(text: str) -> str:
    """Give back the text."""
    return text


def _fork_by_libc() -> int:
    """Fork while no thread asks for the interpreter's lock; else the fork waits to give it up."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(10.0)
    time.sleep(0.02)  # threads that wait with the former interval go first
    try:
        return int(ctypes.PyDLL(None).fork())
    finally:
        sys.setswitchinterval(before)


def _fork(how: str) -> str:
    forks: dict[str, Callable[[], int]] = {
        "os": lambda: os.fork(),
        "pty": lambda: os.forkpty()[0],
        "name": fork_by_name,
        "posix": __import__("posix").fork,
        "libc": _fork_by_libc,
    }
    pid = forks[how]()
    if pid == 0:
        return SECRET
    return f"the fork ended with {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}"


@tool
async def fork_loop(how: str) -> str:
    """Fork on the loop."""
    return _fork(how)


@tool
async def fork_and_wait() -> str:
    """A fork that stays in the loop."""
    if _fork_by_libc() == 0:
        await asyncio.sleep(60)
    return "forked"


@tool(run_in="thread")
def fork_thread(how: str) -> str:
    """Fork in a thread."""
    return _fork(how)


@tool
async def run_loop(how: str) -> str:
    """Start a program."""
    options: dict[str, Any] = {"preexec_fn": os.getpid} if how == "preexec" else {}
    process = await asyncio.create_subprocess_exec(
        "/bin/echo", "hi", stdout=asyncio.subprocess.PIPE, **options
    )
    return (await process.communicate())[0].decode().strip()


@tool(run_in="thread")
def run_thread(how: str) -> str:
    """Start a program."""
    options: dict[str, Any] = {"preexec_fn": os.getpid} if how == "preexec" else {}
    run = subprocess.run(["/bin/echo", "hi"], capture_output=True, text=True, check=True, **options)
    return run.stdout.strip()


@tool(run_in="thread")
def compute(method: str) -> list[int]:
    """Compute in processes of one's own."""
    with multiprocessing.get_context(method).Pool(1) as pool:
        return pool.map(abs, [-1, -2])


@tool(run_in="thread")
def family() -> list[int]:
    """The processes below this worker, but for what multiprocessing keeps."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            is_kept = b"resource_tracker" in (path.parent / "cmdline").read_bytes()
            if int(parent) == os.getpid() and state != "Z" and not is_kept:
                found.append(int(path.parent.name))
    return found

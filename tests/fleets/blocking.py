"""Tools that hold up what they must not hold up."""

import asyncio
import os
import signal
import threading
import time

from toolpool import tool


def _hang(number: int, frame: object) -> None:
    time.sleep(3600)


if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGVTALRM, _hang)


@tool
async def hang_the_main_thread() -> None:
    """Leave Celery's own thread, and no tool, hanging."""
    os.kill(os.getpid(), signal.SIGVTALRM)


@tool
async def whoami() -> int:
    """Name this process."""
    return os.getpid()


@tool
async def echo(text: str) -> str:
    """Give back the text."""
    return text


@tool(timeout=30)
async def block_the_loop(seconds: float) -> str:
    """Sleep where one must not."""
    time.sleep(seconds)
    return "awake"


@tool(timeout=5, effects="read")
async def block_and_read(log: str) -> None:
    """Sleep where one must not, for longer than its timeout, and note each start."""
    with open(log, "a") as file:  # noqa: ASYNC230
        file.write("start\n")
    time.sleep(60)


@tool(timeout=30, effects="read")
async def compute(seconds: float) -> str:
    """Compute for a moment, without a pause."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    return "done"


@tool(timeout=30, effects="read")
async def take_and_read(seconds: float) -> str:
    """Take a while."""
    await asyncio.sleep(seconds)
    return "done"


@tool(timeout=30, effects="read")
async def die_once(flag: str) -> str:
    """End the whole worker the first time."""
    if not os.path.exists(flag):
        with open(flag, "w"):  # noqa: ASYNC230
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


@tool(timeout=30, effects="write")
async def die_writing() -> None:
    """End the whole worker."""
    os.kill(os.getpid(), signal.SIGKILL)


@tool(timeout=0.2, run_in="thread")
def never_end() -> None:
    """Hold a thread for ever."""
    while True:
        time.sleep(1)


@tool(timeout=20)
async def take(seconds: float) -> str:
    """Take a while."""
    await asyncio.sleep(seconds)
    return "done"

"""docket: one worker process with a thousand slots, and results in Redis."""

import asyncio
import os
import sys
from datetime import timedelta
from importlib.metadata import version
from typing import Any

from docket import Docket

from benchmarks.peers import loads
from benchmarks.peers.processes import running

URL = os.environ["PEERS_URL"] + "?max_connections=5000"
"""Each result that is awaited holds a connection; its default is 100."""


async def echo(text: str) -> str:
    """Give back the text."""
    return text


async def work(seconds: float) -> float:
    """Keep a processor busy, in a thread."""
    return await asyncio.to_thread(loads.work, seconds)


async def wait(seconds: float) -> float:
    """Sleep."""
    await asyncio.sleep(seconds)
    return seconds


tasks = [echo, work, wait]


async def _main() -> None:
    command = [
        sys.executable, "-m", "docket", "worker", "--url", URL, "--docket", "peers",
        "--tasks", "benchmarks.peers.docket_side:tasks", "--concurrency", "1000",
        "--logging-level", "WARNING",
    ]  # fmt: skip
    with running(command):
        async with Docket(name="peers", url=URL) as docket:

            async def measured(load: loads.Load, seconds: float) -> loads.Figures:
                task = {"echo": echo, "work": work, "wait": wait}[load.task]

                async def ask(argument: Any) -> Any:
                    execution = await docket.add(task)(argument)
                    return await execution.get_result(timeout=timedelta(seconds=120))

                return await loads.measure(ask, load, seconds)

            execution = await docket.add(echo)("ready")
            assert await execution.get_result(timeout=timedelta(seconds=60)) == "ready"
            await loads.answer_orders(measured, {"pydocket": version("pydocket")})


if __name__ == "__main__":
    loads.run(_main())

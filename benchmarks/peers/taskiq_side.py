"""taskiq: a Redis stream, results in Redis, two worker processes with a thousand slots each."""

import asyncio
import os
import sys
from importlib.metadata import version
from typing import Any

from taskiq.exceptions import TaskiqResultTimeoutError
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from benchmarks.peers import loads
from benchmarks.peers.processes import running

URL = os.environ["PEERS_URL"]
_POLL_SECONDS = 0.001
"""Of one call at a time; it polls for results, and 200 ms is its default."""
_POLL_MANY_SECONDS = 0.02

results: Any = RedisAsyncResultBackend(redis_url=URL, result_ex_time=300, keep_results=False)
broker = RedisStreamBroker(url=URL).with_result_backend(results)


@broker.task("echo")
async def echo(text: str) -> str:
    """Give back the text."""
    return text


@broker.task("work")
def work(seconds: float) -> float:
    """Keep a processor busy, in a thread."""
    return loads.work(seconds)


@broker.task("wait")
async def wait(seconds: float) -> float:
    """Sleep."""
    await asyncio.sleep(seconds)
    return seconds


_TASKS = {"echo": echo, "work": work, "wait": wait}


async def _main() -> None:
    command = [
        sys.executable, "-m", "taskiq", "worker", "benchmarks.peers.taskiq_side:broker",
        "--workers", "2", "--max-async-tasks", "1000", "--log-level", "ERROR",
    ]  # fmt: skip
    with running(command):
        await broker.startup()
        while not await _answers():
            pass
        await loads.answer_orders(_measured, {n: version(n) for n in ("taskiq", "taskiq-redis")})
        await broker.shutdown()


async def _answers() -> bool:
    """Whether a worker does; what is sent before its consumer group exists is lost."""
    try:
        await (await echo.kiq("ready")).wait_result(check_interval=0.02, timeout=1)
    except TaskiqResultTimeoutError:
        return False
    return True


async def _measured(load: loads.Load, seconds: float) -> loads.Figures:
    poll = _POLL_SECONDS if load.in_flight == 1 else _POLL_MANY_SECONDS

    async def ask(argument: Any) -> Any:
        sent = await _TASKS[load.task].kiq(argument)
        return (await sent.wait_result(check_interval=poll, timeout=120)).return_value

    return await loads.measure(ask, load, seconds)


if __name__ == "__main__":
    loads.run(_main())

"""dramatiq: two processes with eight threads each, its defaults, and results in Redis."""

import asyncio
import os
import sys
import time
from importlib.metadata import version
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from benchmarks.peers import loads
from benchmarks.peers.processes import running

URL = os.environ["PEERS_URL"]

broker = RedisBroker(url=URL)
broker.add_middleware(Results(backend=RedisBackend(url=URL), store_results=True))
dramatiq.set_broker(broker)


@dramatiq.actor
def echo(text: str) -> str:
    """Give back the text."""
    return text


@dramatiq.actor
def work(seconds: float) -> float:
    """Keep a processor busy."""
    return loads.work(seconds)


@dramatiq.actor
def wait(seconds: float) -> float:
    """Sleep."""
    time.sleep(seconds)
    return seconds


_ACTORS = {"echo": echo, "work": work, "wait": wait}


async def _main() -> None:
    command = [
        sys.executable, "-m", "dramatiq", "benchmarks.peers.dramatiq_side",
        "--processes", "2", "--threads", "8", "--worker-shutdown-timeout", "1000",
    ]  # fmt: skip
    with running(command):
        await asyncio.to_thread(_result_of, echo.send("ready"))
        await loads.answer_orders(_measured, {"dramatiq": version("dramatiq")})


def _result_of(sent: Any) -> Any:
    return sent.get_result(block=True, timeout=120_000)


async def _measured(load: loads.Load, seconds: float) -> loads.Figures:
    send = _ACTORS[load.task].send
    return await asyncio.to_thread(loads.measure_blocking, send, _result_of, load, seconds)


if __name__ == "__main__":
    loads.run(_main())

"""Celery: prefork with two children, or threads, as its documentation sets them up."""

import asyncio
import os
import sys
import time
from typing import Any

import celery
from celery import Celery

from benchmarks.peers import loads
from benchmarks.peers.processes import running

URL = os.environ["PEERS_URL"]

app = Celery("peers", broker=URL, backend=URL)
app.conf.update(result_expires=300, broker_connection_retry_on_startup=True)


@app.task(name="echo")
def echo(text: str) -> str:
    """Give back the text."""
    return text


@app.task(name="work")
def work(seconds: float) -> float:
    """Keep a processor busy."""
    return loads.work(seconds)


@app.task(name="wait")
def wait(seconds: float) -> float:
    """Sleep."""
    time.sleep(seconds)
    return seconds


_POOLS = {"prefork": "2", "threads": "1000"}


async def _main(pool: str) -> None:
    command = [
        sys.executable, "-m", "celery", "-A", "benchmarks.peers.celery_side", "worker",
        "--pool", pool, "--concurrency", _POOLS[pool], "--loglevel", "ERROR",
    ]  # fmt: skip
    with running(command):
        assert await asyncio.to_thread(lambda: echo.delay("ready").get(timeout=60)) == "ready"
        versions = {"celery": celery.__version__}
        await loads.answer_orders(_measured, versions)


async def _measured(load: loads.Load, seconds: float) -> loads.Figures:
    def result_of(sent: Any) -> Any:
        return sent.get(timeout=120)

    task = app.tasks[load.task]
    return await asyncio.to_thread(loads.measure_blocking, task.delay, result_of, load, seconds)


if __name__ == "__main__":
    loads.run(_main(sys.argv[1]))

"""What is compared with: Celery as its documentation sets it up, prefork with two children.

The worker is started with `celery -A benchmarks.bare_celery worker`; the URL comes from the
environment.
"""

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery
from celery.result import AsyncResult

URL = os.environ.get("BARE_CELERY_URL", "redis://localhost:6379/0")

app = Celery("bare", broker=URL, backend=URL)
app.conf.update(result_expires=300, broker_connection_retry_on_startup=True)


@app.task(name="bare.echo")
def echo(text: str) -> str:
    """Give back the text."""
    return text


@contextmanager
def running(url: str) -> Iterator[None]:
    """A worker with two prefork children, ready."""
    app.conf.broker_url = app.conf.result_backend = url
    environment = {**os.environ, "BARE_CELERY_URL": url}
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.bare_celery", "worker"]
    command += ["--pool", "prefork", "--concurrency", "2", "--loglevel", "ERROR"]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        assert echo.delay("ready").get(timeout=60) == "ready"
        yield
    finally:
        process.terminate()
        process.wait(20)


def throughput(calls: int, in_flight: int) -> float:
    """Calls a second, results awaited, `in_flight` at once."""
    waiting: deque[AsyncResult[Any]] = deque()
    began = time.perf_counter()
    for _ in range(calls):
        if len(waiting) >= in_flight:
            waiting.popleft().get(timeout=60)
        waiting.append(echo.delay("hello"))
    while waiting:
        waiting.popleft().get(timeout=60)
    return calls / (time.perf_counter() - began)


def latencies(calls: int) -> list[float]:
    """Seconds from call to result, one call at a time."""
    found = []
    for _ in range(calls):
        began = time.perf_counter()
        echo.delay("hello").get(timeout=60)
        found.append(time.perf_counter() - began)
    return found

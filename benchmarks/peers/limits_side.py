"""The limits: `asyncio.gather` without any queue, and a Redis pipeline as long as a call's traffic.

The pipeline has as many commands and bytes a call as `make count` counts, and does nothing else.
"""

import asyncio
import os
import sys
import time
from typing import Any

import redis.asyncio
from redis import __version__ as redis_version

from benchmarks.peers import loads

_COMMANDS = 12
_BYTES_TO_SERVER = 1_052
_BYTES_FROM_SERVER = 555
_BATCH = 100
"""Calls in one pipeline, as in a message of toolpool's under load."""


async def _gather(load: loads.Load, seconds: float) -> loads.Figures:
    async def ask(argument: Any) -> Any:
        if load.task == "wait":
            await asyncio.sleep(argument)
        elif load.task == "work":
            loads.work(argument)
        else:
            await asyncio.sleep(0)
        return argument

    return await loads.measure(ask, load, seconds)


async def _pipeline(load: loads.Load, seconds: float) -> loads.Figures:
    client = redis.asyncio.Redis.from_url(os.environ["PEERS_URL"])
    sent = b"x" * (_BYTES_TO_SERVER // _COMMANDS)
    await client.set("answer", b"x" * (_BYTES_FROM_SERVER - 9 * _COMMANDS))
    latencies: list[float] = []
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        start = time.perf_counter()
        pipeline = client.pipeline(transaction=False)
        for _ in range(_BATCH if load.in_flight > 1 else 1):
            pipeline.get("answer")
            for _ in range(_COMMANDS - 1):
                pipeline.set("call", sent)
        await pipeline.execute()
        latencies += [time.perf_counter() - start] * (_BATCH if load.in_flight > 1 else 1)
    await client.aclose()
    return loads.Figures(len(latencies), time.perf_counter() - began, latencies)


async def _main(kind: str) -> None:
    measured = {"gather": _gather, "pipeline": _pipeline}[kind]
    await loads.answer_orders(measured, {"redis-py": redis_version})


if __name__ == "__main__":
    loads.run(_main(sys.argv[1]))

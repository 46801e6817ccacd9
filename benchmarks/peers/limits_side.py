"""The limits: `asyncio.gather` without any queue, a Redis pipeline as long as a call's traffic, and
the round trips of a lone call.

The pipeline has as many commands and bytes a call as `make count` counts, and does nothing else.
The round trips are those of a call that is alone, between two processes, in the same order: a
client records and queues it, a worker that waits for it claims it and settles it, and the client
that waits for the result reads it. Scripts are pipelines here, of the same commands.
"""

import asyncio
import itertools
import multiprocessing
import os
import sys
import time
from typing import Any

import redis
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


_RECORD = {
    "state": "open", "epoch": "x" * 60, "opened": "x" * 16, "attempt": 1, "rerun": 0,
    "until": 10**12, "deadline": 10**12, "claims": 0, "replies": "x" * 30,
}  # fmt: skip
_MESSAGE, _OUTCOME = b"x" * 900, b"x" * 250


def _open(client: "redis.Redis", key: str) -> None:
    pipeline = client.pipeline(transaction=False)
    pipeline.get("epoch")
    pipeline.info("replication")
    pipeline.time()
    pipeline.hmget(key, ["state", "opened", "outcome"])
    pipeline.get(f"ran:{key}")
    pipeline.hset(key, mapping=_RECORD)
    pipeline.pexpire(key, 390_000)
    pipeline.lpush("queue", _MESSAGE)
    pipeline.pexpire("queue", 600_000)
    pipeline.execute()


def _work(url: str) -> None:
    """A worker: takes a message, claims the call and settles it."""
    client = redis.Redis.from_url(url)
    numbers = itertools.count()
    while client.brpop(["queue"], timeout=0) is not None:
        key = f"call:{next(numbers)}"
        claim = client.pipeline(transaction=False)
        claim.get("epoch")
        claim.info("replication")
        claim.time()
        claim.hmget(key, ["state", "attempt", "claimed", "until", "deadline", "epoch"])
        claim.set(f"ran:{key}", "", px=86_400_000, nx=True)
        claim.hset(key, mapping={"state": "claimed", "claimed": "x" * 16, "worker": "x" * 30})
        claim.execute()
        settle = client.pipeline(transaction=False)
        settle.hmget(key, ["state", "settled_by", "replies", "keep"])
        settle.hset(key, mapping={"state": "settled", "outcome": _OUTCOME})
        settle.pexpire(key, 300_000)
        settle.xadd("replies", {"b": _OUTCOME})
        settle.pexpire("replies", 7_200_000)
        settle.execute()


def _round_trips(seconds: float) -> loads.Figures:
    client = redis.Redis.from_url(os.environ["PEERS_URL"])
    worker = multiprocessing.get_context("spawn").Process(
        target=_work, args=(os.environ["PEERS_URL"],), daemon=True
    )
    worker.start()
    latencies: list[float] = []
    last: Any = b"0"
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        start = time.perf_counter()
        _open(client, f"call:{len(latencies)}")
        found: Any = client.xread({"replies": last}, count=32, block=5_000)
        last = found[0][1][-1][0]
        latencies.append(time.perf_counter() - start)
    worker.terminate()
    worker.join()
    client.flushdb()
    return loads.Figures(len(latencies), time.perf_counter() - began, latencies)


async def _trips(load: loads.Load, seconds: float) -> loads.Figures:
    return await asyncio.to_thread(_round_trips, seconds)


async def _main(kind: str) -> None:
    measured = {"gather": _gather, "pipeline": _pipeline, "trips": _trips}[kind]
    await loads.answer_orders(measured, {"redis-py": redis_version})


if __name__ == "__main__":
    loads.run(_main(sys.argv[1]))

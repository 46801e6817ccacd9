"""Ray: tasks, or one async actor with a thousand calls at once."""

import asyncio
import logging
import sys
from typing import Any

import ray

from benchmarks.peers import loads


class Tools:
    """The actor."""

    async def echo(self, text: str) -> str:
        """Give back the text."""
        return text

    async def work(self, seconds: float) -> float:
        """Keep a processor busy, in a thread."""
        return await asyncio.to_thread(loads.work, seconds)

    async def wait(self, seconds: float) -> float:
        """Sleep."""
        await asyncio.sleep(seconds)
        return seconds


def _echo(text: str) -> str:
    return text


def _wait(seconds: float) -> float:
    import time

    time.sleep(seconds)
    return seconds


async def _main(kind: str) -> None:
    ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    try:
        if kind == "actor":
            actor = ray.remote(Tools).options(max_concurrency=1_000).remote()
            remote: dict[str, Any] = {n: getattr(actor, n).remote for n in ("echo", "work", "wait")}
        else:
            functions: dict[str, Any] = {"echo": _echo, "work": loads.work, "wait": _wait}
            remote = {name: ray.remote(function).remote for name, function in functions.items()}

        async def measured(load: loads.Load, seconds: float) -> loads.Figures:
            async def ask(argument: Any) -> Any:
                return await remote[load.task](argument)

            return await loads.measure(ask, load, seconds)

        assert await remote["echo"]("ready") == "ready"
        await loads.answer_orders(measured, {"ray": ray.__version__})
    finally:
        ray.shutdown()


if __name__ == "__main__":
    loads.run(_main(sys.argv[1]))

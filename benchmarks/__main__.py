"""`make bench`: rounds of each side in turn, on one server, and the ratios of their medians."""

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks import bare_celery, memory, toolpool_calls
from toolpool import Dispatcher
from toolpool.contract.settings import Settings
from toolpool.embedded import EmbeddedServer
from toolpool.local import LocalFleet

_TOOLS = ["benchmarks.tools"]

Measure = Callable[[], Awaitable[float]]


async def _in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.to_thread(function, *arguments)


async def compare(name: str, rounds: int, sides: dict[str, Measure]) -> dict[str, Any]:
    """Each side in turn, `rounds` times; the medians, and every round's figure."""
    figures: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds):
        for side, measure in sides.items():
            figures[side].append(await measure())
            print(f"  {name} round {number + 1}: {side} {figures[side][-1]:.4g}", file=sys.stderr)
    medians = {side: statistics.median(values) for side, values in figures.items()}
    ours, theirs = medians["toolpool"], medians["celery"]
    return {"name": name, "medians": medians, "ratio": ours / theirs, "rounds": figures}


async def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All measurements."""
    fleet = await _in_thread(LocalFleet, _TOOLS, Settings())
    found: list[dict[str, Any]] = []
    try:
        with EmbeddedServer() as server, bare_celery.running(server.broker_url):
            async with Dispatcher.connect(settings=fleet.settings) as dispatcher:
                found += await _measure(dispatcher, options)
    finally:
        await _in_thread(fleet.close)
    return found


async def _measure(dispatcher: Dispatcher, options: argparse.Namespace) -> list[dict[str, Any]]:
    in_flight = options.in_flight

    async def celery_rate() -> float:
        rate: float = await _in_thread(bare_celery.throughput, options.celery_calls, in_flight)
        return rate

    async def celery_p50() -> float:
        return statistics.median(await _in_thread(bare_celery.latencies, options.singles)) * 1000

    def rate(tool: str, calls: int) -> Measure:
        return lambda: toolpool_calls.throughput(dispatcher, tool, calls, in_flight)

    async def p50() -> float:
        found = await toolpool_calls.latencies(dispatcher, "echo_loop", options.singles)
        return statistics.median(found) * 1000

    await toolpool_calls.throughput(dispatcher, "echo_loop", 2000, in_flight)
    await toolpool_calls.throughput(dispatcher, "echo_process", 200, in_flight)
    rounds = options.rounds
    return [
        await compare(
            "no-op loop tool, calls/s",
            rounds,
            {"toolpool": rate("echo_loop", options.calls), "celery": celery_rate},
        ),
        await compare(
            "no-op child-process tool, calls/s",
            rounds,
            {"toolpool": rate("echo_process", options.calls // 4), "celery": celery_rate},
        ),
        await compare("single call, p50 ms", rounds, {"toolpool": p50, "celery": celery_p50}),
    ]


def main() -> None:
    """Measure and print a table; `--json FILE` keeps the rounds."""
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--celery-calls", type=int, default=1_000)
    parser.add_argument("--in-flight", type=int, default=500)
    parser.add_argument("--singles", type=int, default=300)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = asyncio.run(run(options)) + memory.measure(options.waiting)
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {options.rounds} rounds")
    for row in found:
        if "ratio" in row:
            medians = row["medians"]
            print(
                f"{row['name']:36} toolpool {medians['toolpool']:>9.4g}   "
                f"bare Celery {medians['celery']:>8.4g}   ratio {row['ratio']:.2f}"
            )
        else:
            print(f"{row['name']:46} {row['figure']:.3g} {row['unit']}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

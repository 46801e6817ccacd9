"""`python -m benchmarks.sharing`: equal calls of a tool that shares runs, and of one that does not.

In turns, on one server, worker and dispatcher: calls a second, of so many equal calls in flight.
"""

import argparse
import asyncio
import statistics
import sys
import time

from toolpool import Dispatcher
from toolpool.contract.settings import Settings
from toolpool.local import LocalFleet

_TOOLS = ("read_alone", "read_single_flight", "read_cached")


async def _rate(dispatcher: Dispatcher, tool: str, calls: int, seconds: float, mark: str) -> float:
    """Calls a second, all asked at once, each by a session of its own."""
    since = time.monotonic()
    turns = await asyncio.gather(
        *(
            dispatcher.dispatch(
                [{"id": "c", "name": tool, "input": {"mark": mark, "seconds": seconds}}],
                session=f"s{number}",
            )
            for number in range(calls)
        )
    )
    elapsed = time.monotonic() - since
    failed = [turn[0].error for turn in turns if not turn[0].ok]
    if failed:
        raise RuntimeError(f"{len(failed)} of {calls} calls failed: {failed[0]}")
    return calls / elapsed


async def _measure(settings: Settings, rounds: int, calls: int, seconds: float) -> None:
    figures: dict[str, list[float]] = {tool: [] for tool in _TOOLS}
    async with Dispatcher.connect(settings=settings) as dispatcher:
        for number in range(-1, rounds):
            for tool in _TOOLS:
                mark = f"{seconds:g}" if tool == "read_cached" else f"{seconds:g} {number}"
                rate = await _rate(dispatcher, tool, calls, seconds, mark)
                if number >= 0:  # the first warms up, and fills the cache
                    figures[tool].append(rate)
    alone = statistics.median(figures["read_alone"])
    for tool, rates in figures.items():
        middle = statistics.median(rates)
        print(
            f"{seconds:g} s of work, {calls} equal calls: {tool} {middle:,.0f} calls/s "
            f"({min(rates):,.0f} to {max(rates):,.0f}), {middle / alone:.2f} x alone"
        )


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=1_000)
    arguments = parser.parse_args()
    fleet = LocalFleet(["benchmarks.tools"], Settings())
    try:
        for seconds in (0.0, 0.1):
            work = _measure(fleet.settings, arguments.rounds, arguments.calls, seconds)
            asyncio.run(work)
    finally:
        fleet.close()
    sys.stdout.flush()


if __name__ == "__main__":
    main()

"""What calls in flight cost a dispatcher: memory for each, and a new one's pace beside them."""

import asyncio
import gc
import multiprocessing
import resource
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import toolpool_calls
from toolpool import Dispatcher
from toolpool.contract.settings import Settings
from toolpool.local import LocalFleet

_PAGE = resource.getpagesize()
_SINGLES = 300
_AT_ONCE = 500
_LOOKS = 300


def measure(calls: int) -> list[dict[str, Any]]:
    """Awaited and background calls, `calls` of each at once; each in a process without a past."""
    fresh = multiprocessing.get_context("spawn")
    rows = []
    for kind, tool in (("awaited", "wait"), ("background", "wait_in_background")):
        with ProcessPoolExecutor(1, mp_context=fresh) as process:
            used, slower = process.submit(_measured, tool, calls).result()
        rows.append(_row(f"memory, {calls:,} {kind} calls in flight", used, "KiB a call"))
    rows.append(_row("single call, p50 beside the background calls / idle", slower, "×"))
    return rows


def _measured(tool: str, calls: int) -> tuple[float, float]:
    room = {"waiting_per_session": calls, "waiting_per_dispatcher": calls}
    settings = Settings(slots_loop=calls + 100, background_wait=0.0, **room)
    fleet = LocalFleet(["benchmarks.tools"], settings)
    try:
        return asyncio.run(_beside(fleet, tool, calls))
    finally:
        fleet.close()


async def _beside(fleet: LocalFleet, tool: str, calls: int) -> tuple[float, float]:
    async with Dispatcher.connect(settings=fleet.settings) as dispatcher:
        idle = await _p50_ms(dispatcher)
        gc.collect()
        before = resident()
        gate = asyncio.Semaphore(_AT_ONCE)
        tasks = [asyncio.ensure_future(_ask(dispatcher, tool, n, gate)) for n in range(calls)]
        if tool == "wait_in_background":
            await asyncio.gather(*tasks)
        for _ in range(_LOOKS):
            await asyncio.sleep(0.1)
            if dispatcher.in_flight() == calls:
                break
        assert dispatcher.in_flight() == calls
        gc.collect()
        used = resident() - before
        beside = await _p50_ms(dispatcher)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return used / calls / 1024, beside / idle


def resident() -> int:
    """Bytes of this process that are in memory now (on macOS: the most there ever were)."""
    if sys.platform == "linux":
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def _ask(dispatcher: Dispatcher, tool: str, number: int, gate: asyncio.Semaphore) -> None:
    call = {"id": f"c{number}", "name": tool, "input": {"seconds": 120}}
    if tool == "wait_in_background":
        async with gate:
            await dispatcher.dispatch([call])
    else:
        await dispatcher.dispatch([call])


async def _p50_ms(dispatcher: Dispatcher) -> float:
    found = await toolpool_calls.latencies(dispatcher, "echo_loop", _SINGLES)
    return statistics.median(found) * 1000


def _row(name: str, figure: float, unit: str) -> dict[str, Any]:
    return {"name": name, "figure": figure, "unit": unit}

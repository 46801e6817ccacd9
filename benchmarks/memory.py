"""What calls in flight cost a dispatcher: memory for each, and a new one's pace beside them."""

import asyncio
import gc
import statistics
import tracemalloc
from typing import Any

from benchmarks import toolpool_calls
from contract.settings import Settings
from toolpool import Dispatcher
from toolpool.local import LocalFleet

_SINGLES = 300
_AT_ONCE = 500
_LOOKS = 600


async def measure(calls: int) -> list[dict[str, Any]]:
    """Awaited and background calls, `calls` of each at once, on one loop worker."""
    room = {"waiting_per_session": calls, "waiting_per_dispatcher": calls}
    settings = Settings(slots_loop=calls + 100, background_wait=0.0, **room)
    fleet = await asyncio.to_thread(LocalFleet, ["benchmarks.tools"], settings)
    try:
        async with Dispatcher.connect(settings=fleet.settings) as dispatcher:
            idle = await _p50_ms(dispatcher)
            awaited = await _memory_of(dispatcher, "wait", calls)
        async with Dispatcher.connect(settings=fleet.settings) as dispatcher:
            background = await _memory_of(dispatcher, "wait_in_background", calls)
            beside = await _p50_ms(dispatcher)
            for entry in await dispatcher.task_list():
                await dispatcher.task_cancel(entry["handle"])
    finally:
        await asyncio.to_thread(fleet.close)
    return [
        _row(f"memory, {calls:,} awaited calls in flight", awaited, "KiB a call"),
        _row(f"memory, {calls:,} background calls in flight", background, "KiB a call"),
        _row("single call, p50 beside them / idle", beside / idle, "×"),
    ]


async def _memory_of(dispatcher: Dispatcher, tool: str, calls: int) -> float:
    """KiB of live objects a call: what the process takes from the system depends on its past."""
    gate = asyncio.Semaphore(_AT_ONCE)
    gc.collect()
    tracemalloc.start()
    tasks = [asyncio.ensure_future(_ask(dispatcher, tool, n, gate)) for n in range(calls)]
    if tool == "wait_in_background":
        await asyncio.gather(*tasks)
        tasks.clear()
    for _ in range(_LOOKS):
        await asyncio.sleep(0.1)
        if dispatcher.in_flight() == calls:
            break
    assert dispatcher.in_flight() == calls
    gc.collect()
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return used / calls / 1024


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

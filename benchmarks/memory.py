"""What a dispatcher's memory costs per call in flight."""

import asyncio
import gc
import resource
import sys
from pathlib import Path
from typing import Any

from toolpool import Dispatcher
from toolpool.local import LocalFleet

_PAGE = resource.getpagesize()


def resident() -> int:
    """Bytes of this process that are in memory now (on macOS: the most there ever were)."""
    if sys.platform == "linux":
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def measure(fleet: LocalFleet, waiting: int) -> dict[str, Any]:
    """KiB per call, with `waiting` calls dispatched and not answered."""
    settings = fleet.settings.model_copy(
        update={"waiting_per_session": waiting, "waiting_per_dispatcher": waiting}
    )
    async with Dispatcher.connect(settings=settings) as dispatcher:
        await dispatcher.dispatch([{"id": "c", "name": "wait", "input": {"seconds": 0}}])
        gc.collect()
        before = resident()
        tasks = [
            asyncio.ensure_future(
                dispatcher.dispatch([{"id": f"c{n}", "name": "wait", "input": {"seconds": 60}}])
            )
            for n in range(waiting)
        ]
        await asyncio.sleep(3.0)
        gc.collect()
        used = resident() - before
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return {
        "name": f"memory, {waiting:,} calls in flight",
        "figure": used / waiting / 1024,
        "unit": "KiB of dispatcher memory per call",
    }

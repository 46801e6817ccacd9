"""A server that is far away."""

import asyncio

from tests.chaos.rows import row
from tests.chaos.scene import ALL_MODES, Scene

_ROUND_TRIP_SECONDS = 0.3
_BACKLOG = {"loop": 60, "thread": 24, "process": 8}


@row("slow-link", short=2, long=20)
async def slow_link(scene: Scene) -> None:
    """300 ms to the server and back, and bursts that wait for slots: nothing is lost or ended."""
    server = await scene.server(listen="port")
    proxy = await scene.proxy(server)
    proxy.delay = proxy.way_there = _ROUND_TRIP_SECONDS / 2
    settings = scene.settings(proxy.url, queue_wait=14.0, slots_thread=8)
    fleet = await scene.fleet(settings)
    pids = [await scene.off_loop(lambda worker=worker: worker.pid) for worker in fleet.workers]
    async with scene.load(settings, rate=15.0) as load:
        for _ in range(scene.faults):
            for mode, count in _BACKLOG.items():
                load.burst(count, mode=mode, seconds=round(scene.rng.uniform(0.3, 1.2), 2))
            scene.fault()
            await asyncio.sleep(4.0)
        await scene.recovered(ALL_MODES)
    after = [await scene.off_loop(lambda worker=worker: worker.pid) for worker in fleet.workers]
    if pids != after:
        scene.figures.problems.append("a worker was ended")
    scene.expect_all_ok()

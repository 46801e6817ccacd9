"""A server that is far away."""

from tests.chaos.rows import row
from tests.chaos.scene import Scene

_ROUND_TRIP_SECONDS = 0.3
_BACKLOG = {"loop": 40, "thread": 12, "process": 5}
_RATE = 0.5
"""Calls a second besides. Celery takes some 0.9 s for a message here: three round trips."""


@row("slow-link", short=1, long=20)
async def slow_link(scene: Scene) -> None:
    """300 ms to the server and back, and bursts that lie on the queue: nothing is ended for it."""
    server = await scene.server(listen="port")
    proxy = await scene.proxy(server)
    proxy.delay = proxy.way_there = _ROUND_TRIP_SECONDS / 2
    settings = scene.settings(proxy.url, queue_timeout=20.0)
    fleet = await scene.fleet(settings)
    pids = [await scene.off_loop(lambda worker=worker: worker.pid) for worker in fleet.workers]
    async with scene.load(settings, rate=_RATE) as load:
        for _ in range(scene.faults):
            for mode, count in _BACKLOG.items():
                load.burst(count, mode=mode, seconds=round(scene.rng.uniform(0.3, 1.2), 2))
            scene.fault()
            await load.drained()
    after = [await scene.off_loop(lambda worker=worker: worker.pid) for worker in fleet.workers]
    if pids != after:
        scene.figures.problems.append("a worker was ended")
    scene.expect_all_ok()

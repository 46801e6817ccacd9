"""Tools that leave in every way there is, and tools that never come back."""

import asyncio
from collections.abc import Collection
from contextlib import suppress

from tests.chaos import processes
from tests.chaos.rows import row
from tests.chaos.scene import ALL_MODES, Scene
from tests.chaos.tools import EXITS, FATAL


@row("hostile-exits", short=20, long=360)
async def hostile_exits(scene: Scene) -> None:
    """Twelve exits in every run mode; on the loop and in a thread some end the whole worker."""
    server = await scene.server()
    settings = scene.settings(server.url)
    await scene.fleet(settings)
    plays = [(how, mode) for how in EXITS for mode in ALL_MODES]
    harmless = [(how, mode) for how, mode in plays if mode == "process" or how not in FATAL]
    deadly = [play for play in plays if play not in harmless]
    if not scene.long:
        # Every one that ends a worker costs a start of a worker: a few of them stand for all.
        plays = harmless + scene.rng.sample(deadly, 2)
        scene.faults = len(plays)
    scene.rng.shuffle(plays)
    async with scene.load(settings, rate=20.0) as load:

        async def leave() -> Collection[str]:
            how, mode = plays[scene.figures.faults % len(plays)]
            known = set(load.asked)
            load.burst(1, mode=mode, how=how)
            if (how, mode) in deadly:
                scene.deadly.update(load.asked - known)
            await asyncio.sleep(0.3)
            return [mode] if mode == "process" else ["loop", "thread"]

        await scene.repeat(leave, 0.0, 0.2)


@row("overdue", short=150, long=5000)
async def overdue(scene: Scene) -> None:
    """Every tool sleeps past its deadline, in bursts: all are answered, and on time.

    By the worker as a rule; now and then all workers stand still, and the dispatcher has to.
    """
    server = await scene.server()
    settings = scene.settings(server.url, queue_timeout=3.0, slots_thread=64)
    fleet = await scene.fleet(settings)
    async with scene.load(settings, rate=1.0) as load:
        await asyncio.sleep(1.0)
        while scene.figures.faults < scene.faults:
            for mode, count in (("loop", 40), ("thread", 6), ("process", 4)):
                load.burst(count, mode=mode, seconds=8.0)
                scene.figures.faults += count
            await scene.pause(0.5, 2.0 if scene.long else 1.0)
            if scene.figures.faults >= scene.faults or scene.rng.random() < _STANDSTILLS:
                pids = await scene.off_loop(lambda: [w.pid for w in fleet.workers if w.pid])
                processes.send(pids, processes.STOP)
                await asyncio.sleep(load.allowed)
                with suppress(ProcessLookupError):
                    processes.send(pids, processes.CONTINUE)
        await load.drained()
        recovered = asyncio.ensure_future(scene.recovered())
        await asyncio.sleep(0)
        for mode in ("loop", "thread", "process"):  # at this rate chance may leave one out for long
            load.burst(1, mode=mode)
        await recovered


_STANDSTILLS = 0.05

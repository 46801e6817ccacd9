"""Workers are told to stop under load: nothing is lost, and nothing runs twice."""

import asyncio
import time
from collections.abc import Collection

from tests.chaos.fleet import Fleet, Worker
from tests.chaos.rows import row
from tests.chaos.scene import Scene

_SLOWEST = 1.0
"""Shorter than the grace: a worker that drains has the time to end every call it runs."""
_OVERHEAD_SECONDS = 6.0


@row("warm-stop", short=2, long=50)
async def warm_stop(scene: Scene) -> None:
    """TERM: a worker drains and ends; another starts in its place. Every call is ok.

    One of each kind always runs: without any, calls can do nothing but expire.
    """
    fleet = await _staffed(scene)

    async def stop() -> Collection[str]:
        worker = scene.rng.choice(fleet.workers)
        await _all_back(scene, fleet, worker.run_in)
        worker.stop()
        await _ended(scene, worker, fleet.settings.drain_timeout + _OVERHEAD_SECONDS)
        await scene.off_loop(worker.start)
        return worker.run_in.split(",")

    async with scene.load(fleet.settings, slowest=_SLOWEST):
        await scene.repeat(stop, 0.2, 1.5)
        await _all_back(scene, fleet)
    scene.expect_all_ok()


@row("rolling-stop", short=1, long=50)
async def rolling_stop(scene: Scene) -> None:
    """Every worker in turn: the next one is stopped when the one before has a successor."""
    fleet = await _staffed(scene)

    async def roll() -> Collection[str]:
        for worker in fleet.workers:
            worker.stop()
            await _ended(scene, worker, fleet.settings.drain_timeout + _OVERHEAD_SECONDS)
            await scene.off_loop(worker.start)
            await _all_back(scene, fleet)
        return ("loop", "thread", "process")

    async with scene.load(fleet.settings, slowest=_SLOWEST):
        await scene.repeat(roll, 0.2, 1.5)
    scene.expect_all_ok()


@row("cold-stop", short=3, long=50)
async def cold_stop(scene: Scene) -> None:
    """A second TERM, within a second of the first, ends a worker with what it runs."""
    fleet = await _staffed(scene)

    async def stop() -> Collection[str]:
        worker = scene.rng.choice(fleet.workers)
        worker.stop()
        await scene.pause(0.0, 1.0)
        worker.stop()
        await _ended(scene, worker, _OVERHEAD_SECONDS)
        await scene.off_loop(worker.start)
        return worker.run_in.split(",")

    async with scene.load(fleet.settings, slowest=_SLOWEST):
        await scene.repeat(stop, 0.2, 1.5)


async def _staffed(scene: Scene) -> Fleet:
    server = await scene.server()
    return await scene.fleet(scene.settings(server.url, slots_process=4), copies=2)


async def _ended(scene: Scene, worker: Worker, within: float) -> None:
    began = time.monotonic()
    code = await asyncio.to_thread(worker.supervisor.wait)
    took = time.monotonic() - began
    if took > within:
        scene.figures.problems.append(f"a worker took {took:.1f} s to stop, not {within:g} s")
    if code not in (0, 1, -15):
        scene.figures.problems.append(f"a worker that was stopped ended with status {code}")


async def _all_back(scene: Scene, fleet: Fleet, group: str = "") -> None:
    expected = sum(group in worker.run_in for worker in fleet.workers)
    while await scene.off_loop(lambda: fleet.living(group)) < expected:
        await asyncio.sleep(0.1)

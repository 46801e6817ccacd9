"""Tools that fork, in every way there is, beside the calls of others."""

import asyncio
from collections.abc import Collection

from tests.chaos.forking import WAYS
from tests.chaos.rows import row
from tests.chaos.scene import ALL_MODES, Scene


@row("forks", short=18, long=360)
async def forks(scene: Scene) -> None:
    """Refused forks, forks that climb back, pools, daemons: no answer is another call's.

    A process that runs tools may fork; a worker may not, and is told. All others are answered ok.
    """
    server = await scene.server()
    settings = scene.settings(server.url, slots_process=3)
    fleet = await scene.fleet(settings)
    (threads,) = fleet.of("thread")
    before = await scene.off_loop(lambda: threads.pid)
    plays = [(how, mode) for how in WAYS for mode in ALL_MODES]
    scene.rng.shuffle(plays)
    forking: set[str] = set()
    async with scene.load(settings, rate=15.0) as load:

        async def fork() -> Collection[str]:
            how, mode = plays[scene.figures.faults % len(plays)]
            known = set(load.asked)
            load.burst(1, mode=mode, how=how)
            forking.update(load.asked - known)
            await asyncio.sleep(0.1)
            return [mode]

        await scene.repeat(fork, 0.05, 0.3)
    _expect(scene, forking)
    if before != await scene.off_loop(lambda: threads.pid):
        scene.figures.problems.append("a fork ended a worker")


def _expect(scene: Scene, forking: Collection[str]) -> None:
    """Of calls that fork in a worker, an error of their own is the right answer."""
    failed = [
        f"{asked.key}:{asked.tool}:{answer.code}"
        for asked in scene.book.calls.values()
        for answer in asked.answers
        if not answer.ok and not (asked.key in forking and asked.mode in ("loop", "thread"))
    ]
    if failed:
        scene.figures.problems.append(f"not ok: {len(failed)}, among them {failed[:6]}")

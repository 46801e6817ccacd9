"""The server is away for longer than a lease lasts, while calls run that take longer still."""

import asyncio
from collections.abc import Collection

from tests.chaos.load import Load
from tests.chaos.rows import row
from tests.chaos.scene import ALL_MODES, Scene

_TIMEOUT_SECONDS = (15.0, 60.0)
_LONGEST = 60.0
"""How long an outage may be that loses nothing of what runs; played in the long form alone."""
_ROOM_SECONDS = 22.0
"""What a call's deadline lies behind the outage: it is to end and be settled after it."""
_RUNNING = {"loop": 12, "thread": 5, "process": 4}


@row("stalls", short=2, long=14)
async def stalls(scene: Scene) -> None:
    """SIGSTOP of the server, or SIGKILL and a start with its data later; what runs is answered."""
    server = await scene.server()
    settings = scene.settings(server.url, slots_process=8)
    await scene.fleet(settings)
    lengths = [scene.rng.uniform(3.0, 20.0 if scene.long else 8.0) for _ in range(scene.faults)]
    lengths[0] = _LONGEST if scene.long else 10.0

    async with scene.load(settings, rate=8.0) as load:

        async def stall() -> Collection[str]:
            number = scene.figures.faults
            seconds = lengths[number]
            await _set_running(scene, load, seconds)
            with scene.outage():
                if number % 3 == 1:
                    await scene.off_loop(server.kill)
                    await asyncio.sleep(seconds / 2)
                    await scene.off_loop(server.start)
                else:
                    server.freeze()
                    await asyncio.sleep(seconds)
                    server.thaw()
            return ALL_MODES

        await scene.repeat(stall, 0.2, 1.0)


async def _set_running(scene: Scene, load: Load, outage: float) -> None:
    """Calls of every kind, in every mode, that end during the outage or after it."""
    began = set(scene.book.calls)
    for mode, count in _RUNNING.items():
        for _ in range(count):
            seconds = round(scene.rng.uniform(1.5, outage + 4.0), 2)
            timeout = max(scene.rng.uniform(*_TIMEOUT_SECONDS), outage + _ROOM_SECONDS)
            load.burst(1, mode=mode, timeout=timeout, seconds=seconds)
    asked = {key for key, call in scene.book.calls.items() if call.allowed > load.allowed} - began

    def are_running() -> bool:
        scene.journal.follow()
        return asked <= scene.journal.starts.keys()

    await scene.until(are_running, "the long calls run")

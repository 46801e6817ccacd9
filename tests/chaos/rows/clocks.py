"""Clocks that jump, and clocks that are wrong: times are told by what nobody can set."""

import asyncio
import itertools
import time
from collections.abc import Collection

from tests.chaos.asker import Asker
from tests.chaos.book import Asked
from tests.chaos.fleet import environment_of
from tests.chaos.load import KINDS, allowed_seconds
from tests.chaos.rows import row
from tests.chaos.scene import ALL_MODES, Scene
from tests.chaos.wall_clock import WallClock

_LONG_ENOUGH_SECONDS = 14.0
"""To wait for one lease after the server's clock has jumped, and be started then."""
_JUMPS = (60.0, -60.0, 400.0, -400.0, 3_700.0, -3_700.0)
"""Leases and records end at once, or last too long; with the last two, reply streams as well."""
_HOUR = 3_600.0
_RATE = 10.0
_SETTLED_SECONDS = 0.05


@row("clock-jumps", short=4, long=60)
async def clock_jumps(scene: Scene) -> None:
    """The server's clock jumps, forwards and back, by a minute to an hour."""
    clock = WallClock(scene.directory, "server")
    server = await scene.server(environment=clock.environment)
    settings = scene.settings(server.url, queue_timeout=_LONG_ENOUGH_SECONDS)
    await scene.fleet(settings)
    jumps = list(_JUMPS)
    if not scene.long:  # the longest there and back, and two more
        jumps = scene.rng.sample(_JUMPS[:-2], 2) + list(_JUMPS[-2:])

    async def jump() -> Collection[str]:
        clock.offset += jumps[scene.figures.faults % len(jumps)]
        return ALL_MODES

    async with scene.load(settings) as load:
        load.burst(6, mode="loop", seconds=2.0)
        await scene.repeat(jump, 0.5, 2.0)


@row("wrong-clocks", short=2, long=20)
async def wrong_clocks(scene: Scene) -> None:
    """Workers and dispatchers with clocks an hour ahead and an hour behind: nothing is lost."""
    server = await scene.server()
    settings = scene.settings(server.url)
    allowed = allowed_seconds(settings)
    askers = []
    for name, offset in (("ahead", _HOUR), ("behind", -_HOUR)):
        clock = WallClock(scene.directory, name)
        clock.offset = offset
        await scene.fleet(settings, name=name, environment=clock.environment)
        environment = environment_of(settings, scene.journal.path) | clock.environment
        askers.append(Asker(scene.book, environment, allowed))
    await asyncio.gather(*(asker.start() for asker in askers))
    numbers = itertools.count()

    def ask() -> None:
        key = f"c{next(numbers)}"
        tool = f"{scene.rng.choice(KINDS)}_{scene.rng.choice(ALL_MODES)}"
        arguments = {"key": key, "seconds": round(scene.rng.uniform(0.0, 0.4), 2)}
        call = {"id": key, "name": tool, "input": arguments, "session": "s", "turn": key}
        some = scene.rng.sample(askers, scene.rng.randrange(1, 3))
        scene.book.ask(Asked(key, tool, time.monotonic(), allowed, askers=len(some)))
        for asker in some:
            asker.ask(call)

    for _ in range(scene.faults):
        until = time.monotonic() + 4.0
        while time.monotonic() < until:
            await asyncio.sleep(scene.rng.expovariate(_RATE))
            ask()
        scene.fault()
    give_up_at = time.monotonic() + allowed
    while any(asker.unanswered for asker in askers) and time.monotonic() < give_up_at:
        await asyncio.sleep(_SETTLED_SECONDS)
    for asker in askers:
        await asker.kill()
    scene.expect_all_ok()

"""Two deployments that share a server."""

from collections.abc import Collection
from contextlib import AsyncExitStack
from typing import Any

from tests.chaos.fleet import Fleet
from tests.chaos.journal import Journal
from tests.chaos.load import Load
from tests.chaos.rows import row
from tests.chaos.scene import Scene
from toolpool import Dispatcher

_PREFIXES = (("pool", "pool-2"), ("pool", "pool.default"), ("pool", "pool:call"), ("a.b", "a:b"))
"""Names that are alike."""
_ROOMY: dict[str, Any] = {"queue_timeout": 30.0, "slots_process": 4}
"""Calls may wait longer than workers take to drain and to start."""


@row("two-prefixes", short=1, long=30)
async def two_prefixes(scene: Scene) -> None:
    """Tools of the same names under two key prefixes; the workers of one stop, its calls wait.

    Each call runs in its own deployment, and none expires while it waits for that.
    """
    server = await scene.server()
    own_keys = scene.rng.random() < 0.5
    prefixes = scene.rng.choice(_PREFIXES)
    first = scene.settings(server.url, key_prefix=prefixes[0], **_ROOMY)
    second = scene.settings(server.url, key_prefix=prefixes[1], **_ROOMY)
    if not own_keys:
        second = second.model_copy(update={"signing_key": first.signing_key})
    journals = [Journal(scene.directory / f"journal-{number}") for number in range(2)]
    fleets = [
        await scene.fleet(settings, name=name, journal=journal)
        for settings, name, journal in zip(
            (first, second), ("first", "second"), journals, strict=True
        )
    ]

    async with AsyncExitStack() as stack:
        loads = []
        for settings in (first, second):
            dispatcher = await stack.enter_async_context(Dispatcher.connect(settings=settings))
            load = Load(dispatcher, scene.book, scene.rng, rate=8.0)
            loads.append(await stack.enter_async_context(load))

        async def stop_one() -> Collection[str]:
            number = scene.rng.randrange(2)
            await _stop(scene, fleets[number], loads[number])
            return ()

        await scene.repeat(stop_one, 0.5, 2.0)
    scene.journal.absorb(journals)
    for load, journal in zip(loads, journals, strict=True):
        journal.follow()
        strangers = journal.starts.keys() - load.asked
        if strangers:
            scene.figures.problems.append(f"run in the other deployment: {sorted(strangers)[:6]}")
    scene.expect_all_ok()


async def _stop(scene: Scene, fleet: Fleet, load: Load) -> None:
    """End its workers of a kind, let calls wait for a while, and start them again."""
    worker = scene.rng.choice(fleet.workers)
    worker.stop()
    await scene.off_loop(worker.supervisor.wait)
    load.burst(8)
    await scene.pause(0.5, 1.5)
    await scene.off_loop(worker.start)
    await scene.off_loop(lambda: fleet.wait_for_leases(len(fleet.workers)))

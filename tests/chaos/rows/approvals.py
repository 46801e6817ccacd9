"""Calls that wait for a person while everything around them dies."""

import asyncio
from collections.abc import Collection

from tests.chaos import policy
from tests.chaos.rows import row
from tests.chaos.scene import ALL_MODES, Scene
from toolpool import Dispatcher


@row("approvals", short=5, long=100)
async def approvals(scene: Scene) -> None:
    """Workers are killed and the server is started again, while a person decides about calls."""
    server = await scene.server()
    settings = scene.settings(server.url)
    fleet = await scene.fleet(settings)

    async def hurt() -> Collection[str]:
        if scene.rng.random() < 0.5:
            worker = scene.rng.choice(fleet.workers)
            await scene.off_loop(worker.kill)
            return worker.run_in.split(",")
        with scene.outage():
            await scene.off_loop(server.kill)
            await scene.pause(0.1, 0.8)
            await scene.off_loop(server.start)
        return ALL_MODES

    async with Dispatcher.connect(settings=settings) as office:
        anna = policy.Approver(office, scene.rng)
        deciding = asyncio.ensure_future(anna.decide())
        async with scene.load(settings, hooks=policy.asking(scene.rng), rate=15.0):
            await scene.repeat(hurt, 1.0, 4.0)
        deciding.cancel()
    asked = anna.approved | anna.denied
    if not (anna.approved and anna.denied):
        scene.figures.problems.append("nobody was asked")
    scene.expect_unapproved_unstarted(anna.denied - anna.approved)
    scene.figures.notes.append(f"{len(asked)} calls were decided by a person")

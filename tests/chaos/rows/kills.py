"""SIGKILL of workers and of the processes that run tools."""

import signal
from collections.abc import Collection

from tests.chaos import processes
from tests.chaos.rows import row
from tests.chaos.scene import Scene


@row("worker-kill", short=4, long=200)
async def worker_kill(scene: Scene) -> None:
    """The worker and its whole group are gone at once, with calls running and messages in hand."""
    server = await scene.server()
    settings = scene.settings(server.url)
    fleet = await scene.fleet(settings, copies=2 if scene.long else 1)

    async def kill() -> Collection[str]:
        worker = scene.rng.choice(fleet.workers)
        await scene.off_loop(worker.kill)
        return worker.run_in.split(",")

    async with scene.load(settings):
        await scene.repeat(kill, 0.5, 4.0)


@row("group-kill", short=3, long=60)
async def group_kill(scene: Scene) -> None:
    """A worker and its supervisor are gone at once, as with their container; others stay."""
    server = await scene.server()
    settings = scene.settings(server.url)
    fleet = await scene.fleet(settings, copies=2)

    async def kill() -> Collection[str]:
        worker = scene.rng.choice(fleet.workers)
        await scene.off_loop(worker.kill_with_supervisor)
        await scene.off_loop(worker.start)
        return worker.run_in.split(",")

    async with scene.load(settings):
        await scene.repeat(kill, 1.0, 6.0)


@row("child-kill", short=12, long=300)
async def child_kill(scene: Scene) -> None:
    """A process that runs a tool, or waits for one, is killed."""
    server = await scene.server()
    settings = scene.settings(server.url)
    fleet = await scene.fleet(settings)

    async def kill() -> Collection[str]:
        pids = await scene.off_loop(lambda: fleet.of("process")[0].tool_pids)
        processes.send(scene.rng.sample(pids, min(len(pids), 1)), signal.SIGKILL)
        return ["process"]

    async with scene.load(settings, modes=("loop", "process"), rate=15.0, slowest=0.3):
        await scene.repeat(kill, 0.1, 0.8)


@row("memory", short=12, long=100)
async def memory(scene: Scene) -> None:
    """Tools run out of memory: by their own word, and at a limit of their process."""
    server = await scene.server()
    settings = scene.settings(server.url)
    await scene.fleet(settings)
    async with scene.load(settings) as load:

        async def starve() -> Collection[str]:
            how = scene.rng.choice(["memory_error", "rlimit"])
            load.burst(1, mode="process", how=how)
            return ["process"]

        await scene.repeat(starve, 0.05, 0.5)

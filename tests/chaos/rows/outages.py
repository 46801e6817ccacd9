"""The server dies and comes back with its data, or stands still."""

from collections.abc import Collection
from contextlib import suppress

from tests.chaos import processes
from tests.chaos.rows import row
from tests.chaos.scene import ALL_MODES, Scene
from tests.chaos.servers import Server

_LONG_ENOUGH_SECONDS = 14.0
"""To wait for one lease after the server changed, and be started then."""


@row("redis-restart", short=3, long=100)
async def redis_restart(scene: Scene) -> None:
    """SIGKILL of the server, which starts again with its append-only file 0.2 to 3 s later."""
    server = await scene.server()
    settings = scene.settings(server.url, queue_timeout=_LONG_ENOUGH_SECONDS)
    await scene.fleet(settings)

    async def restart() -> Collection[str]:
        with scene.outage():
            await scene.off_loop(server.kill)
            await scene.pause(0.2, 3.0)
            await scene.off_loop(server.start)
        return ALL_MODES

    async with scene.load(settings):
        await scene.repeat(restart, 0.5, 3.0)


@row("frozen", short=3, long=40)
async def frozen(scene: Scene) -> None:
    """SIGSTOP of the server, of a worker, or of a worker and all that it runs."""
    server = await scene.server()
    settings = scene.settings(server.url)
    fleet = await scene.fleet(settings)
    longest = 20.0 if scene.long else 6.0
    whom = ["server", "worker", "tree"]
    scene.rng.shuffle(whom)

    async def freeze() -> Collection[str]:
        target = whom[scene.figures.faults % len(whom)]
        if target == "server":
            with scene.outage():
                server.freeze()
                await scene.pause(2.0, longest)
                server.thaw()
            return ALL_MODES
        worker = scene.rng.choice(fleet.workers)
        pid = await scene.off_loop(lambda: worker.pid)
        pids = [pid] if pid else []
        if pid and target == "tree":
            pids += await scene.off_loop(lambda: processes.descendants_of(pid))
        processes.send(pids, processes.STOP)
        await scene.pause(2.0, longest)
        with suppress(ProcessLookupError):
            processes.send(pids, processes.CONTINUE)
        return worker.run_in.split(",")

    async with scene.load(settings):
        await scene.repeat(freeze, 0.5, 2.0)


@row("refused-writes", short=3, long=40)
async def refused_writes(scene: Scene) -> None:
    """The server answers, and takes no writes: its memory is full, or its replicas are gone."""
    server = await scene.server()
    settings = scene.settings(server.url)
    await scene.fleet(settings)

    async def refuse() -> Collection[str]:
        setting, on, off = scene.rng.choice(_REFUSALS)
        with scene.outage():
            await scene.off_loop(lambda: _set(server, setting, on))
            await scene.pause(0.5, 4.0)
            await scene.off_loop(lambda: _set(server, setting, off))
        return ALL_MODES

    async with scene.load(settings):
        await scene.repeat(refuse, 0.5, 2.0)


_REFUSALS = (("maxmemory", "1", "0"), ("min-replicas-to-write", "1", "0"))


def _set(server: Server, setting: str, value: str) -> None:
    with server.client() as client:
        client.config_set(setting, value)

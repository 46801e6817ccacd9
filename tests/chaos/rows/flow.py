"""What lies between clients and server: lost replies, cut connections, lost data, failover."""

from collections.abc import Collection

from redis.exceptions import RedisError

from tests.chaos.proxy import Proxy
from tests.chaos.rows import row
from tests.chaos.scene import ALL_MODES, Scene
from tests.chaos.servers import Server

_LONG_ENOUGH_SECONDS = 14.0
"""To wait for one lease after the server changed, and be started then."""


@row("lost-replies", short=6, long=40)
async def lost_replies(scene: Scene) -> None:
    """For a second or three, replies are lost on the way and connections cut."""
    server = await scene.server(listen="port")
    proxy = await scene.proxy(server)
    settings = scene.settings(proxy.url)
    await scene.fleet(settings)

    async def lose() -> Collection[str]:
        proxy.lose_reply = scene.rng.uniform(0.02, 0.2)
        proxy.cut = scene.rng.uniform(0.0, 0.05)
        await scene.pause(1.0, 3.0)
        proxy.lose_reply = proxy.cut = 0.0
        return ALL_MODES

    async with scene.load(settings):
        await scene.repeat(lose, 0.3, 1.0)
    scene.figures.notes.append(f"{proxy.faults} replies lost and connections cut")


@row("lost-clients", short=8, long=100)
async def lost_clients(scene: Scene) -> None:
    """CLIENT KILL of every connection, or of one of them."""
    server = await scene.server()
    settings = scene.settings(server.url)
    await scene.fleet(settings)

    def end_connections() -> None:
        with server.client() as client:
            others = [c["id"] for c in client.client_list() if c["id"] != client.client_id()]
            some = others if scene.rng.random() < 0.5 else scene.rng.sample(others, 1)
            for connection in some:
                client.client_kill_filter(_id=connection)

    async def kill() -> Collection[str]:
        await scene.off_loop(end_connections)
        return ALL_MODES

    async with scene.load(settings):
        await scene.repeat(kill, 0.2, 1.0)


@row("lost-data", short=3, long=40)
async def lost_data(scene: Scene) -> None:
    """FLUSHALL: every record, message, lease and tool is gone."""
    server = await scene.server()
    settings = scene.settings(server.url)
    await scene.fleet(settings)

    def flush() -> None:
        with server.client() as client:
            client.flushall()

    async def lose() -> Collection[str]:
        await scene.off_loop(flush)
        return ALL_MODES

    async with scene.load(settings):
        await scene.repeat(lose, 0.5, 3.0)


@row("failover", short=2, long=40)
async def failover(scene: Scene) -> None:
    """The server dies; its replica, which lags behind, is promoted; the proxy leads there."""
    primary = await scene.server("one", listen="port")
    replica = await scene.server("two", listen="port")
    clients = await scene.proxy(primary)
    replication = await scene.proxy(primary)
    settings = scene.settings(clients.url)
    await _replicate(scene, replica, replication)
    await scene.fleet(settings)
    pair = [primary, replica]

    async def fail() -> Collection[str]:
        dying, promoted = pair
        replication.delay = scene.rng.uniform(0.05, 0.5)
        await scene.pause(0.5, 1.5)
        is_killed = scene.rng.random() < 0.5  # else it is demoted, and answers that it is read-only
        if is_killed:
            await scene.off_loop(dying.kill)
        else:
            nowhere = str(replication.port)
            await scene.off_loop(lambda: _command(dying, "REPLICAOF", "127.0.0.1", nowhere))
        replication.cut_all()
        await scene.pause(0.2, 2.0)
        await scene.off_loop(lambda: _command(promoted, "REPLICAOF", "NO", "ONE"))
        clients.target = promoted.port
        clients.cut_all()
        replication.delay, replication.target = 0.0, promoted.port
        if is_killed:
            await scene.off_loop(dying.start)
        await _replicate(scene, dying, replication)
        pair.reverse()
        return ALL_MODES

    async with scene.load(settings):
        await scene.repeat(fail, 0.3, 2.0)


@row("failback", short=1, long=30)
async def failback(scene: Scene) -> None:
    """The replica is promoted, and soon the old primary again: the same process and run id."""
    primary = await scene.server("one", listen="port")
    replica = await scene.server("two", listen="port")
    clients = await scene.proxy(primary)
    replication = await scene.proxy(primary)
    settings = scene.settings(clients.url, queue_timeout=_LONG_ENOUGH_SECONDS, slots_process=6)
    await _replicate(scene, replica, replication)
    await scene.fleet(settings)

    async def promote(promoted: Server, demoted: Server) -> None:
        replication.delay = scene.rng.uniform(0.0, 0.5)
        await scene.pause(0.2, 1.0)
        nowhere = str(replication.port)
        with scene.outage():
            await scene.off_loop(lambda: _command(demoted, "REPLICAOF", "127.0.0.1", nowhere))
            replication.cut_all()
            await scene.pause(0.0, 1.5)
            await scene.off_loop(lambda: _command(promoted, "REPLICAOF", "NO", "ONE"))
            clients.target = promoted.port
            clients.cut_all()
        replication.delay, replication.target = 0.0, promoted.port
        await _replicate(scene, demoted, replication)

    async def fail_and_back() -> Collection[str]:
        for mode in ALL_MODES:
            load.burst(2, mode=mode, timeout=40.0, seconds=round(scene.rng.uniform(4.0, 12.0), 1))
        await scene.pause(0.5, 1.0)
        await promote(replica, primary)
        await scene.pause(0.0, 6.0 if scene.long else 2.0)
        await promote(primary, replica)
        return ALL_MODES

    async with scene.load(settings) as load:
        await scene.repeat(fail_and_back, 0.3, 2.0)


@row("return", short=2, long=30)
async def to_and_fro(scene: Scene) -> None:
    """The replica is promoted and dies; the old primary, which nobody demoted, is asked again."""
    primary = await scene.server("one", listen="port")
    replica = await scene.server("two", listen="port")
    clients = await scene.proxy(primary)
    replication = await scene.proxy(primary)
    settings = scene.settings(clients.url, queue_timeout=_LONG_ENOUGH_SECONDS)
    await _replicate(scene, replica, replication)
    await scene.fleet(settings)

    async def go_and_return() -> Collection[str]:
        replication.delay = scene.rng.uniform(0.0, 0.3)
        await scene.pause(0.2, 1.0)
        with scene.outage():
            replication.cut_all()
            await scene.off_loop(lambda: _command(replica, "REPLICAOF", "NO", "ONE"))
            clients.target = replica.port
            clients.cut_all()
        await scene.pause(2.5, 6.0)
        with scene.outage():
            await scene.off_loop(replica.kill)
            clients.target = primary.port
            clients.cut_all()
        replication.delay = 0.0
        await scene.off_loop(replica.start)
        await _replicate(scene, replica, replication)
        return ALL_MODES

    async with scene.load(settings):
        await scene.repeat(go_and_return, 1.0, 3.0)


async def _replicate(scene: Scene, replica: Server, replication: Proxy) -> None:
    """Make it a replica, through the proxy, and wait until it is one."""
    await scene.off_loop(lambda: _command(replica, "REPLICAOF", "127.0.0.1", str(replication.port)))

    def is_linked() -> bool:
        with replica.client() as client:
            return client.info("replication").get("master_link_status") == "up"

    await scene.until(is_linked, "the replica has its primary's data")


def _command(server: Server, *words: str) -> None:
    with server.client() as client:
        answer = client.execute_command(*words)
        if not answer:
            raise RedisError(f"{words}: {answer}")

"""Calls that wait for the first lease of an epoch, because they may have run in the last one."""

import asyncio
from pathlib import Path

from pydantic import SecretStr

from tests.chaos.servers import Server
from tests.integration.test_liveness import Held, held_fleet
from tests.waiting import eventually
from toolpool import Dispatcher
from toolpool.contract.settings import Settings
from toolpool.contract.signing import generate_key


async def test_a_held_write_runs_although_the_epoch_changes_once_more(tmp_path: Path) -> None:
    server = Server(tmp_path / "server")
    settings = Settings(redis_url=server.url, signing_key=SecretStr(generate_key()), lease_ttl=4.0)
    fleet = held_fleet(settings, tmp_path)
    try:
        async with Dispatcher.connect(settings=settings) as dispatcher:
            transport = dispatcher._in_flight._transport
            first = transport.epoch
            await asyncio.to_thread(restart, server)
            await eventually(lambda: transport.epoch != first, "it knows the new epoch")
            second = transport.epoch
            held = Held(dispatcher, tmp_path, "held_write")
            await eventually(lambda: orphaned(dispatcher), "it is held")
            await asyncio.to_thread(restart, server)
            await eventually(lambda: transport.epoch != second, "it knows the third epoch")
            await held.started()
            assert (await held.result()).ok
            assert held.starts == 1
    finally:
        fleet.close()
        server.close()


def restart(server: Server) -> None:
    server.kill()
    server.start()


def orphaned(dispatcher: Dispatcher) -> bool:
    return any(pending.was_held for pending in dispatcher._in_flight.all_open())

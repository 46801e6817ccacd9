"""Connections are used again without a check by the server, and none is lost or mixed up."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.chaos.servers import Server
from tests.waiting import eventually
from toolpool.contract.errors import ServerUnavailable
from toolpool.contract.server import connection
from toolpool.contract.settings import Settings

MORE_THAN_THERE_ARE_CONNECTIONS = 100


def clients(url: str) -> set[str]:
    """The addresses of the connections to the server, except the one that asks."""
    with redis.Redis.from_url(url) as client:
        return {row["id"] for row in client.client_list() if row["cmd"] != "client|list"}


async def test_one_connection_serves_one_command_after_another(redis_url: str) -> None:
    before = clients(redis_url)
    async with connection.open_async(Settings(redis_url=redis_url)) as client:
        for number in range(20):
            assert await client.set(f"k{number}", "v", ex=60)
        assert len(clients(redis_url) - before) == 1
    await eventually(lambda: clients(redis_url) <= before, "the connection is closed")


async def test_more_commands_at_once_than_connections_wait_for_one(redis_url: str) -> None:
    before = clients(redis_url)
    async with connection.open_async(Settings(redis_url=redis_url)) as client:
        waiting = [client.blpop(f"q{n}", timeout=5) for n in range(MORE_THAN_THERE_ARE_CONNECTIONS)]
        reads = [asyncio.ensure_future(each) for each in waiting]
        with redis.Redis.from_url(redis_url) as other:
            for number in range(MORE_THAN_THERE_ARE_CONNECTIONS):
                other.rpush(f"q{number}", number)
        answers = await asyncio.gather(*reads)
        assert [int(value) for _, value in answers] == list(range(MORE_THAN_THERE_ARE_CONNECTIONS))
        assert len(clients(redis_url) - before) <= 32
        assert await client.get("nothing") is None
    await eventually(lambda: clients(redis_url) <= before, "every connection is closed")


async def test_a_connection_that_the_server_closed_is_opened_again(redis_url: str) -> None:
    async with connection.open_async(Settings(redis_url=redis_url)) as client:
        await asyncio.gather(*(client.get("k") for _ in range(5)))
        with redis.Redis.from_url(redis_url) as other:
            other.client_kill_filter(_type="normal", skipme=True)
        await eventually(lambda: len(clients(redis_url)) == 0, "all are closed")
        for _ in range(3):  # until the event loop has read it
            await asyncio.sleep(0)
        for _ in range(5):
            assert await client.get("k") is None


async def test_a_cancelled_read_leaves_no_reply_to_the_next_command(redis_url: str) -> None:
    async with connection.open_async(Settings(redis_url=redis_url)) as client:
        for number in range(20):
            reading = asyncio.ensure_future(client.blpop("nothing", timeout=5))
            await asyncio.sleep(0.001 * number)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            assert await client.echo(f"e{number}") == f"e{number}".encode()


async def test_a_command_takes_no_task_of_its_own(redis_url: str) -> None:
    """On Python 3.11 redis-py starts one for each write."""
    loop, made = asyncio.get_running_loop(), 0

    def count(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> "asyncio.Task[Any]":
        nonlocal made
        made += 1
        return asyncio.Task(work, loop=loop, **options)

    async with connection.open_async(Settings(redis_url=redis_url)) as client:
        await client.get("k")
        loop.set_task_factory(count)
        try:
            for _ in range(10):
                await client.get("k")
        finally:
            loop.set_task_factory(None)
    assert made == 0


async def test_a_command_that_fills_the_socket_arrives_whole(redis_url: str) -> None:
    large = b"x" * 20_000_000
    async with connection.open_async(Settings(redis_url=redis_url)) as client:
        await asyncio.gather(*(client.set(f"large{n}", large, ex=60) for n in range(3)))
        assert [await client.strlen(f"large{n}") for n in range(3)] == [len(large)] * 3
        assert await client.delete(*(f"large{n}" for n in range(3))) == 3


async def test_a_server_that_takes_nothing_ends_a_large_write(tmp_path: Path) -> None:
    server = Server(tmp_path / "server")
    settings = Settings(redis_url=server.url, connect_timeout=0.2)
    try:
        async with connection.open_async(settings) as client:
            await client.get("k")
            server.freeze()
            async with asyncio.timeout(30):
                with pytest.raises(ServerUnavailable, match="writing to socket"):
                    await client.set("large", b"x" * 20_000_000)
            server.thaw()
            assert await client.echo("e") == b"e"
    finally:
        server.close()

"""How a dispatcher reads what workers answer."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from toolpool.contract.settings import Settings
from toolpool.dispatcher.transports import redis as redis_transport
from toolpool.dispatcher.transports.redis import RedisTransport, _next_size

REPLIES = 2_000
EXPECTED = [b"%d" % number for number in range(REPLIES)]


@pytest.fixture
async def transport(redis_url: str) -> AsyncIterator[RedisTransport]:
    """One that many replies wait for."""
    transport = RedisTransport(Settings(redis_url=redis_url))
    await transport.open()
    with redis.Redis.from_url(redis_url) as client:
        pipeline = client.pipeline()
        for reply in EXPECTED:
            pipeline.xadd(transport.reply, {"b": reply})
        pipeline.execute()
    yield transport
    await transport.close()


async def read_all(transport: RedisTransport) -> list[list[bytes]]:
    """What each read brought."""
    reads: list[list[bytes]] = []
    while sum(map(len, reads)) < REPLIES:
        reads.append(await transport.receive())
    assert [reply for read in reads for reply in read] == EXPECTED
    return reads


async def test_many_replies_are_read_once_in_their_order_and_let_go(
    transport: RedisTransport, redis_url: str
) -> None:
    await read_all(transport)
    with redis.Redis.from_url(redis_url) as client:
        left = client.xlen(transport.reply)
    assert left < REPLIES / 4, "what was read is trimmed on the way"


async def test_replies_are_read_from_a_stream_that_begins_anew_below_what_was_read(
    transport: RedisTransport, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where it expires by a clock that jumped on, and the clock jumps back."""
    monkeypatch.setattr(redis_transport, "_BLOCK_MS", 100)
    await read_all(transport)
    with redis.Redis.from_url(redis_url) as client:
        client.delete(transport.reply)
        client.xadd(transport.reply, {"b": b"late"}, id="5-1")
    assert await transport.receive() == []
    assert await transport.receive() == [b"late"]


async def test_to_read_many_replies_does_not_make_the_garbage_collector_run(
    transport: RedisTransport,
) -> None:
    """It would go through all calls that are in flight."""
    runs = 0

    def count(phase: str, info: dict[str, Any]) -> None:
        nonlocal runs
        runs += phase == "start"

    gc.collect()
    gc.callbacks.append(count)
    try:
        await read_all(transport)
    finally:
        gc.callbacks.remove(count)
    assert runs <= 1


@pytest.mark.parametrize(
    ("seconds", "grows"), [(0.02, [32, 64, 128]), (0.2, [32, 64, 128, 256, 512])]
)
async def test_where_the_event_loop_is_busy_more_are_read_at_a_time(
    transport: RedisTransport, seconds: float, grows: list[int]
) -> None:
    async def keep_busy() -> None:
        while True:
            time.sleep(seconds)  # a host's code that holds up the loop: nothing is waited for
            await asyncio.sleep(0)

    busy = asyncio.ensure_future(keep_busy())
    try:
        reads = await read_all(transport)
    finally:
        busy.cancel()
    assert [len(read) for read in reads][: len(grows)] == grows


@pytest.mark.parametrize(
    ("at_most", "replies", "seconds", "then"),
    [
        (32, 32, 0.003, 32),
        (32, 32, 0.1, 64),
        (64, 64, 0.006, 32),
        (64, 64, 0.011, 64),
        (512, 512, 0.2, 1000),
        (1000, 1000, 0.1, 500),
        (1000, 1000, 9.9, 1000),
        (512, 511, 9.9, 32),
    ],
)
def test_reads_grow_where_each_reply_takes_long_and_shrink_where_it_does_not(
    at_most: int, replies: int, seconds: float, then: int
) -> None:
    """A large read takes long by what it brings: that alone must not make the next one larger."""
    assert _next_size(at_most, replies, seconds) == then

"""How a dispatcher reads what workers answer."""

import gc
from typing import Any

import redis

from toolpool.contract.settings import Settings
from toolpool.dispatcher.transports.redis import RedisTransport

REPLIES = 2_000


async def test_many_replies_are_read_once_in_their_order_and_let_go(redis_url: str) -> None:
    """And do not make the garbage collector run over all that is in flight."""
    collections = 0

    def count(phase: str, info: dict[str, Any]) -> None:
        nonlocal collections
        collections += phase == "start"

    transport = RedisTransport(Settings(redis_url=redis_url))
    await transport.open()
    replies = [b"%d" % number for number in range(REPLIES)]
    try:
        with redis.Redis.from_url(redis_url) as client:
            pipeline = client.pipeline()
            for reply in replies:
                pipeline.xadd(transport.reply, {"b": reply})
            pipeline.execute()
            read: list[bytes] = []
            gc.collect()
            gc.callbacks.append(count)
            while len(read) < REPLIES:
                read += await transport.receive()
            gc.callbacks.remove(count)
            assert read == replies
            assert collections <= 1
            left = client.xlen(transport.reply)
            assert left < REPLIES / 4, "what was read is trimmed on the way"
    finally:
        await transport.close()

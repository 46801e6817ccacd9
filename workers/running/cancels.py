"""Reads cancel requests from dispatchers and cancels the calls."""

import asyncio
from typing import Any

from toolpool.contract import logs
from toolpool.contract.envelope import Cancel, Envelope
from toolpool.contract.errors import MessageRejected, ServerError
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server import connection
from toolpool.contract.settings import Settings
from toolpool.workers.running.executor import Executor

log = logs.logger("worker")

_CANCELS_SECONDS = 5


async def follow_cancels(
    settings: Settings, envelope: Envelope, worker: str, executor: Executor
) -> None:
    """Follow cancel requests until cancelled, on a separate connection."""
    client = connection.open_async(settings, blocking=True)
    name = RedisKeys(settings.key_prefix).cancel(worker)
    while True:
        try:
            async with asyncio.timeout(2 * _CANCELS_SECONDS):  # after that, the connection is dead
                item: Any = await client.blpop([name], timeout=_CANCELS_SECONDS)
            if item is not None:
                executor.cancel(envelope.decode(Cancel, item[1]).key)
        except MessageRejected as error:
            log.warning("cancel_rejected reason=%s: %s", error.reason, error)
        except (ServerError, TimeoutError) as error:
            log.warning("cancels_unread: %s", str(error) or type(error).__name__)
            await asyncio.sleep(1.0)

"""The asyncio connection pool."""

from typing import Any

import redis
import redis.asyncio
import redis.asyncio.connection

_BlockingPool: Any = redis.asyncio.BlockingConnectionPool
_Connection: Any = redis.asyncio.connection.AbstractConnection

# redis-py 8 renamed `can_read_destructive`; `should_reconnect` exists from 7 on.
_has_data = getattr(_Connection, "can_read", None) or _Connection.can_read_destructive
_must_reconnect = getattr(_Connection, "should_reconnect", lambda _: False)
_COMMAND = ("",) if redis.VERSION < (5, 3) else ()
"""The command for which a connection is taken: redis-py before 5.3 asks for it and ignores it."""


class ConnectionPool(_BlockingPool):  # type: ignore[misc]
    """redis-py's blocking pool with a list of idle connections in front.

    redis-py takes locks, timers and metrics for each connection that it hands out: 100 function
    calls, which is a quarter of what a lone call costs. It still creates, counts and closes
    all connections, and regards those in the list as in use.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._idle: list[Any] = []
        self._waiting = 0
        """How many tasks wait for redis-py to hand out a connection."""

    async def get_connection(self, *_: Any, **__: Any) -> Any:
        """A connected connection, after waiting for it if all are in use."""
        if self._idle:
            connection = self._idle.pop()
            try:
                if await _is_stale(connection):
                    await self.ensure_connection(connection)
            except BaseException:
                await self.release(connection)
                raise
            return connection
        self._waiting += 1
        try:
            return await super().get_connection(*_COMMAND)
        finally:
            self._waiting -= 1

    async def release(self, connection: Any) -> None:
        """Take a connection back."""
        if self._waiting or _must_reconnect(connection):
            await super().release(connection)
        else:
            self._idle.append(connection)


async def _is_stale(connection: Any) -> bool:
    """Whether a connection is closed, or has a reply that nobody waits for."""
    try:
        return not connection.is_connected or await _has_data(connection)
    except (redis.RedisError, OSError):  # redis-py before 8 raises for one that the server closed
        return True

"""Redis clients that treat a value of the wrong type as lost data.

Somebody without the signing key may write to the server. A foreign value at one of our keys would
otherwise fail every command on it until an operator deletes it.

The asyncio client raises `ServerError` in place of the errors of redis-py and of the network; the
synchronous one, which kombu uses too, leaves them as they are.
"""

import re
from collections.abc import Iterable
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.client
import redis.client
from redis.exceptions import (
    ConnectionError,
    MasterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from toolpool.contract import logs
from toolpool.contract.errors import CommandRejected, ServerError, ServerUnavailable

log = logs.logger("server")

_PROBES: dict[str, tuple[str, ...]] = {
    "B": ("LLEN",),
    "L": ("LLEN",),
    "R": ("LLEN",),
    "H": ("HGET", ""),
    "Z": ("ZCARD",),
    "X": ("XREVRANGE", "+", "-", "COUNT", "1"),
    "S": ("SMEMBERS",),
    "G": ("GET",),
    "I": ("INCRBY", "0"),
}
"""By a command's first letter: a read command that fails on the same values."""
_REMOVE = """
local found = redis.pcall(ARGV[1], KEYS[1], unpack(ARGV, 2))
local err = type(found) == 'table' and found.err or ''
local is_junk = string.find(err, 'WRONGTYPE') or string.find(err, 'not an integer')
return is_junk and redis.call('DEL', KEYS[1]) or 0
"""

_REFUSING = (ReadOnlyError, OutOfMemoryError, MasterDownError)
_REFUSAL = re.compile(r"(^|-)(READONLY|OOM|MASTERDOWN|NOREPLICAS|MISCONF|BUSY)\b")
"""Matches errors that have no class in redis-py, or that a script passed on (before Redis 7.0)."""
_AWAY = (ConnectionError, TimeoutError, OSError)


def refuses_writes(error: ResponseError) -> bool:
    """Whether a reachable server refuses writes for now: full, read-only or without replicas."""
    return isinstance(error, _REFUSING) or _REFUSAL.search(str(error)) is not None


def mapped(error: RedisError | OSError, step: object, *, sent: bool = True) -> ServerError:
    """The `ServerError` to raise for an error of redis-py or of the network.

    `sent`: the step may have reached the server. A step that failed on the server has written
    nothing.
    """
    if isinstance(error, _AWAY):
        return ServerUnavailable(str(step), sent=sent, reason=f"({error})")
    if isinstance(error, ResponseError) and refuses_writes(error):
        return ServerUnavailable(str(step), sent=False, reason=f"({error})")
    return CommandRejected(str(step), str(error))


def is_junk(error: ResponseError) -> bool:
    """Whether a command failed because of the value at its key."""
    text = str(error)
    return "WRONGTYPE" in text or "not an integer" in text


def removal(command: Any) -> tuple[Any, ...] | None:
    """The command that deletes the key of `command` if its value has the wrong type.

    None for a command that is not about one key.
    """
    name = str(command[0]).upper()
    probe = _PROBES.get(name[0])
    if probe is None or len(command) < 2 or name.startswith("SET"):  # SET replaces any type
        return None
    at = 1
    if name == "XREAD":
        at += next(i for i, word in enumerate(command) if word in ("STREAMS", b"STREAMS"))
    key = command[at]
    if isinstance(key, list):
        [key] = key
    return ("EVAL", _REMOVE, 1, key, *probe)


def removals(error: ResponseError, commands: Iterable[Any]) -> list[tuple[Any, ...]]:
    """The commands to send before retrying. Raises `error` if that would not help."""
    found = [command for command in map(removal, commands) if command] if is_junk(error) else []
    if not found:
        raise error
    return found


def log_removed_key(removed: Any) -> None:
    """Log that a key was deleted, without its name, which may contain a session."""
    if removed:
        log.warning("junk_removed: deleted a key with a foreign value")


_Redis: Any = redis.Redis
_AsyncRedis: Any = redis.asyncio.Redis


class RedisClient(_Redis):  # type: ignore[misc]
    """The synchronous client."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run one command, and retry it if its key held a foreign value."""
        try:
            return super().execute_command(*args, **options)
        except ResponseError as error:
            [command] = removals(error, [args])
        log_removed_key(super().execute_command(*command))
        return super().execute_command(*args, **options)

    def pipeline(self, transaction: Any = True, shard_hint: Any = None) -> redis.client.Pipeline:
        """A pipeline that is retried if one of its keys held a foreign value."""
        return _Pipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)


class _Pipeline(redis.client.Pipeline):
    def execute(self, raise_on_error: bool = True) -> list[Any]:
        commands = list(self.command_stack)
        try:
            return super().execute(raise_on_error)
        except ResponseError as error:
            needed = removals(error, (args for args, _ in commands))
        client = _Redis(connection_pool=self.connection_pool)
        for command in needed:
            log_removed_key(client.execute_command(*command))
        self.command_stack = commands
        return super().execute(raise_on_error)


class AsyncRedisClient(_AsyncRedis):  # type: ignore[misc]
    """The asyncio client. Its methods raise `ServerError`."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run one command, and retry it if its key held a foreign value."""
        try:
            try:
                return await super().execute_command(*args, **options)
            except ResponseError as error:
                [command] = removals(error, [args])
            log_removed_key(await super().execute_command(*command))
            return await super().execute_command(*args, **options)
        except (RedisError, OSError) as error:
            raise mapped(error, args[0]) from error

    def pipeline(
        self, transaction: bool = True, shard_hint: str | None = None
    ) -> redis.asyncio.client.Pipeline:
        """A pipeline that is retried if one of its keys held a foreign value."""
        callbacks = self.response_callbacks
        return _AsyncPipeline(self.connection_pool, callbacks, transaction, shard_hint)


class _AsyncPipeline(redis.asyncio.client.Pipeline):
    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        commands = list(self.command_stack)
        try:
            try:
                return await super().execute(raise_on_error)
            except ResponseError as error:
                needed = removals(error, (args for args, _ in commands))
            client = _AsyncRedis(connection_pool=self.connection_pool)
            for command in needed:
                log_removed_key(await client.execute_command(*command))
            self.command_stack = commands
            return await super().execute(raise_on_error)
        except (RedisError, OSError) as error:
            raise mapped(error, commands[0][0][0]) from error

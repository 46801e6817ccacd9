"""Tries every command that toolpool and Celery use, on keys of every name that they use."""

import secrets
from collections.abc import Sequence
from typing import Any

from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server.redis_clients import refuses_writes
from toolpool.contract.settings import Settings
from toolpool.contract.spec import RunIn

_EXPIRE = ("EXPIRE", "{key}", "60")
"""Follows each command that creates a key, in case the user lacks DEL or the connection is lost."""
_ON_ANY_KEY: tuple[tuple[str, ...], ...] = (
    ("SET", "{key}", "1", "EX", "60"),
    ("INCRBY", "{key}", "1"),
    ("GET", "{key}"),
    ("MGET", "{key}"),
    ("EXISTS", "{key}"),
    ("TYPE", "{key}"),
    ("PEXPIREAT", "{key}", "9999999999999"),
    ("PEXPIRE", "{key}", "60000"),
    _EXPIRE,
    ("PTTL", "{key}"),
    ("DEL", "{key}"),
    ("HSET", "{key}", "f", "1"),
    _EXPIRE,
    ("HSETNX", "{key}", "f", "1"),
    ("HGET", "{key}", "f"),
    ("HMGET", "{key}", "f"),
    ("HGETALL", "{key}"),
    ("HVALS", "{key}"),
    ("HDEL", "{key}", "f"),
    ("DEL", "{key}"),
    ("RPUSH", "{key}", "1", "2"),
    _EXPIRE,
    ("LPUSH", "{key}", "1", "2"),
    ("LLEN", "{key}"),
    ("LRANGE", "{key}", "0", "-1"),
    ("LTRIM", "{key}", "0", "2"),
    ("LREM", "{key}", "1", "9"),
    ("BLPOP", "{key}", "1"),
    ("BRPOP", "{key}", "1"),
    ("RPOP", "{key}"),
    ("DEL", "{key}"),
    ("XADD", "{key}", "*", "f", "1"),
    _EXPIRE,
    ("XREAD", "COUNT", "1", "STREAMS", "{key}", "0"),
    ("XRANGE", "{key}", "-", "+", "COUNT", "1"),
    ("XREVRANGE", "{key}", "+", "-", "COUNT", "1"),
    ("XTRIM", "{key}", "MAXLEN", "0"),
    ("DEL", "{key}"),
    ("ZADD", "{key}", "1", "m"),
    _EXPIRE,
    ("ZCARD", "{key}"),
    ("ZCOUNT", "{key}", "-inf", "+inf"),
    ("ZSCORE", "{key}", "m"),
    ("ZRANGE", "{key}", "0", "-1"),
    ("ZRANGEBYLEX", "{key}", "-", "+"),
    ("ZRANGEBYSCORE", "{key}", "-inf", "+inf"),
    ("ZREVRANGEBYSCORE", "{key}", "+inf", "-inf"),
    ("ZREMRANGEBYSCORE", "{key}", "-inf", "0"),
    ("ZREM", "{key}", "n"),
    ("ZPOPMIN", "{key}"),
    ("DEL", "{key}"),
    ("SADD", "{key}", "m"),
    _EXPIRE,
    ("SMEMBERS", "{key}"),
    ("SREM", "{key}", "m"),
    ("DEL", "{key}"),
    ("EVAL", "return redis.call('EXISTS', KEYS[1])", "1", "{key}"),
)
_WITHOUT_A_KEY: tuple[tuple[str, ...], ...] = (
    ("PING",),
    ("TIME",),
    ("INFO", "server"),
    ("PUBSUB|NUMSUB", "probe"),
    ("SCRIPT|LOAD", "return 1"),
    ("EVALSHA", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "0"),
)
_BY_CLIENTS = (
    "SELECT",
    "CLIENT|SETINFO",
    "CLIENT|SETNAME",
    "MULTI",
    "EXEC",
    "WATCH",
    "UNWATCH",
    "SUBSCRIBE",
)
"""Commands of clients, which are not tried like the others: they change the connection."""

COMMANDS = sorted({*(c[0] for c in (*_ON_ANY_KEY, *_WITHOUT_A_KEY)), *_BY_CLIENTS})
"""Every command that the server's user needs; a subcommand is written as `SCRIPT|LOAD`."""


def key_patterns(prefix: str) -> list[str]:
    """The names of all keys, for the rules of a server's user.

    Scripts get the empty key in place of one that they do not need.
    """
    of_kombu = [f"_kombu.binding*{prefix}.*", "_kombu.binding_deadlines"]
    return ["", f"{prefix}:*", f"{prefix}.*", *of_kombu]


def channel_pattern(prefix: str) -> str:
    """The names of all channels: of those by which the server knows that workers live."""
    return RedisKeys(prefix).liveness("*")


def rule_for(refused: Sequence[str], prefix: str) -> str:
    """The arguments of `ACL SETUSER` that allow what `missing` found."""
    commands = sorted({each.partition(" on ")[0].replace(" ", "|").lower() for each in refused})
    keys = [f"~{pattern}" for pattern in key_patterns(prefix)]
    keys.append(f"&{channel_pattern(prefix)}")
    return " ".join([*keys, *(f"+{command}" for command in commands)])


def missing(client: Any, settings: Settings) -> list[str]:
    """The commands, each with key names, that the server's user may not use.

    Writes to its own keys, and deletes them. Raises what the client raises for any other fault.
    """
    from redis.exceptions import NoPermissionError, ResponseError

    names, probe = RedisKeys(settings.key_prefix), f"doctor-{secrets.token_hex(6)}"
    ours, queue = f"{names.prefix}:{probe}", names.queue(probe, RunIn.LOOP)
    keys = {f"{names.prefix}:*": ours}
    if settings.broker_url is None:
        keys |= {f"{names.prefix}.*": queue, "_kombu.binding*": f"_kombu.binding.{queue}"}
    refused: list[str] = []

    def attempt(command: tuple[str, ...], where: str = "") -> None:
        try:
            client.execute_command(*command[0].split("|"), *command[1:])
        except NoPermissionError:
            refused.append(f"{command[0].replace('|', ' ')}{where}")
        except ResponseError as error:  # for example, a key that a refused command did not change
            if refuses_writes(error):
                raise

    for command in _WITHOUT_A_KEY:
        attempt(command)
    try:
        with client.pubsub() as subscription:
            subscription.subscribe(names.liveness(probe))
            subscription.get_message(timeout=settings.connect_timeout)
    except NoPermissionError:
        refused.append(f"SUBSCRIBE on {channel_pattern(names.prefix)}")
    attempt(("EVAL", "return redis.call('EXISTS', KEYS[1])", "1", ""), " on ~ (the empty key)")
    for pattern, key in keys.items():
        for command in _ON_ANY_KEY:
            said = tuple(word.replace("{key}", key) for word in command)
            attempt(said, f" on {pattern}")
    return list(dict.fromkeys(refused))

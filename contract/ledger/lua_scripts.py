"""Loads and runs the Lua scripts of the ledger's atomic steps.

If a reply is lost, the script runs again. Every step carries a nonce and gives the same answer to
the same nonce, so running a step twice is safe.
"""

import asyncio
import hashlib
import itertools
import math
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from enum import StrEnum
from importlib import resources
from typing import Any

import redis.asyncio
from redis.exceptions import NoScriptError, RedisError, ResponseError

from toolpool.contract.errors import ServerUnavailable
from toolpool.contract.server.redis_clients import log_removed_key, mapped, removals

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
_EPOCHS_AT_MOST = 4
_EPOCH_CHARACTERS = 128
_DIGITS_OF_MS = 13
"""The digits of a date in milliseconds, until the year 2286."""
REPLY_STREAM_MS = 7_200_000
"""Longer than an hour, the largest clock jump that is tolerated."""


class LuaScript(StrEnum):
    """The atomic steps on calls and on the fleet's other state. Each step has a script."""

    OPEN = "open"
    CLAIM = "claim"
    SETTLE = "settle"
    CLOSE = "close"
    RECOVER = "recover"
    RELEASE = "release"
    RENEW = "renew"
    LOOP = "loop"
    HANDLE = "handle"
    OUTPUT = "output"
    BEAT = "beat"
    SURVEY = "survey"
    EVENTS = "events"
    RATE = "rate"
    APPROVAL = "approval"
    SHARE = "share"
    NOTE_SHARED = "note_shared"
    SWITCH = "switch"


_WITH_PLACES = (LuaScript.RATE, LuaScript.CLAIM)


_boot = secrets.token_hex(6)
_count = itertools.count()


def _boot_again() -> None:
    """After a fork: the child must not reuse its parent's nonces."""
    global _boot
    _boot = secrets.token_hex(6)


os.register_at_fork(after_in_child=_boot_again)


def new_nonce() -> str:
    """A unique word that makes a step repeatable."""
    return f"{_boot}{next(_count):x}"


def script(step: LuaScript) -> tuple[str, str]:
    """The step's Lua source and its SHA-1."""
    folder = resources.files("toolpool.contract.ledger") / "lua"
    parts = ["preamble", *(["rate_places"] if step in _WITH_PLACES else []), step.value]
    source = "".join((folder / f"{part}.lua").read_text() for part in parts)
    return source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


def has_end(id_: bytes) -> bool:
    """Whether an entry's id is so far in the future that nothing can be added after it."""
    return id_.find(b"-") > _DIGITS_OF_MS


async def without_end(client: "redis.asyncio.Redis", stream: str, entries: list[Any]) -> list[Any]:
    """The entries before the first one that `has_end`.

    If there is such an entry, the stream is deleted.
    """
    for number, entry in enumerate(entries):
        if has_end(entry[0]):
            await client.delete(stream)
            log_removed_key(1)
            return entries[:number]
    return entries


class CommandSend:
    """Whether this attempt or an earlier one without a reply may have reached the server."""

    __slots__ = ("is_repeated", "sent")

    def __init__(self) -> None:
        self.sent = self.is_repeated = False


async def send(
    client: "redis.asyncio.Redis",
    command: Sequence[str | bytes | int],
    attempt: CommandSend | None = None,
    *,
    timeout: float | None = None,
) -> Any:
    """Send one command on one pooled connection, without redis-py's retries and reply parsing.

    `timeout` is of the reply, in seconds; by default the client's. Raises `ServerError`, and
    NoScriptError for a script that the server does not have. A connection that failed is not used
    again.
    """
    attempt = attempt or CommandSend()
    sent_before = attempt.sent
    pool: Any = client.connection_pool
    try:
        connection: Any = await pool.get_connection()
        try:
            attempt.sent = True
            await connection.send_command(*command)
            return await connection.read_response(timeout=timeout)
        except ResponseError as error:
            [remove] = removals(error, [command])
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        finally:
            await pool.release(connection)
    except NoScriptError:
        raise
    except (RedisError, OSError) as error:
        failed = mapped(error, command[0], sent=attempt.sent)
        if isinstance(failed, ServerUnavailable) and not failed.sent:
            attempt.sent = sent_before
        raise failed from error
    mended: Any = client
    log_removed_key(await mended.execute_command(*remove))
    return await send(client, command, attempt, timeout=timeout)


def growing_pauses(longest: float) -> Iterator[float]:
    """Exponential backoff: pauses in seconds from 0.1 on, each twice as long as the one before."""
    pause = 0.1
    while True:
        yield pause
        pause = min(2 * pause, longest)


class SeenEpochs:
    """The server epochs that a process has seen. An earlier epoch must not become current again.

    A server to which clients return after a failover is still in its old epoch, but lacks the steps
    that another server executed meanwhile. So each step lists the earlier epochs, and a server that
    is in one of them starts a new epoch. Each step also names the process's current epoch: a server
    in another epoch then knows that this process still has state to report.
    """

    def __init__(self, word: str, report_seconds: float = 8.0) -> None:
        self._seen = [word]
        self._start = f"{word}:{ms_of(report_seconds)}:"
        self.candidate = word
        """The argument of each step: a token of this process, its current epoch (abbreviated), and
        the earlier epochs.
        """

    def saw(self, epoch: str) -> None:
        """Record the epoch in a reply; ignore one that is too long, which a writer without a key
        may have stored.
        """
        if epoch not in self._seen and len(epoch) <= _EPOCH_CHARACTERS:
            word, *earlier = self._seen
            self._seen = [word, *earlier[-_EPOCHS_AT_MOST:], epoch]
            last = self._start + epoch[:4] + epoch[-4:]
            self.candidate = " ".join([last, *self._seen[1:-1]])


class LuaScripts:
    """Runs steps on one Redis client (which must not decode responses)."""

    def __init__(self, client: "redis.asyncio.Redis", *, lease_ttl: float = 8.0) -> None:
        self._client = client
        self._scripts = {step: script(step) for step in LuaScript}
        self.epochs = SeenEpochs(secrets.token_hex(6), lease_ttl)
        patience = client.connection_pool.connection_kwargs.get("socket_timeout")
        self._patience: float = math.inf if patience is None else patience

    async def run(
        self,
        step: LuaScript,
        keys: Sequence[str],
        arguments: Sequence[str | bytes | int],
        *,
        give_up_at: float,
        attempt: CommandSend | None = None,
    ) -> list[Any]:
        """Run a step until it is answered. `give_up_at` is on the monotonic clock.

        Raises `ServerUnavailable` if no answer came by then, and `CommandRejected` if the server
        rejects the step.
        """
        source, sha = self._scripts[step]
        pause = _FIRST_PAUSE
        command: tuple[str | bytes | int, ...] = ("EVALSHA", sha, len(keys), *keys, *arguments)
        attempt, reason = attempt or CommandSend(), "in time"
        while True:
            left = give_up_at - time.monotonic()
            if left <= 0:
                raise ServerUnavailable(step.value, sent=attempt.sent, reason=reason)
            attempt.is_repeated = attempt.sent
            try:
                async with asyncio.timeout(min(left, self._patience)):  # one timer for both
                    answer = await send(self._client, command, attempt, timeout=math.inf)
                    return list(answer)
            except NoScriptError:
                attempt.sent = attempt.is_repeated
                command = ("EVAL", source, *command[2:])
                continue
            except ServerUnavailable as error:
                reason = error.reason
            except TimeoutError:
                pass
            if time.monotonic() + pause >= give_up_at:
                raise ServerUnavailable(step.value, sent=attempt.sent, reason=reason)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def once(
        self, step: LuaScript, keys: Sequence[str], arguments: Sequence[str | bytes | int]
    ) -> list[Any]:
        """Run a step without retries. Raises `ServerError`."""
        source, sha = self._scripts[step]
        words = (len(keys), *keys, *arguments)
        try:
            return list(await send(self._client, ("EVALSHA", sha, *words)))
        except NoScriptError:
            return list(await send(self._client, ("EVAL", source, *words)))

    async def set_markers(self, keys: Sequence[str], *, keep_ms: int) -> None:
        """Set empty strings, without retries. Raises `ServerError`."""
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.set(key, "", px=keep_ms)
        await pipeline.execute()

    async def send_reply(self, stream: str, body: bytes) -> None:
        """Append to a reply stream, without retries. Raises `ServerError`."""
        pipeline = self._client.pipeline(transaction=False)
        pipeline.xadd(stream, {"b": body})
        pipeline.pexpire(stream, REPLY_STREAM_MS)
        await pipeline.execute()


def ms_of(seconds: float) -> int:
    """A duration in milliseconds as Redis accepts it: at least 1."""
    return max(1, round(seconds * 1000))

"""The transport over Redis or Valkey: ledger, replies, catalog, usually also the broker."""

import asyncio
import math
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
from redis.exceptions import RedisError

from toolpool.contract import encoding, logs
from toolpool.contract.errors import ServerError
from toolpool.contract.fleet_clock import DOUBT_SECONDS, FleetClock, elapsed
from toolpool.contract.ledger.answers import CallState, LedgerAnswer, decode_answers
from toolpool.contract.ledger.approval_steps import ApprovalLedger, RedisApprovals
from toolpool.contract.ledger.event_stream import EventLog, RedisEvents
from toolpool.contract.ledger.failure_memory import FailureMemory, RedisFailures
from toolpool.contract.ledger.lua_scripts import (
    LuaScript,
    LuaScripts,
    has_end,
    ms_of,
    send,
    without_end,
)
from toolpool.contract.ledger.protocols import (
    CloseReason,
    Closing,
    Opening,
    RecoveryRequest,
    SwitchChange,
)
from toolpool.contract.ledger.rate_counters import RateLedger, RedisRates
from toolpool.contract.ledger.redis_ledger import RedisLedger
from toolpool.contract.ledger.shared_runs import RedisShared, SharedLedger
from toolpool.contract.redis_keys import RedisKeys
from toolpool.contract.server import connection
from toolpool.contract.server.redis_clients import mapped
from toolpool.contract.settings import Settings
from toolpool.contract.spec import BACKGROUND_TIMEOUT
from toolpool.dispatcher.transports import celery_message
from toolpool.dispatcher.transports.base import NoteBatch, Survey, TurnNote
from toolpool.dispatcher.transports.kombu import Broker

log = logs.logger("transport")

_READ_AT_FIRST = 32
"""The size of the first reads.

Each reply allocates two lists. Many at once start Python's garbage collector, which visits all open
calls.
"""
_READ_AT_MOST = 1000
_BUSY_SECONDS = 0.0002
"""If a full read takes longer than this per reply, because the host keeps the event loop busy or
the server is far away, the next read may be larger. So 5,000 replies a second can still be read. A
call alone takes 0.1 ms of the event loop.
"""
_BLOCK_MS = 5000
_SILENCE_SECONDS = 3.0
"""Longer than a blocking read takes: after that, its connection is dead, even if still open."""
_TRIM_EVERY = 256
_HOUR = 3600
_HANDLES_AT_ONCE = 100
_WORKERS_LISTED_SECONDS = 3600
_CROWDED = 0.8
"""The share of the server's memory above which full outputs are dropped."""


_noted = msgspec.json.Decoder(list[str])


def _place(id_: bytes) -> tuple[int, int]:
    """An entry's position in its stream, from the id that the server gave."""
    stamp, _, sequence = id_.partition(b"-")
    return int(stamp), int(sequence or 0)


def _member(note: TurnNote, at: int) -> bytes:
    """A note as stored: ordered by session, then by time."""
    said = [note.turn] if note.is_answered else [note.turn, note.name, note.stop]
    return f"{note.session}\0{at:016d}\0".encode() + encoding.encode(said)


def _next_size(at_most: int, replies: int, seconds: float) -> int:
    """How many replies the next read may return, after a read that returned this many."""
    if replies < at_most:
        return _READ_AT_FIRST
    if seconds > replies * _BUSY_SECONDS:
        return min(at_most * 2, _READ_AT_MOST)
    if seconds < replies * _BUSY_SECONDS * 0.75:  # far enough below not to grow again at once
        return max(at_most // 2, _READ_AT_FIRST)
    return at_most


class RedisTransport:
    """Publishes messages and records in one script call if the broker is this Redis.

    With another broker the records are opened first, then the message is published through kombu.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._names = RedisKeys(settings.key_prefix)
        self.id = secrets.token_hex(8)
        self.reply = self._names.reply(self.id)
        self._client = connection.open_async(settings)
        self._reader = connection.open_async(settings, blocking=True)
        self._scripts = LuaScripts(self._client, lease_ttl=settings.lease_ttl)
        self._ledger = RedisLedger(
            self._scripts,
            self._names,
            dedup_ttl=settings.dedup_ttl,
        )
        self._clock = FleetClock(
            connection.keyring(settings),
            settings.key_prefix,
            forgets_after=settings.dedup_ttl,
        )
        self.failures: FailureMemory = RedisFailures(
            self._scripts,
            self._reader,
            self._names,
        )
        self.shared: SharedLedger = RedisShared(self._scripts, self._names)
        self.approvals: ApprovalLedger = RedisApprovals(
            self._scripts,
            self._names,
            self.reply,
            settings.tenant,
            dedup_ttl=settings.dedup_ttl,
        )
        self.events: EventLog = RedisEvents(
            connection.open_async(settings),
            connection.open_async(settings, blocking=True),
            self._names,
            kept=settings.events_maxlen,
        )
        self.rates: RateLedger = RedisRates(
            self._scripts, self._names, queue_timeout=settings.queue_timeout
        )
        self._hours_kept = math.ceil(settings.turn_ttl / _HOUR) + 1
        self._broker = Broker(connection.broker_url(settings)) if settings.broker_url else None
        self._last_read = b"0"
        self._untrimmed = 0
        self._read_at_most = _READ_AT_FIRST
        self.epoch: str | None = None
        self.is_full = False
        self._catalog_version: bytes | None = b""

    def server_time(self) -> float:
        """The server's clock, extrapolated from the last survey; Unix time in seconds."""
        return self._clock.time()

    async def open(self) -> None:
        """Connect and check the server. Raises `BrokerUnreachable` or `ServerUnsuitable`."""
        await connection.require_fit_server(self._client, self._settings)
        if self._broker is not None:
            await self._broker.open(self._settings.connect_timeout)

    async def publish(
        self,
        openings: Sequence[Opening],
        *,
        nonce: str,
        queue: str,
        message: bytes,
        give_up_at: float,
        tried_in: str | None = None,
    ) -> tuple[str, list[LedgerAnswer]]:
        """Record calls in the ledger and put their signed batch on a queue."""
        here = self._broker is None
        epoch, answers = await self._ledger.open(
            openings,
            nonce=nonce,
            reply=self.reply,
            queue=queue,
            message=celery_message.redis_message(queue, message) if here else b"",
            give_up_at=give_up_at,
            tried_in=tried_in,
        )
        if self._broker is not None and CallState.NEW.value in answers:
            await self._broker.publish(queue, message, give_up_at=give_up_at)
        return epoch, decode_answers(answers)

    async def close_calls(
        self, closings: Sequence[Closing], *, end: CloseReason, give_up_at: float
    ) -> list[LedgerAnswer]:
        """End calls; returns the state of each, or its outcome."""
        return decode_answers(
            await self._ledger.close(
                closings,
                reply=self.reply,
                end=end,
                give_up_at=give_up_at,
                now=self.server_time(),
            )
        )

    async def receive(self) -> list[bytes]:
        """Wait for the next signed replies. Trims read entries now and then, never unread ones."""
        if self._untrimmed >= _TRIM_EVERY:
            await self._trim()
        command = ("XREAD", "COUNT", self._read_at_most, "BLOCK", _BLOCK_MS, "STREAMS")
        since = time.monotonic()
        async with asyncio.timeout(_BLOCK_MS / 1000 + _SILENCE_SECONDS):
            found = await send(self._reader, (*command, self.reply, self._last_read))
        if not found:
            if await self._is_another_stream():
                self._last_read = b"0"
            elif self._untrimmed:
                await self._trim()
            return []
        entries: list[Any] = found[0][1]
        self._read_at_most = _next_size(self._read_at_most, len(entries), time.monotonic() - since)
        self._last_read = entries[-1][0]
        self._untrimmed += len(entries)
        if has_end(self._last_read):
            entries = await without_end(self._client, self.reply, entries)
            self._last_read = b"0"
        return [fields[1] for _, fields in entries]

    async def _is_another_stream(self) -> bool:
        """Whether replies begin before the last read position: a clock jump expired the stream."""
        newest: Any = await self._client.xrevrange(self.reply, count=1)
        return bool(newest) and _place(newest[0][0]) < _place(self._last_read)

    async def _trim(self) -> None:
        stamp, _, sequence = self._last_read.partition(b"-")
        after = b"%s-%d" % (stamp, int(sequence or 0) + 1)
        self._untrimmed = 0
        # a server that refuses writes still has replies to read
        with suppress(ServerError):
            await self._client.xtrim(self.reply, minid=after.decode(), approximate=False)

    async def catalog(self) -> list[bytes] | None:
        """The signed catalog entries; None if nothing has changed since the last call."""
        version: Any = await self._client.get(self._names.catalog_version)
        if version is None or version == self._catalog_version:
            return None  # after data loss the server does not know the tools
        entries: Any = await self._client.hvals(self._names.catalog)
        self._catalog_version = version
        return list(entries)

    async def toolsets(self, digests: Sequence[str]) -> list[bytes | None]:
        """The signed toolsets of these digests; None for a missing one."""
        keys = [self._names.toolset(digest) for digest in digests]
        found: Any = await self._client.mget(keys) if keys else []
        return list(found)

    async def toolset_ages(self) -> dict[str, float]:
        """The seconds since a live worker last had each toolset, by digest."""
        found: Any = await self._client.zrange(self._names.toolsets, 0, -1, withscores=True)
        now = self.server_time()
        return {digest.decode(errors="replace"): now - last for digest, last in found}

    async def recover(
        self, recoveries: Sequence[RecoveryRequest], *, queue: str, give_up_at: float
    ) -> list[LedgerAnswer]:
        """Restart the calls of one queue that may run again; settle the others as lost."""
        if self._broker is None:
            recoveries = [
                msgspec.structs.replace(
                    recovery,
                    message=celery_message.redis_message(queue, recovery.message),
                    next_message=recovery.next_message
                    and celery_message.redis_message(queue, recovery.next_message),
                )
                for recovery in recoveries
            ]
        answers = decode_answers(
            await self._ledger.recover(
                recoveries,
                reply=self.reply,
                queue=queue if self._broker is None else "",
                give_up_at=give_up_at,
            )
        )
        if self._broker is not None:
            for recovery, answer in zip(recoveries, answers, strict=True):
                if answer.state is CallState.SENT:
                    await self._broker.publish(queue, recovery.message, give_up_at=give_up_at)
                elif answer.state is CallState.AGAIN and recovery.next_message:
                    await self._broker.publish(queue, recovery.next_message, give_up_at=give_up_at)
        return answers

    async def keep_handle(
        self,
        handle: str,
        body: bytes,
        *,
        owner: str | None,
        call: str,
        keep: float,
        outcome_kept: float,
    ) -> None:
        """Store a handle for `keep` seconds; one without an owner is never listed."""
        # A list is kept as long as any handle in it may be.
        listed = max(keep, BACKGROUND_TIMEOUT + self._settings.background_result_ttl)
        index = self._names.handles(owner) if owner is not None else ""
        await self._scripts.once(
            LuaScript.HANDLE,
            [self._names.background(handle), index, self._names.call(call), self._names.epoch],
            [handle, body, ms_of(keep), ms_of(listed), ms_of(outcome_kept)],
        )

    async def handle(self, handle: str) -> bytes | None:
        """The signed content of a handle; None if it is unknown or expired."""
        found: Any = await self._client.get(self._names.background(handle))
        return bytes(found) if found is not None else None

    async def handles(self, owner: str, newest: int | None = None) -> tuple[list[bytes], int]:
        """The signed contents of an owner's handles, newest last; and how many older ones exist."""
        ids: Any = await self._client.zrange(self._names.handles(owner), 0, -1)
        keys = [self._names.background(id_.decode(errors="replace")) for id_ in ids]
        bodies: list[bytes] = []
        while keys and (newest is None or len(bodies) < newest):  # some may have expired
            missing = _HANDLES_AT_ONCE if newest is None else newest - len(bodies)
            keys, group = keys[:-missing], keys[-missing:]
            found: Any = await self._client.mget(group)
            bodies[:0] = [body for body in found if body is not None]
        older = await self._client.exists(*keys) if keys else 0
        return bodies, int(older)

    async def switches(self, *changes: SwitchChange) -> tuple[str, dict[str, bytes]]:
        """Read the kill switches, after applying changes."""
        return await self._ledger.switches(*changes)

    async def circuits(self) -> list[bytes]:
        """The signed states of circuits."""
        found: Any = await self._client.hvals(self._names.circuits)
        return list(found)

    async def set_circuit(self, name: str, body: bytes, *, keep: float) -> None:
        """Store the state of a circuit; all are kept for `keep` seconds after the last change."""
        pipeline = self._client.pipeline(transaction=True)
        pipeline.hset(self._names.circuits, name, body)
        pipeline.pexpire(self._names.circuits, ms_of(keep))
        await pipeline.execute()

    async def try_circuit(self, name: str, holder: str, *, keep: float) -> bool:
        """Whether `holder` has the right to try a tool, for `keep` more seconds."""
        key = self._names.trial(name)
        if await self._client.set(key, holder, nx=True, px=ms_of(keep)):
            return True
        if await self._client.get(key) != holder.encode():
            return False
        return bool(await self._client.pexpire(key, ms_of(keep)))

    async def end_trial(self, name: str, holder: str) -> None:
        """Give up the right to try a tool."""
        key = self._names.trial(name)
        if await self._client.get(key) == holder.encode():
            await self._client.delete(key)

    async def output(self, handle: str) -> bytes | None:
        """A full output, signed; None for an unknown or expired handle."""
        found: Any = await self._client.get(self._names.output(handle))
        return bytes(found) if found is not None else None

    async def states(self, keys: Sequence[str]) -> list[str | None]:
        """The states of ledger records: open, claimed, settled, or None if missing."""
        states = await self._fields(keys, "state")
        return [state.decode(errors="replace") if state else None for state in states]

    async def note_shared(self, keys: Sequence[str], keep: float) -> list[str | None]:
        """Record for `keep` seconds that calls share a run, unless they have records."""
        states = await self._scripts.once(
            LuaScript.NOTE_SHARED,
            [self._names.epoch, *map(self._names.call, keys)],
            [self._names.ran_prefix, ms_of(keep)],
        )
        return [state.decode(errors="replace") or None for state in states]

    async def has_ended(self, key: str) -> bool:
        """Whether a worker has reported that the tool of an answered call has ended."""
        return bool(await self._client.exists(self._names.ended(key)))

    async def outcomes(self, keys: Sequence[str]) -> list[bytes | None]:
        """The signed outcomes of ledger records; None for a missing one."""
        return await self._fields(keys, "outcome")

    async def _fields(self, keys: Sequence[str], name: str) -> list[bytes | None]:
        """A field of each record; None also for a key that is not a record."""
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.hget(self._names.call(key), name)
        found = await pipeline.execute(raise_on_error=False)
        for value in found:
            if isinstance(value, RedisError) and "WRONGTYPE" not in str(value):
                raise mapped(value, "HGET") from value
        return [None if isinstance(value, Exception) else value for value in found]

    async def note_turns(self, batches: Sequence[NoteBatch]) -> None:
        """Store notes of turns, in this order."""
        pipeline = self._client.pipeline(transaction=False)
        for at, notes in batches:
            # One command for all of them: one each would cost as much as the calls.
            key = self._names.turns(int(at // _HOUR))
            members = {_member(note, int(at * 1e6) + n): 0 for n, note in enumerate(notes)}
            pipeline.zadd(key, members)
            pipeline.expire(key, self._hours_kept * _HOUR)
        await pipeline.execute()

    async def turns(self, session: str) -> list[TurnNote]:
        """The notes of a session, the oldest first."""
        hour = int(self._clock.time() // _HOUR)
        pipeline = self._client.pipeline(transaction=False)
        for ago in reversed(range(self._hours_kept)):
            pipeline.zrangebylex(self._names.turns(hour - ago), f"[{session}\0", f"({session}\1")
        found: list[TurnNote] = []
        for members in await pipeline.execute():
            for member in members:
                with suppress(ValueError, IndexError):  # entries are not trusted
                    turn, *said = _noted.decode(member.split(b"\0", 2)[2])
                    name, stop = said or ("", "")
                    found.append(TurnNote(session, turn, name, stop, is_answered=not said))
        return found

    async def send_reply(self, stream: str, body: bytes) -> None:
        """Put a message on a reply stream, once."""
        await self._scripts.send_reply(stream, body)

    async def survey(
        self, queues: Sequence[str], report: bytes = b"", *, workers: Sequence[str] = ()
    ) -> Survey:
        """The state of workers and queues; stores a dispatcher's signed report for operators."""
        counted = list(queues) if self._broker is None else []
        names = self._names
        keys = [names.epoch, names.dispatcher(self.id), names.workers, names.dispatchers, *counted]
        jumped = False
        while True:
            asked_at = elapsed()
            epoch, now_ms, clock, used, limit, leased, *rest = await self._scripts.once(
                LuaScript.SURVEY,
                keys,
                [
                    self._scripts.epochs.candidate,
                    report,
                    ms_of(self._settings.lease_ttl),
                    names.worker(""),
                    _WORKERS_LISTED_SECONDS,
                    self.id,
                    *self._clock.agreement(),
                    *map(names.liveness, workers),
                ],
            )
            jumped |= self._clock.read(int(now_ms) / 1000, clock, asked_at, elapsed())
            if self._clock.is_doubtful:
                await asyncio.sleep(DOUBT_SECONDS)
            elif not self._clock.is_disputed:
                break
        if (current := epoch.decode(errors="replace")) != self.epoch:
            self.epoch = current
            self._scripts.epochs.saw(current)
            self._last_read = b"0"  # another server may count from anywhere
        memory = int(used) / int(limit) if int(limit) else 0.0
        if memory > _CROWDED:
            await self._ledger.make_room()
        if memory >= connection.FULL_SERVER and not self.is_full:
            log.error("server_nearly_full memory=%.0f%%: new calls are refused", memory * 100)
        self.is_full = memory >= connection.FULL_SERVER
        leases, rest = rest[: int(leased)], rest[int(leased) :]
        depths, subscribers = rest[: len(counted)], rest[len(counted) :]
        return Survey(
            epoch=self.epoch,
            leases=leases,
            depths=dict(zip(counted, map(int, depths), strict=True)) if not self._broker else None,
            clock_jumped=jumped,
            subscribed=dict(zip(workers, map(int, subscribers), strict=False)),
        )

    async def close(self) -> None:
        """Delete the reply stream and close the connections."""
        try:
            async with asyncio.timeout(1.0):
                await self._client.delete(self.reply, self._names.dispatcher(self.id))
                await self._client.zrem(self._names.dispatchers, self.id)
        except (ServerError, TimeoutError):
            pass  # it expires
        await self._client.aclose()
        await self._reader.aclose()
        if self._broker is not None:
            await self._broker.close()

"""Rate limit counters for the whole fleet.

A call takes a place under each of its limits before it is sent, and keeps it until one window after
its start. So no window has more starts than the limit allows, however long calls are queued. A
place is named after its call, so taking it twice has no effect. The places of a dead dispatcher
become free once its calls can no longer be started.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from toolpool.contract.ledger.lua_scripts import LuaScript, LuaScripts, ms_of
from toolpool.contract.rates import Limit
from toolpool.contract.redis_keys import RedisKeys

_LOOK_AGAIN_SECONDS = 0.1
LONGEST_HOLD_SECONDS = 3_600.0
"""The longest time for which an unstarted call can hold a place, in seconds."""
TOLD_SECONDS = 60.0
"""Extra seconds for which a start counts if its worker never reports the time of the start."""
ENTERED_WITHIN_SECONDS = TOLD_SECONDS - 5.0
"""How long after its claim a call under a limit may enter its tool."""


def start_of(key: str, nonce: str, worker: str = "") -> str:
    """The member name of a start, by its claim's nonce; a running call adds its `worker`."""
    return f"{key}#{nonce}@{worker}" if worker else f"{key}#{nonce}"


class RateRequest(NamedTuple):
    """A call that wants a place under each of its limits. `hold`: seconds until it is started.

    `record` is the key of its ledger record: if there is one, the call takes no place. It is empty
    for a call that a worker passed because of a limit.
    """

    member: str
    record: str
    hold: float
    limits: tuple[Limit, ...]


class RateRelease(NamedTuple):
    """A call that gives up its places. If it was `started`, it counts as started now."""

    member: str
    limits: tuple[Limit, ...]
    started: bool = False


class RateVerdict(NamedTuple):
    """Whether a call may be sent.

    `is_known`: it has a record and needs no place. If it may not be sent, `limit` is exhausted for
    about `seconds`.
    """

    may_go: bool
    is_known: bool = False
    seconds: float = 0.0
    limit: Limit | None = None


GRANTED = RateVerdict(may_go=True)
KNOWN = RateVerdict(may_go=True, is_known=True)


class RateLedger(Protocol):
    """The rate limit counters of the fleet."""

    async def take(
        self,
        notes: Sequence[RateRelease],
        asks: Sequence[RateRequest],
        *,
        now: float,
        give_up_at: float,
    ) -> list[RateVerdict]:
        """Free places, then assign places in the order of the requests.

        `now` is the server's time as the caller knows it. Returns a grant for each request. Raises
        `ServerUnavailable` past `give_up_at` (monotonic).
        """
        ...


class RedisRates:
    """Counters on Redis: one sorted set per limit."""

    def __init__(self, scripts: LuaScripts, names: RedisKeys, *, queue_timeout: float) -> None:
        self._scripts = scripts
        self._names = names
        self._longest_ms = ms_of(max(LONGEST_HOLD_SECONDS, queue_timeout))

    async def take(
        self,
        notes: Sequence[RateRelease],
        asks: Sequence[RateRequest],
        *,
        now: float,
        give_up_at: float,
    ) -> list[RateVerdict]:
        """Free places, then assign places in the order of the requests."""
        limits = _limits_of(notes, asks)
        places = {limit: str(place) for place, limit in enumerate(limits, 1)}
        keys = [self._names.epoch, *(self._names.rate(limit.name) for limit in limits)]
        keys += (self._names.call(ask.record) for ask in asks)
        arguments: list[str | bytes | int] = [
            len(limits),
            len(notes),
            self._longest_ms,
            f"{self._names.prefix}:",
            round(now * 1000),
        ]
        arguments += (f"{limit.rate.most} {window_ms(limit)}" for limit in limits)
        for note in notes:
            of = " ".join(places[limit] for limit in note.limits)
            arguments.append(f"{note.member} {note.started:d} {of}")
        for ask in asks:
            of = " ".join(places[limit] for limit in ask.limits)
            arguments.append(f"{ask.member} {ms_of(ask.hold)} {of}")
        answers = await self._scripts.run(LuaScript.RATE, keys, arguments, give_up_at=give_up_at)
        return [_verdict(answer, limits) for answer in answers]


def _verdict(answer: bytes, limits: Sequence[Limit]) -> RateVerdict:
    if answer in (b"granted", b"known"):
        return GRANTED if answer == b"granted" else KNOWN
    ms, _, place = answer.partition(b" ")
    return RateVerdict(False, seconds=int(ms) / 1000, limit=limits[int(place) - 1])


class MemoryRates:
    """Counters in memory, shared by the dispatchers of one in-memory server.

    `is_known` says whether a call has a record and needs no place. `is_under_way` says whether a
    record's call waits or runs; None if there is no record.
    """

    def __init__(
        self,
        is_known: Callable[[str], bool],
        is_under_way: Callable[[str], bool | None] = lambda key: None,
    ) -> None:
        self._is_known = is_known
        self._is_under_way = is_under_way
        self._taken: dict[str, dict[str, float]] = {}
        """By limit: when the place of each call becomes free."""

    async def take(
        self,
        notes: Sequence[RateRelease],
        asks: Sequence[RateRequest],
        *,
        now: float,
        give_up_at: float,
    ) -> list[RateVerdict]:
        """Free places, then assign places in the order of the requests."""
        at = time.monotonic()
        self._clean(_limits_of(notes, asks), at)
        for note in notes:
            for limit in note.limits:
                self._taken[limit.name].pop(note.member, None)
                if note.started:
                    self._taken[limit.name][note.member] = at + limit.rate.seconds
        verdicts = [self._ask(ask, at) for ask in asks]
        for name in [name for name, taken in self._taken.items() if not taken]:
            del self._taken[name]
        return verdicts

    def may_start(
        self, member: str, nonce: str, limits: Sequence[Limit], worker: str = "w"
    ) -> bool:
        """Count a start if the call can start under each limit; else it loses its places.

        Returns whether it was counted.
        """
        now = time.monotonic()
        self._clean(limits, now)
        for limit in limits:
            if not self._has_room(limit, member, now):
                for each in limits:
                    self._taken[each.name].pop(member, None)
                return False
        for limit in limits:
            taken = self._taken[limit.name]
            taken.pop(member, None)
            if limit.rate.seconds:
                until = now + TOLD_SECONDS + limit.rate.seconds
                taken[start_of(member, nonce)] = until
            else:
                taken[start_of(member, nonce, worker)] = now
        return True

    def _has_room(self, limit: Limit, member: str, now: float) -> bool:
        """Whether a call can start; with a place, it can unless as many have started."""
        taken = self._taken[limit.name]
        place = taken.pop(member, None)
        is_full = self._is_full(limit, now)
        if place is not None:
            if is_full:  # its dispatcher knows a higher limit than its worker
                is_full = sum("#" in name for name in taken) >= limit.rate.most
            taken[member] = place
        return not is_full

    def _clean(self, limits: Sequence[Limit], now: float) -> None:
        for limit in limits:
            taken = self._taken.get(limit.name, {})
            if limit.rate.seconds:
                taken = {member: until for member, until in taken.items() if until > now}
            self._taken[limit.name] = taken

    def _ask(self, ask: RateRequest, now: float) -> RateVerdict:
        if ask.record and self._is_known(ask.record):
            return KNOWN
        missing = [x for x in ask.limits if ask.member not in self._taken[x.name]]
        waits = [(self._free_in(x, now), x) for x in missing if self._is_full(x, now)]
        if waits:
            seconds, limit = max(waits, key=lambda wait: wait[0])
            return RateVerdict(False, seconds=seconds, limit=limit)
        for limit in missing:
            self._taken[limit.name][ask.member] = now + ask.hold + limit.rate.seconds
        return GRANTED

    def _is_full(self, limit: Limit, now: float) -> bool:
        taken = self._taken[limit.name]
        if len(taken) >= limit.rate.most and not limit.rate.seconds:
            for member, until in list(taken.items()):
                is_under_way = "@" in member or self._is_under_way(member)
                if not (until > now if is_under_way is None else is_under_way):
                    del taken[member]
        return len(taken) >= limit.rate.most

    def _free_in(self, limit: Limit, now: float) -> float:
        """Seconds until a place may be free if all waiting calls start now."""
        if not limit.rate.seconds:
            return _LOOK_AGAIN_SECONDS
        frees = sorted(self._taken[limit.name].values())
        return max(0.001, min(frees[len(frees) - limit.rate.most] - now, limit.rate.seconds))


def _limits_of(notes: Sequence[RateRelease], asks: Sequence[RateRequest]) -> list[Limit]:
    """The distinct limits."""
    named = [note.limits for note in notes] + [ask.limits for ask in asks]
    return list(dict.fromkeys(limit for limits in named for limit in limits))


def window_ms(limit: Limit) -> int:
    """The window in milliseconds; 0 if the limit has none."""
    return ms_of(limit.rate.seconds) if limit.rate.seconds else 0

"""Holds calls over a rate limit before the pump: round robin over the sessions.

The server counts places for the whole fleet; a dispatcher reserves none in advance. Requests are
sent in groups, one group after the other. A call that got a place needs one again when its worker
claims it; if there is none then, it comes back here (`hold_again`).
"""

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from toolpool.contract import logs
from toolpool.contract.errors import ServerError, ServerUnavailable
from toolpool.contract.ledger.rate_counters import (
    GRANTED,
    RateRelease,
    RateRequest,
    RateVerdict,
)
from toolpool.contract.outcome import Code, Outcome
from toolpool.contract.rate_limits import RateLimits
from toolpool.contract.rates import AT_ONCE, Limit
from toolpool.dispatcher.calls.pending import PendingCall, RateLimited
from toolpool.dispatcher.calls.pump import Pump
from toolpool.dispatcher.calls.services import Calls, Services
from toolpool.dispatcher.outcomes import not_queued, over_rate

log = logs.logger("rate_gate")

_AT_ONCE = 256
"""The largest number of calls and notes in one step."""
_NOTES_AT_MOST = 10_000
_PATIENCE_SECONDS = 2.0
_SHORTEST_PAUSE_SECONDS = 0.01
_LONGEST_PAUSE_SECONDS = 1.0
"""The longest pause between requests in seconds.

It is limited because a call that ends unstarted frees a place early.
"""
_LAST_WORD_SECONDS = 1.0
_FOLLOW_SECONDS = 1.0
_LOOK_SECONDS = 0.5
"""The interval between searches of a group for calls that cannot start in time."""
_AGAIN_SECONDS = 1.0
"""The least `retryAfter` of a call that is refused at a concurrency limit, in seconds."""


@dataclass(slots=True, eq=False)
class _Group:
    """The calls that wait under the same limits, by session."""

    limits: tuple[Limit, ...]
    flows: OrderedDict[str, OrderedDict[PendingCall, None]] = field(default_factory=OrderedDict)
    free_at: float = 0.0
    """When a place may be free, on the monotonic clock."""
    full: Limit | None = None
    """The limit that was full the last time."""
    looked_at: float = -_LOOK_SECONDS
    """When the group was last searched for calls that wait in vain."""
    has_to_wait: bool = False
    """Whether the group waits until there may be a place."""
    timer: asyncio.TimerHandle | None = None

    def in_turn(self) -> Iterator[PendingCall]:
        """Yield one call of each session in turn, up to the number that one window allows."""
        left = min(_AT_ONCE, *(limit.rate.most for limit in self.limits))
        flows = deque(iter(flow) for flow in islice(self.flows.values(), left))
        while flows and left:
            flow = flows.popleft()
            pending = next(flow, None)
            if pending is not None:
                left -= 1
                flows.append(flow)
                yield pending

    def soonest(self, ahead: int) -> float:
        """The earliest start of a call that has `ahead` calls of its session before it."""
        return self.free_at + max(x.rate.seconds * (ahead // x.rate.most) for x in self.limits)


class RateGate:
    """The calls of one dispatcher that are under rate limits."""

    def __init__(self, services: Services, calls: Calls, *, pump: Pump) -> None:
        self._rates = services.transport.rates
        self._server_time = services.transport.server_time
        self._tenant = services.settings.tenant
        self._refuses = services.settings.rate_limit_action == "refuse"
        self._limits = RateLimits(services.settings)
        self._calls = calls
        self._pump = pump
        self._groups: dict[tuple[Limit, ...], _Group] = {}
        self._ready: dict[_Group, None] = {}
        """The groups that may ask for places now, in order."""
        self._notes: deque[RateRelease] = deque(maxlen=_NOTES_AT_MOST)
        self._asking: asyncio.Task[None] | None = None
        self._server_is_away = False
        self._is_closed = False
        self._looked_up = 0
        """How many waiting calls were looked up, so that each call has its turn."""

    def submit(self, pending: PendingCall) -> None:
        """Hold a call until it has a place under each of its limits, then pass it to the pump.

        If no place can be free within its queue wait, the call is answered `exception.overloaded`
        at once.
        """
        spec, unset = pending.spec, msgspec.UNSET
        limits: tuple[Limit, ...] = ()
        if spec.rate is not unset or spec.concurrency_scope is not unset or self._limits.hold_all:
            limits = self._limits.of(spec, pending.message.session, self._tenant)
        if not limits:
            self._pump.submit(pending)
        elif self._pump.hold(pending):
            self._wait_for_place(pending, RateLimited(limits))

    def hold_again(self, pending: PendingCall, limits: tuple[Limit, ...]) -> None:
        """Take back a sent call that no worker could claim because one of these limits was full."""
        self._pump.take_back(pending)
        self._pump.hold(pending, always=True)
        self._wait_for_place(pending, RateLimited(limits, is_sent=True))

    def _wait_for_place(self, pending: PendingCall, limited: RateLimited) -> None:
        pending.set_limits(limited)
        limits = limited.limits
        group = self._groups.get(limits)
        if group is None:
            group = self._groups[limits] = _Group(limits)
        flow = group.flows.setdefault(pending.flow, OrderedDict())
        flow[pending] = None
        if not group.has_to_wait:
            self._may_ask(group)
        elif self._is_late(group, soonest := group.soonest(len(flow) - 1), pending):
            self._refuse(group, pending, soonest)

    def ended(self, pending: PendingCall) -> None:
        """Release the place of a call that was answered, wherever it was."""
        limited = pending.limited
        if limited is None:
            return
        if limited.waits:
            self._leave(pending, limited)
        elif limited.has_places and not pending.is_attached:
            self._give_back(pending.key, limited.limits)
        pending.limited = None

    def rate_wait_ended(self, pending: PendingCall) -> None:
        """Answer a call whose queue wait ended while it waited here."""
        limited = pending.limited
        if limited is None or not limited.waits:
            return
        group = self._groups[limited.limits]
        self._leave(pending, limited)
        if self._server_is_away or group.full is None:
            self._calls.refuse(pending, not_queued(Code.QUEUE_UNREACHABLE))
        else:
            self._calls.refuse(pending, _over(group.full, group.free_at))

    async def follow(self) -> None:
        """Release waiting calls when another dispatcher has sent or ended them.

        Runs until cancelled.
        """
        while True:
            await asyncio.sleep(_FOLLOW_SECONDS)
            try:
                await self._let_known_go()
            except ServerError as error:
                log.debug("waiting_calls_not_looked_up: %s", error)
            except Exception:
                log.exception("waiting_calls_not_looked_up")

    async def _let_known_go(self) -> None:
        """Look up some of the waiting calls that have not been sent, in turn."""
        waiting = [
            pending
            for group in self._groups.values()
            for flow in group.flows.values()
            for pending in flow
            if pending.may_be_known and not _is_sent(pending)
        ]
        if not waiting:
            return
        first = self._looked_up % len(waiting)
        asked = [(p, p.key) for p in waiting[first : first + _AT_ONCE]]
        self._looked_up = first + len(asked)
        verdicts = await self._rates.take(
            [],
            [RateRequest(key, key, 0.0, ()) for _, key in asked],  # no limit: only if it is known
            now=self._server_time(),
            give_up_at=time.monotonic() + _FOLLOW_SECONDS,
        )
        for (pending, key), verdict in zip(asked, verdicts, strict=True):
            limited = pending.limited
            if verdict.is_known and limited is not None:
                self._apply_verdict(pending, key, limited.limits, verdict)

    async def close(self) -> None:
        """Stop asking, and report the state of the calls that had places to the server."""
        for group in self._groups.values():
            if group.timer is not None:
                group.timer.cancel()
        self._is_closed = True
        self._ready.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORD_SECONDS):
                if self._asking is not None:
                    await asyncio.wait({self._asking})
                while self._notes:
                    await self._ask_once()

    def _leave(self, pending: PendingCall, limited: RateLimited) -> None:
        """Remove a call that waits here and will not be sent."""
        self._take_out(pending, limited)
        self._pump.remove_held(pending)

    def _take_out(self, pending: PendingCall, limited: RateLimited) -> None:
        limited.waits = False
        group = self._groups[limited.limits]
        flow = group.flows[pending.flow]
        del flow[pending]
        if flow:
            return
        del group.flows[pending.flow]
        if not group.flows:
            del self._groups[limited.limits]
            self._ready.pop(group, None)
            if group.timer is not None:
                group.timer.cancel()

    def _may_ask(self, group: _Group) -> None:
        group.has_to_wait = False
        if group.timer is not None:
            group.timer.cancel()
            group.timer = None
        if not self._is_closed:
            self._ready[group] = None
            self._wake()

    def _give_back(self, member: str, limits: tuple[Limit, ...]) -> None:
        self._notes.append(RateRelease(member, limits))
        self._wake()
        for group in self._groups.values():
            if group.has_to_wait and group.full in limits:
                self._may_ask(group)

    def _wake(self) -> None:
        if self._asking is None and not self._is_closed:
            self._asking = self._calls.in_background(self._ask())

    async def _ask(self) -> None:
        try:
            while self._notes or self._ready:
                await self._ask_once()
        finally:
            self._asking = None

    async def _ask_once(self) -> None:
        notes = [self._notes.popleft() for _ in range(min(_AT_ONCE, len(self._notes)))]
        drawn = [(pending, pending.key, limits) for pending, limits in self._draw()]
        now = time.monotonic()
        asks = [
            RateRequest(
                key, "" if _is_sent(pending) else key, max(0.0, pending.start_by - now), limits
            )
            for pending, key, limits in drawn
        ]
        if not notes and not asks:
            return
        try:
            verdicts = await self._rates.take(
                notes, asks, now=self._server_time(), give_up_at=now + _PATIENCE_SECONDS
            )
        except ServerUnavailable:
            # Calls that have waited too long are answered by `Deadlines`; the rest ask again. A
            # lost note does no harm: a place is held only as long as its call may be started.
            self._server_is_away = True
            if len(self._notes) + len(notes) <= _NOTES_AT_MOST:
                self._notes.extendleft(reversed(notes))
            return
        except Exception:
            log.exception("rates_not_counted calls=%d", len(asks))
            verdicts = [GRANTED] * len(asks)
        self._server_is_away = False
        for (pending, key, limits), verdict in zip(drawn, verdicts, strict=True):
            self._apply_verdict(pending, key, limits, verdict)

    def _draw(self) -> list[tuple[PendingCall, tuple[Limit, ...]]]:
        """The calls that ask next, one of each group in turn.

        Removes those that may not be sent.
        """
        drawn: list[tuple[PendingCall, tuple[Limit, ...]]] = []
        groups = deque((group, group.in_turn()) for group in self._ready)
        while groups and len(drawn) < _AT_ONCE:
            group, calls = groups.popleft()
            pending = next(calls, None)
            if pending is not None:
                drawn.append((pending, group.limits))
                groups.append((group, calls))
                self._ready[group] = self._ready.pop(group)  # other calls come first next time
        return [each for each in drawn if self._admit_or_refuse(each[0])]

    def _admit_or_refuse(self, pending: PendingCall) -> bool:
        denial = self._calls.denial(pending)
        if denial is None and not pending.is_abandoned:
            return True
        if (limited := pending.limited) is not None:
            self._leave(pending, limited)
        if denial is not None and not pending.is_abandoned:
            self._calls.refuse(pending, denial)
        return False

    def _apply_verdict(
        self, pending: PendingCall, key: str, limits: tuple[Limit, ...], verdict: RateVerdict
    ) -> None:
        limited = pending.limited
        if limited is None or not limited.waits or pending.key != key:  # answered meanwhile
            if verdict.may_go and not verdict.is_known:
                self._give_back(key, limits)
        elif verdict.may_go:
            group = self._groups[limits]
            self._take_out(pending, limited)
            if pending.flow in group.flows:
                group.flows.move_to_end(pending.flow)
            limited.has_places = not verdict.is_known
            if verdict.is_known:
                pending.limited = None
            if limited.is_sent:
                self._pump.remove_held(pending)
                self._calls.join(pending)
            else:
                self._pump.admit(pending)
        elif (group := self._groups[limits]) in self._ready:
            self._wait(group, verdict)

    def _wait(self, group: _Group, verdict: RateVerdict) -> None:
        """Let a group without a free place wait.

        Its calls that cannot get a place in time are answered.
        """
        del self._ready[group]
        group.has_to_wait = True
        now = time.monotonic()
        group.full, group.free_at = verdict.limit, now + verdict.seconds
        if self._refuses or now - group.looked_at >= _LOOK_SECONDS:
            group.looked_at = now
            self._refuse_late(group)
        if group.flows:
            pause = min(max(verdict.seconds, _SHORTEST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
            loop = asyncio.get_running_loop()
            group.timer = loop.call_later(pause, self._may_ask, group)

    def _refuse_late(self, group: _Group) -> None:
        for flow in list(group.flows.values()):
            for ahead, pending in enumerate(list(flow)):
                if self._is_late(group, soonest := group.soonest(ahead), pending):
                    self._refuse(group, pending, soonest)

    def _is_late(self, group: _Group, soonest: float, pending: PendingCall) -> bool:
        is_rate = group.full is not None and group.full.rate.unit != AT_ONCE
        return (self._refuses and is_rate) or soonest > pending.start_by - self._pump.too_late

    def _refuse(self, group: _Group, pending: PendingCall, soonest: float) -> None:
        limited, full = pending.limited, group.full
        if limited is not None and full is not None:
            self._leave(pending, limited)
            self._calls.refuse(pending, _over(full, soonest))


def _over(limit: Limit, free_at: float) -> Outcome:
    """The outcome of a call over a rate limit that frees a place at `free_at`."""
    least = _AGAIN_SECONDS if limit.rate.unit == AT_ONCE else 0.1
    seconds = max(least, free_at - time.monotonic())
    about = over_rate(limit.kind, limit.rate)
    return not_queued(Code.OVERLOADED, about, retry_after=math.ceil(seconds * 10) / 10)


def _is_sent(pending: PendingCall) -> bool:
    return pending.limited is not None and pending.limited.is_sent

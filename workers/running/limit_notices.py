"""Reports the start and end of calls under rate limits to the server."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from toolpool.contract import logs
from toolpool.contract.errors import ServerError, ServerUnavailable
from toolpool.contract.ledger.rate_counters import RateLedger, RateRelease, start_of
from toolpool.contract.rates import AT_ONCE, Limit

log = logs.logger("limit_notices")

_AT_ONCE = 256
_AT_MOST = 10_000
_PATIENCE_SECONDS = 30.0
_REJECTED_PAUSE_SECONDS = 1.0
_REMEMBERED_SECONDS = 60.0
_END_SECONDS = 1.0
"""How many seconds an outcome waits until its place is free for the next call."""


class LimitNotices:
    """Sends the notices of one worker, and repeats them until the server accepts them."""

    def __init__(self, rates: RateLedger, worker: str) -> None:
        self._rates = rates
        self._worker = worker
        self.server_time: Callable[[], float] = time.time
        """Unix time by the server's clock."""
        self._notes: deque[RateRelease] = deque(maxlen=_AT_MOST)
        self._recent: deque[tuple[float, RateRelease]] = deque(maxlen=_AT_MOST)
        """The places of ended calls, with the time of the end.

        They are kept because a server may lose its last writes.
        """
        self._sending: asyncio.Task[None] | None = None

    def begun(self, key: str, nonce: str, limits: tuple[Limit, ...]) -> None:
        """Report that a tool was entered."""
        if windows := _windows(limits):
            self._notes.append(RateRelease(start_of(key, nonce), windows, started=True))
            self._flush()

    def never_begun(self, key: str, nonce: str, limits: tuple[Limit, ...]) -> None:
        """Free the places of a call that was claimed, or may have been claimed, and is not run."""
        if windows := _windows(limits):
            self._notes.append(RateRelease(start_of(key, nonce), windows))
        if running := _running(limits):
            self._free(key, nonce, running)
        self._flush()

    async def ended(self, key: str, nonce: str, limits: tuple[Limit, ...]) -> None:
        """Report that a call has ended. Returns when its place is free, or after a short time."""
        if running := _running(limits):
            self._free(key, nonce, running)
            await asyncio.wait({self._flush()}, timeout=_END_SECONDS)

    def send_again(self) -> None:
        """Free the last places again: a restarted server may still count their calls."""
        self._notes.extend(note for _, note in self._recent)
        self._flush()

    def _free(self, key: str, nonce: str, running: tuple[Limit, ...]) -> None:
        now, note = time.monotonic(), RateRelease(start_of(key, nonce, self._worker), running)
        self._notes.append(note)
        self._recent.append((now, note))
        while self._recent[0][0] < now - _REMEMBERED_SECONDS:
            self._recent.popleft()

    def _flush(self) -> "asyncio.Task[None]":
        if self._sending is None:
            self._sending = asyncio.ensure_future(self._send())
        return self._sending

    async def _send(self) -> None:
        try:
            while self._notes:
                notes = [self._notes[n] for n in range(min(_AT_ONCE, len(self._notes)))]
                give_up_at = time.monotonic() + _PATIENCE_SECONDS
                try:
                    await self._rates.take(notes, [], now=self.server_time(), give_up_at=give_up_at)
                except ServerError as error:
                    log.warning("rate_places_not_reported notes=%d: retrying", len(self._notes))
                    if not isinstance(error, ServerUnavailable):
                        self._notes.rotate(-len(notes))  # other notices may be accepted
                        await asyncio.sleep(_REJECTED_PAUSE_SECONDS)
                    continue
                except Exception:
                    log.exception("rate_places_not_reported notes=%d", len(notes))
                for note in notes:
                    if self._notes and self._notes[0] is note:  # else it was dropped meanwhile
                        self._notes.popleft()
        finally:
            self._sending = None


def _windows(limits: tuple[Limit, ...]) -> tuple[Limit, ...]:
    """The limits that count starts."""
    return tuple(limit for limit in limits if limit.rate.unit != AT_ONCE)


def _running(limits: tuple[Limit, ...]) -> tuple[Limit, ...]:
    """The limits that count running calls."""
    return tuple(limit for limit in limits if limit.rate.unit == AT_ONCE)

"""Tells the server of calls under limits: when they were started, and that they run no more."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from toolpool.contract import logs
from toolpool.contract.ledger.rates import Note, RateLedger, start_of
from toolpool.contract.ledger.steps import ServerAway
from toolpool.contract.rates import AT_ONCE, Limit

log = logs.logger("starts")

_AT_ONCE = 256
_AT_MOST = 10_000
_PATIENCE_SECONDS = 30.0
_END_SECONDS = 1.0
"""How long an outcome waits until its place is free, so that whoever reads it can have that."""


class Starts:
    """One worker's. What cannot be told counts a while longer."""

    def __init__(self, rates: RateLedger, worker: str) -> None:
        self._rates = rates
        self._worker = worker
        self.server_time: Callable[[], float] = time.time
        """Unix time as the server has it."""
        self._notes: deque[Note] = deque(maxlen=_AT_MOST)
        self._telling: asyncio.Task[None] | None = None

    def begun(self, key: str, nonce: str, limits: tuple[Limit, ...]) -> None:
        """A tool was entered."""
        windows = tuple(limit for limit in limits if limit.rate.unit != AT_ONCE)
        if windows:
            self._notes.append(Note(start_of(key, nonce), windows, started=True))
            self._flush()

    async def ended(self, key: str, nonce: str, limits: tuple[Limit, ...], *, begun: bool) -> None:
        """Nothing of a call runs any more; what was not `begun` counts no more at all."""
        running = tuple(limit for limit in limits if limit.rate.unit == AT_ONCE)
        if running:
            self._notes.append(Note(start_of(key, nonce, self._worker), running))
        if not begun and len(running) < len(limits):
            windows = tuple(limit for limit in limits if limit not in running)
            self._notes.append(Note(start_of(key, nonce), windows))
        if self._notes:
            await asyncio.wait({self._flush()}, timeout=_END_SECONDS if running else 0.0)

    def _flush(self) -> "asyncio.Task[None]":
        if self._telling is None:
            self._telling = asyncio.ensure_future(self._tell())
        return self._telling

    async def _tell(self) -> None:
        try:
            while self._notes:
                notes = [self._notes.popleft() for _ in range(min(_AT_ONCE, len(self._notes)))]
                await self._rates.take(
                    notes,
                    [],
                    now=self.server_time(),
                    give_up_at=time.monotonic() + _PATIENCE_SECONDS,
                )
        except ServerAway:
            log.warning("starts_not_told calls=%d: they count a while longer", len(self._notes) + 1)
        except Exception:
            log.exception("starts_not_told")
        finally:
            self._telling = None

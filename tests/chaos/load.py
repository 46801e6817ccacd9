"""A steady stream of calls of every kind, each answer noted in the book."""

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tests.chaos.book import Asked, Book
from tests.chaos.tools import TIMEOUT
from toolpool import Dispatcher
from toolpool.contract.settings import Settings
from toolpool.dispatcher.calls.late_writes import LEASES_TO_WAIT

KINDS = ("read", "write", "plain")
_MODES = ("loop", "loop", "loop", "thread", "process")
_TICK_SECONDS = 0.05
_MARGIN_SECONDS = 1.0
_GIVE_UP_SECONDS = 10.0
"""A dispatch that takes this much longer than it may is given up as missing."""


def allowed_seconds(settings: Settings, timeout: float = TIMEOUT) -> float:
    """How long the answer of a call with this timeout may take."""
    return timeout + settings.queue_timeout + _MARGIN_SECONDS


class Load:
    """Asks `rate` calls a second through one dispatcher, from entering to leaving the block.

    Leaving waits until every call has its answer or is far too late.
    """

    _numbers = itertools.count()

    def __init__(
        self,
        dispatcher: Dispatcher,
        book: Book,
        rng: random.Random,
        *,
        rate: float = 30.0,
        slowest: float = 0.4,
        modes: Sequence[str] = _MODES,
        kinds: Sequence[str] = KINDS,
    ) -> None:
        self._dispatcher = dispatcher
        self._book = book
        self._rng = rng
        self._rate = rate
        self._slowest = slowest
        self.modes = modes
        self._kinds = kinds
        self.asked: set[str] = set()
        """The keys of every call."""
        self._asking: set[asyncio.Task[None]] = set()
        self._ticking: asyncio.Task[None] | None = None
        self.allowed = allowed_seconds(dispatcher._settings)

    async def __aenter__(self) -> Self:
        self._ticking = asyncio.ensure_future(self._tick())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._ticking is not None
        self._ticking.cancel()
        await asyncio.gather(self._ticking, return_exceptions=True)
        if error is None:
            await self.drained()

    async def drained(self) -> None:
        """Return when every call asked so far was answered or given up."""
        while self._asking:
            await asyncio.wait(set(self._asking))

    def burst(
        self, count: int, *, mode: str | None = None, timeout: float = TIMEOUT, **arguments: object
    ) -> None:
        """Ask this many calls at once, with these arguments."""
        for _ in range(count):
            tools = [f"{self._rng.choice(self._kinds)}_{mode}"] if mode else self._some_turn(1)
            self._ask(tools, arguments, timeout)

    async def _tick(self) -> None:
        due = 0.0
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            due += self._rate * _TICK_SECONDS
            while due >= 1.0:
                turn = self._some_turn(3 if self._rng.random() < 0.1 else 1)
                due -= len(turn)
                self._ask(turn, {})

    def _some_turn(self, size: int) -> list[str]:
        return [
            f"{self._rng.choice(self._kinds)}_{self._rng.choice(self.modes)}" for _ in range(size)
        ]

    def _ask(
        self, tools: list[str], arguments: dict[str, object], timeout: float = TIMEOUT
    ) -> None:
        calls = []
        allowed = allowed_seconds(self._dispatcher._settings, timeout)
        for tool in tools:
            key = f"c{next(self._numbers)}"
            seconds = round(self._rng.uniform(0.0, self._slowest), 3)
            calls.append({"id": key, "name": tool, "input": {"key": key, "seconds": seconds}})
            calls[-1]["input"].update(arguments)  # type: ignore[attr-defined]
            self._book.ask(Asked(key, tool, time.monotonic(), allowed))
            self.asked.add(key)
        task = asyncio.ensure_future(self._dispatch(calls, timeout, allowed))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _dispatch(
        self, calls: list[dict[str, object]], timeout: float, allowed: float
    ) -> None:
        began = time.monotonic()
        barriers = (len(calls) - 1) * LEASES_TO_WAIT * self._dispatcher._settings.lease_ttl
        longest = allowed * len(calls) + barriers
        session = f"s{self._rng.randrange(20)}"
        try:
            async with asyncio.timeout(longest + _GIVE_UP_SECONDS):
                turn = await self._dispatcher.dispatch(
                    calls, session=session, turn=str(calls[0]["id"]), timeout=timeout
                )
        except Exception as error:  # R9: what comes too late is missing, anything else a fault too
            if not isinstance(error, TimeoutError):
                self._book.raised.append(repr(error))
            return
        took = time.monotonic() - began
        self._book.extra += abs(len(turn) - len(calls))
        for call, result in zip(calls, turn, strict=False):
            # A call's time begins when it leaves the barrier of its turn: only its own clock knows.
            late_by = (took if len(calls) == 1 else result.duration) - allowed
            late_by = max(late_by, took - longest)
            self._book.answered(str(call["id"]), result, late_by)

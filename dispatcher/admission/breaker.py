"""A circuit breaker for each tool: one that keeps failing is left alone for a moment.

Counted are calls that a tool failed, by its worker's own word: that raised, crashed or overran.
Never a model's mistakes, and never a fault of the pool: a worker or a server that is away. While it
is open, calls are answered at once (`exception.circuit_open`); then one is let through to see.
"""

import time
from collections import deque
from dataclasses import dataclass, field

from toolpool.contract import logs
from toolpool.contract.outcome import Code, ErrorType, Outcome
from toolpool.contract.settings import Settings
from toolpool.dispatcher.observe import Observers

_SAYS_NOTHING = frozenset(
    {
        Code.CIRCUIT_OPEN,
        Code.OVERLOADED,
        Code.CANCELLED,
        Code.DENIED,
        Code.EXPIRED,
        Code.QUEUE_UNREACHABLE,
        Code.INTERNAL,
        Code.WORKER_LOST,
    }
)
"""Codes of calls that the tool had no chance to end well or badly."""

_BUCKETS = 10

log = logs.logger("breaker")


@dataclass(slots=True)
class _Bucket:
    """The calls that ended in a tenth of the window."""

    began: float
    calls: int = 0
    failures: int = 0


@dataclass(slots=True)
class _Circuit:
    buckets: deque[_Bucket] = field(default_factory=deque)
    calls: int = 0
    failures: int = 0
    open_until: float = 0.0
    probing: bool = False


class Breaker:
    """The circuits of one dispatcher. Times are on the monotonic clock."""

    def __init__(self, settings: Settings, observers: Observers) -> None:
        self._rate = settings.breaker_rate
        self._calls = settings.breaker_calls
        self._window = settings.breaker_window
        self._pause = settings.breaker_pause
        self._circuits: dict[str, _Circuit] = {}
        self._observers = observers

    def retry_after(self, tool: str) -> float | None:
        """Seconds until the tool may be tried again; None where it may be called now."""
        circuit = self._circuits.get(tool)
        if circuit is None or not circuit.open_until:
            return None
        left = circuit.open_until - time.monotonic()
        if left > 0:
            return left
        if circuit.probing:
            return 1.0
        circuit.probing = True
        self._tell(tool, "half_open")
        return None

    def note(self, tool: str, outcome: Outcome) -> None:
        """Learn from the outcome of a call."""
        circuit = self._circuits.get(tool)
        if outcome.code in _SAYS_NOTHING or (outcome.code is not None and not outcome.worker):
            if outcome.code is not Code.CIRCUIT_OPEN:
                self.release(tool)
            return
        failed = _failed(outcome)
        if circuit is None:
            if not failed:
                return
            circuit = self._circuits[tool] = _Circuit()
        now = time.monotonic()
        if circuit.open_until:
            self._judge_probe(tool, circuit, failed, now)
            return
        self._count(circuit, failed, now)
        if not circuit.failures:
            del self._circuits[tool]
        elif circuit.calls >= self._calls and circuit.failures >= self._rate * circuit.calls:
            self._open(tool, circuit, now)

    def release(self, tool: str) -> None:
        """A call that was let through says nothing about the tool: the next one will."""
        circuit = self._circuits.get(tool)
        if circuit is not None:
            circuit.probing = False

    def _count(self, circuit: _Circuit, failed: bool, now: float) -> None:
        buckets = circuit.buckets
        if not buckets or now - buckets[-1].began > self._window / _BUCKETS:
            buckets.append(_Bucket(now))
        buckets[-1].calls += 1
        buckets[-1].failures += failed
        circuit.calls += 1
        circuit.failures += failed
        while buckets[0].began < now - self._window:
            old = buckets.popleft()
            circuit.calls -= old.calls
            circuit.failures -= old.failures

    def _judge_probe(self, tool: str, circuit: _Circuit, failed: bool, now: float) -> None:
        if now < circuit.open_until or not circuit.probing:
            return  # a call from before it opened
        if failed:
            self._open(tool, circuit, now)
        else:
            log.warning("circuit_closed tool=%s", tool)
            self._tell(tool, "closed")
            del self._circuits[tool]

    def _tell(self, tool: str, state: str) -> None:
        self._observers.tell("circuit", tool, state)

    def _open(self, tool: str, circuit: _Circuit, now: float) -> None:
        log.error("circuit_opened tool=%s for %.0f s", tool, self._pause)
        self._tell(tool, "open")
        circuit.open_until = now + self._pause
        circuit.probing = False
        circuit.buckets.clear()
        circuit.calls = circuit.failures = 0


def _failed(outcome: Outcome) -> bool:
    if outcome.code is None:
        return False
    return outcome.code.error_type is ErrorType.RUNTIME or outcome.code is Code.TIMEOUT

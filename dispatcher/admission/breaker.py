"""A circuit breaker for each tool: a tool that keeps failing is not called for a while.

Only failures that its worker reports count: the tool raised, crashed or overran. A model's mistakes
never count, nor do faults of the pool, such as an absent worker or server. While the circuit is
open, calls are answered at once (`exception.circuit_open`); then one trial call is let through.
"""

import time
from collections import deque
from dataclasses import dataclass, field

from toolpool.contract import logs
from toolpool.contract.outcome import Code, ErrorType, Outcome
from toolpool.contract.settings import Settings
from toolpool.dispatcher.observer import Observers

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
"""Codes whose calls say nothing about their tool."""

_WINDOW_SECONDS = 60.0
"""How far back failures count, in seconds."""
_BUCKETS = 10
_WANTED_SECONDS = 3.0
"""How long after a refused call this dispatcher still wants to try its tool."""

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
    trial: str | None = None
    """The id of the trial call, until it has ended."""
    wanted_at: float = -_WANTED_SECONDS
    """When a call was last refused only because the fleet allows one trial call."""
    trial_granted: bool = False
    """Whether this dispatcher has the right to send a trial call."""


class Breaker:
    """The circuits of one dispatcher. Times are on the monotonic clock.

    In the scope `fleet` they are synchronized with the circuits of other dispatchers
    (`calls/fleet_circuits.py`): a circuit that another dispatcher opened is open here, and only the
    dispatcher that holds the right to a trial call sends one.
    """

    def __init__(self, settings: Settings, observers: Observers) -> None:
        self._rate = settings.circuit_failure_rate
        self._calls = settings.circuit_minimum_calls
        self._pause = settings.circuit_reset_timeout
        self.circuits: dict[str, _Circuit] = {}
        """Contains only tools that failed recently."""
        self._observers = observers
        self.is_fleet_wide = settings.circuit_scope == "fleet"
        self._changes: set[str] = set()
        """The tools whose circuit was opened or closed here, not yet published."""

    def retry_after(self, tool: str, *, tries: bool = True, call: str = "") -> float | None:
        """Seconds until the tool may be tried again; None if it may be called now.

        After the pause, a `call` that `tries` the tool is let through as the trial; no other call
        is until it has ended.
        """
        circuit = self.circuits.get(tool)
        if circuit is None or not circuit.open_until:
            return None
        left = circuit.open_until - time.monotonic()
        if left > 0:
            return left
        if tries and self.is_fleet_wide:
            circuit.wanted_at = time.monotonic()
        if circuit.trial is not None or (self.is_fleet_wide and not circuit.trial_granted):
            return 1.0
        if tries:
            circuit.trial = call
            self._tell(tool, "half_open")
        return None

    def open_circuits(self) -> dict[str, float]:
        """Seconds until each tool with an open circuit is tried again; 0.0: with its next call."""
        now = time.monotonic()
        return {
            tool: max(0.0, circuit.open_until - now)
            for tool, circuit in self.circuits.items()
            if circuit.open_until
        }

    def note(self, tool: str, outcome: Outcome, *, call: str = "", is_news: bool = True) -> None:
        """Count the outcome of a call.

        Without `is_news` the outcome is not counted, and only ends a trial.
        """
        circuit = self.circuits.get(tool)
        if circuit is None and outcome.ok:
            return
        if not is_news:
            self.release(tool, call=call)
            return
        if outcome.code in _SAYS_NOTHING or (outcome.code is not None and not outcome.worker):
            if outcome.code is not Code.CIRCUIT_OPEN:
                self.release(tool, call=call)
            return
        failed = _failed(outcome)
        if circuit is None:
            if not failed:
                return
            circuit = self.circuits[tool] = _Circuit()
        now = time.monotonic()
        if circuit.open_until:
            self._judge_probe(tool, circuit, failed, now)
            return
        self._count(circuit, failed, now)
        if not circuit.failures:
            del self.circuits[tool]
        elif circuit.calls >= self._calls and circuit.failures >= self._rate * circuit.calls:
            self._open(tool, circuit)

    def release(self, tool: str, *, call: str = "") -> None:
        """Ignore a call that says nothing about its tool. The next call becomes the trial."""
        circuit = self.circuits.get(tool)
        if circuit is not None and circuit.trial == call:
            circuit.trial = None

    def _count(self, circuit: _Circuit, failed: bool, now: float) -> None:
        buckets = circuit.buckets
        if not buckets or now - buckets[-1].began > _WINDOW_SECONDS / _BUCKETS:
            buckets.append(_Bucket(now))
        buckets[-1].calls += 1
        buckets[-1].failures += failed
        circuit.calls += 1
        circuit.failures += failed
        while buckets[0].began < now - _WINDOW_SECONDS:
            old = buckets.popleft()
            circuit.calls -= old.calls
            circuit.failures -= old.failures

    def _judge_probe(self, tool: str, circuit: _Circuit, failed: bool, now: float) -> None:
        if now < circuit.open_until or circuit.trial is None:
            return  # a call that began before the circuit opened
        if failed:
            self._open(tool, circuit)
        else:
            self._close(tool)
            self._changes.add(tool)

    def follow(self, tool: str, left: float | None) -> None:
        """Apply another dispatcher's change: open for this many seconds from now, or closed (None).

        After that time, the dispatcher that holds the trial sends the next call as a test.
        """
        circuit = self.circuits.get(tool)
        was_open = circuit is not None and circuit.open_until > 0
        self._changes.discard(tool)
        if left is None:
            if was_open:
                self._close(tool)
            return
        if circuit is None:
            circuit = self.circuits[tool] = _Circuit()
        self._open_for(circuit, left)
        if not was_open:
            log.error("circuit_opened tool=%s source=fleet", tool)
            self._tell(tool, "open")

    def changes(self) -> dict[str, float | None]:
        """Take the unpublished changes: open for this many seconds, or closed (None)."""
        changes, self._changes = self._changes, set()
        now = time.monotonic()
        return {
            tool: None if (circuit := self.circuits.get(tool)) is None or not circuit.open_until
            else circuit.open_until - now
            for tool in changes
        }  # fmt: skip

    def report_again(self, tool: str) -> None:
        """Keep a change that could not be published."""
        self._changes.add(tool)

    def trials_wanted(self) -> set[str]:
        """The tools for which this dispatcher would send a trial call."""
        now = time.monotonic()
        return {
            tool
            for tool, circuit in self.circuits.items()
            if circuit.open_until
            and circuit.open_until <= now
            and (circuit.trial is not None or now - circuit.wanted_at < _WANTED_SECONDS)
        }

    def grant_trial(self, tool: str) -> None:
        """Record that this dispatcher has the fleet's right to a trial call."""
        circuit = self.circuits.get(tool)
        if circuit is not None:
            circuit.trial_granted = True

    def _close(self, tool: str) -> None:
        log.warning("circuit_closed tool=%s", tool)
        self._tell(tool, "closed")
        del self.circuits[tool]

    def _tell(self, tool: str, state: str) -> None:
        self._observers.notify("circuit", tool, state)

    def _open(self, tool: str, circuit: _Circuit) -> None:
        log.error("circuit_opened tool=%s source=own seconds=%.0f", tool, self._pause)
        self._tell(tool, "open")
        self._open_for(circuit, self._pause)
        self._changes.add(tool)

    @staticmethod
    def _open_for(circuit: _Circuit, seconds: float) -> None:
        circuit.open_until = max(0.001, time.monotonic() + seconds)
        circuit.trial, circuit.trial_granted = None, False
        circuit.wanted_at = -_WANTED_SECONDS
        circuit.buckets.clear()
        circuit.calls = circuit.failures = 0


def _failed(outcome: Outcome) -> bool:
    if outcome.code is None:
        return False
    return outcome.code.error_type is ErrorType.RUNTIME or outcome.code is Code.TIMEOUT

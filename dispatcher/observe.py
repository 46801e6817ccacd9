"""The seam for observers: the moments of a call's life, told to whoever listens.

An observer hangs beside the road. It cannot change a call, and no call waits for it: a host's
observer is told on a thread of its own, what it raises is logged and counted, and of what it is too
slow for the newest is dropped and counted. Facts hold no argument and no result.
"""

import itertools
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from toolpool.contract.outcome import Code, Executed
from toolpool.dispatcher.lifetime import in_a_thread

log = logging.getLogger("toolpool.observe")

_WAITING_AT_MOST = 10_000
_FLUSH_SECONDS = 1.0


class CallFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Which call it is. `retry` counts the pool's own retries of it, from 0."""

    call_id: str
    tool: str
    session: str | None
    turn: str | None
    key: str
    queue: str
    attempt: int
    retry: int


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """A call that was answered without being queued, and what the model did wrong."""

    call_id: str
    tool: str
    session: str | None
    code: Code


class Progressed(msgspec.Struct, frozen=True, kw_only=True):
    """How far a tool says it is."""

    done: float
    total: float | None
    message: str | None


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a call was answered: `code` is None where it went well; `seconds` from its acceptance."""

    code: Code | None
    executed: Executed
    worker: str
    seconds: float


class Loop(msgspec.Struct, frozen=True, kw_only=True):
    """A call that was caught: how often it failed, or that it takes turns with another."""

    session: str
    tool: str
    call_id: str
    failures: int
    alternates: bool


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """More of a tool's last calls were rejected than should be: its schema may be at fault.

    `field` is the one that most of them are about, `rate` the share of the last calls.
    """

    tool: str
    field: str
    rate: float


class Turned(msgspec.Struct, frozen=True, kw_only=True):
    """A kill switch: a tool, or a tool with some value of an argument, is denied or no more."""

    tool: str
    argument: str | None
    denied: bool


class Observer:
    """To be derived from: each method is a moment. What is not overridden costs nothing."""

    def accepted(self, call: CallFacts) -> None:
        """A call is valid and allowed, and waits to be sent."""

    def rejected(self, rejected: Rejected) -> None:
        """A call was answered at once: the model has to mend it."""

    def queued(self, call: CallFacts) -> None:
        """Its message is in the queue."""

    def started(self, call: CallFacts, worker: str) -> None:
        """A worker runs it."""

    def progressed(self, call: CallFacts, progressed: Progressed) -> None:
        """Its tool says how far it is."""

    def released(self, call: CallFacts) -> None:
        """A worker gave it back, to be run by another."""

    def lost(self, call: CallFacts, worker: str) -> None:
        """The worker that ran it is gone."""

    def retried(self, call: CallFacts, pause: float) -> None:
        """It failed, and is run again in `pause` seconds."""

    def ended(self, call: CallFacts, ended: Ended) -> None:
        """It has its result."""

    def late(self, key: str, worker: str) -> None:
        """A worker's outcome came for a call that had been answered before."""

    def looped(self, loop: Loop) -> None:
        """The loop guard caught a call, whatever becomes of it."""

    def circuit(self, tool: str, state: str) -> None:
        """A tool's circuit is `open`, `half_open` or `closed`."""

    def switched(self, turned: Turned) -> None:
        """A kill switch was turned."""

    def alerted(self, alert: Alert) -> None:
        """Too many calls of a tool are rejected."""

    def worker_up(self, worker: str) -> None:
        """A worker is seen for the first time."""

    def worker_down(self, worker: str) -> None:
        """A worker has ended, leaves for good, or has lost its lease."""


MOMENTS = tuple(name for name in vars(Observer) if not name.startswith("_"))


class Observed(Protocol):
    """Whatever knows which call it is."""

    @property
    def facts(self) -> CallFacts:
        """Made only for somebody who listens."""
        ...


class Observers:
    """Tells every observer. Where nobody listens to a moment, it costs one look."""

    def __init__(self, hosts: Sequence[Observer] = ()) -> None:
        self._listeners: dict[str, list[Callable[..., None]]] = {moment: [] for moment in MOMENTS}
        self._threads: list[_Thread] = []
        for observer in hosts:
            if not isinstance(observer, Observer):
                raise TypeError(
                    f"{observer!r} is no observer: derive its class from toolpool.Observer"
                )
            self._threads.append(thread := _Thread(observer))
            self._add(observer, thread.telling)

    def add(self, observer: Observer) -> None:
        """Listen from now on, on the event loop itself: for what is quick and our own."""
        self._add(observer, guarded)

    def _add(
        self, observer: Observer, teller: Callable[[Callable[..., None]], Callable[..., None]]
    ) -> None:
        for moment in MOMENTS:
            if getattr(type(observer), moment) is not getattr(Observer, moment):
                self._listeners[moment].append(teller(getattr(observer, moment)))

    def start(self) -> None:
        """Start the threads of hosts' observers."""
        for thread in self._threads:
            thread.start()

    async def close(self) -> None:
        """Let hosts' observers take what waits for them, each for two seconds at most."""
        for thread in self._threads:
            await in_a_thread(thread.close)

    def hear(self, moment: str) -> bool:
        """Whether anybody listens to it."""
        return bool(self._listeners[moment])

    def call(self, moment: str, call: Observed, *more: Any) -> None:
        """Tell a moment in the life of a call."""
        if listeners := self._listeners[moment]:
            facts = call.facts
            for tell in listeners:
                tell(facts, *more)

    def tell(self, moment: str, *facts: Any) -> None:
        """Tell any other moment."""
        for tell in self._listeners[moment]:
            tell(*facts)


def guarded(method: Callable[..., None]) -> Callable[..., None]:
    """The same, but what it raises is logged."""

    def tell(*facts: Any) -> None:
        try:
            method(*facts)
        except Exception:
            log.exception("observer_failed observer=%s", _named(method))

    return tell


def _named(method: Callable[..., None]) -> str:
    return getattr(method, "__qualname__", repr(method))


class _Thread:
    """Tells one observer of a host, in order, on a thread of its own."""

    def __init__(self, observer: Observer) -> None:
        self._name = type(observer).__qualname__
        self._waiting: queue.Queue[tuple[Callable[..., None], Iterable[Any]] | None]
        self._waiting = queue.Queue(_WAITING_AT_MOST)
        self._dropped = itertools.count(1)
        self._thread: threading.Thread | None = None

    def telling(self, method: Callable[..., None]) -> Callable[..., None]:
        """What hands a moment over, and returns at once."""
        told = guarded(method)

        def tell(*facts: Any) -> None:
            try:
                self._waiting.put_nowait((told, facts))
            except queue.Full:
                dropped = next(self._dropped)
                if dropped & (dropped - 1) == 0:  # 1, 2, 4, 8 ...: said, and not for ever
                    log.error("observer_too_slow observer=%s dropped=%d", self._name, dropped)

        return tell

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="toolpool-observer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._thread is None:
            return
        try:
            self._waiting.put(None, timeout=_FLUSH_SECONDS)
        except queue.Full:
            return
        self._thread.join(_FLUSH_SECONDS)

    def _run(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            tell, facts = waiting
            tell(*facts)

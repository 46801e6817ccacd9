"""Notifies observers, in dispatchers and workers.

An observer cannot change or delay a call: a host's observer is called on its own thread, its
exceptions are logged, and if it is too slow, new notifications are dropped and counted.
"""

import asyncio
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from toolpool.contract import logs

log = logs.logger("observer_dispatch")

PULSE_SECONDS = 0.25
"""The time between two pulses."""

_WAITING_AT_MOST = 10_000
_FLUSH_SECONDS = 2.0
_FAILED = "observer_failed observer=%s"


class BaseObserver:
    """The base class of observers of dispatchers and of workers.

    If `is_quick`, an observer is called directly, usually on the event loop: its methods must take
    only microseconds and never wait. Otherwise it is called in order, on its own thread.
    """

    is_quick = False
    is_idle = False
    """An observer that needs no notifications sets this in `open`, and then gets none."""

    def open(self) -> None:
        """Notifications follow from now on. Exceptions are logged."""

    def close(self) -> None:
        """No more notifications follow. May take a second or two, to send what is left."""


def moments(base: type) -> tuple[str, ...]:
    """The names of the methods by which an observer of this base class is notified."""
    return tuple(name for name in vars(base) if not name.startswith("_"))


class ObserverDispatch:
    """Notifies every observer. Without listeners, a moment costs one dict lookup.

    Raises TypeError for an observer that does not derive from `base`.
    """

    def __init__(self, base: type, hosts: Sequence[Any] = ()) -> None:
        self._base = base
        self.listeners: dict[str, list[Callable[..., None]]]
        self.listeners = {moment: [] for moment in moments(base)}
        """The functions to call for each moment. The hot path looks here first."""
        self._threads: list[_Thread] = []
        self._hosts = list(hosts)
        for observer in hosts:
            if isinstance(observer, type):
                raise TypeError(f"{observer.__name__} is a class: give {observer.__name__}()")
            if not (isinstance(observer, BaseObserver) and isinstance(observer, base)):
                raise TypeError(
                    f"{observer!r} is not an observer: derive it from toolpool.{base.__name__}"
                )

    def add(self, observer: Any) -> None:
        """Add a quick observer of toolpool's own, which is called directly."""
        for moment, method in self._methods(observer).items():
            self.listeners[moment].append(method)

    def _methods(self, observer: Any) -> dict[str, Callable[..., None]]:
        """The methods that an observer overrides, by the moment that they are called for."""
        return {
            moment: getattr(observer, moment)
            for moment in self.listeners
            if getattr(type(observer), moment) is not getattr(self._base, moment)
        }

    def start(self) -> None:
        """Open hosts' observers, and notify them of every moment from now on."""
        for observer in self._hosts:
            guarded(observer.open)()
            if observer.is_idle:
                continue
            if observer.is_quick:
                self.add(observer)
            else:
                self._threads.append(thread := _Thread(observer))
                for moment, method in self._methods(observer).items():
                    self.listeners[moment].append(thread.queued(method))
                thread.start()

    def close(self) -> None:
        """Wait for slow observers, two seconds at most, and close all hosts' observers."""
        give_up_at = time.monotonic() + _FLUSH_SECONDS
        for thread in self._threads:
            thread.close(give_up_at)
        for observer in self._hosts:
            guarded(observer.close)()

    @property
    def dropped(self) -> int:
        """How many notifications were dropped because observers were too slow."""
        return sum(thread.dropped for thread in self._threads)

    def notify(self, moment: str, *facts: Any) -> None:
        """Notify all listeners of a moment. Their exceptions are logged."""
        for tell in self.listeners[moment]:
            try:
                tell(*facts)
            except (
                Exception,
                asyncio.CancelledError,
            ):  # raised by a cancelled future that the observer read
                log.exception(_FAILED, _named(tell))


def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method: exceptions are logged, and None is returned instead."""

    def notify(*facts: Any) -> Any:
        try:
            return method(*facts)
        except (Exception, asyncio.CancelledError):
            log.exception(_FAILED, _named(method))
            return None

    return notify


def _named(method: Callable[..., None]) -> str:
    return getattr(method, "__qualname__", repr(method))


class _Thread:
    """Notifies one observer of a host, in order, on its own thread."""

    def __init__(self, observer: object) -> None:
        self._name = type(observer).__qualname__
        self._waiting: queue.Queue[tuple[Callable[..., None], Iterable[Any]] | None]
        self._waiting = queue.Queue(_WAITING_AT_MOST)
        self._drops = itertools.count(1)
        self.dropped = 0
        """How many notifications were dropped because the observer was too slow."""
        self._thread: threading.Thread | None = None

    def queued(self, method: Callable[..., None]) -> Callable[..., None]:
        """A function that queues a call of `method`, and returns at once."""
        call = guarded(method)

        def notify(*facts: Any) -> None:
            try:
                self._waiting.put_nowait((call, facts))
            except queue.Full:
                self.dropped = dropped = next(self._drops)
                if dropped & (dropped - 1) == 0:  # logged at 1, 2, 4, 8 ...
                    log.error("observer_too_slow observer=%s dropped=%d", self._name, dropped)

        return notify

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="toolpool-observer", daemon=True)
        self._thread.start()

    def close(self, give_up_at: float) -> None:
        if self._thread is None:
            return
        try:
            self._waiting.put(None, timeout=max(0.0, give_up_at - time.monotonic()))
        except queue.Full:
            return
        self._thread.join(max(0.0, give_up_at - time.monotonic()))

    def _run(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            tell, facts = waiting
            try:
                tell(*facts)
            except BaseException:  # sys.exit() would end only this thread
                log.exception(_FAILED, self._name)

"""How observers are told of what happens, on both sides.

An observer hangs beside the road. It cannot change a call, and no call waits for it: a host's
observer is told on a thread of its own, what it raises is logged, and of what it is too slow for
the newest is dropped and counted.
"""

import asyncio
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from toolpool.contract import logs

log = logs.logger("observe")

PULSE_SECONDS = 0.25
"""How long after one pulse the next is due."""

_WAITING_AT_MOST = 10_000
_FLUSH_SECONDS = 2.0
_FAILED = "observer_failed observer=%s"


class Listening:
    """What every observer has, on both sides.

    One that `is_quick` is told where a moment happens, as a rule on the event loop: it must take
    only microseconds and never wait. Any other is told in order, on a thread of its own.
    """

    is_quick = False
    is_idle = False
    """Whether, once it is open, it has no use for any moment: then it is told of none."""

    def open(self) -> None:
        """It is told of moments from now on. What it raises is logged."""

    def close(self) -> None:
        """It is told of nothing more. May take a second or two, to send what it still holds."""


def moments(base: type) -> tuple[str, ...]:
    """The methods of an observer's base class: what it can be told."""
    return tuple(name for name in vars(base) if not name.startswith("_"))


class Tellers:
    """Tells every observer. Where nobody listens to a moment, it costs one look.

    `base` is the class that the observers derive from. Raises TypeError for an observer that does
    not derive from it.
    """

    def __init__(self, base: type, hosts: Sequence[Any] = ()) -> None:
        self._base = base
        self._listeners: dict[str, list[Callable[..., None]]]
        self._listeners = {moment: [] for moment in moments(base)}
        self._threads: list[_Thread] = []
        self._hosts = list(hosts)
        for observer in hosts:
            if isinstance(observer, type):
                raise TypeError(f"{observer.__name__} is a class: give {observer.__name__}()")
            if not (isinstance(observer, Listening) and isinstance(observer, base)):
                raise TypeError(
                    f"{observer!r} is no observer: derive its class from toolpool.{base.__name__}"
                )

    def add(self, observer: Any) -> None:
        """Listen from now on, where it happens: for what is quick and our own."""
        for moment, method in self._methods(observer).items():
            self._listeners[moment].append(method)

    def _methods(self, observer: Any) -> dict[str, Callable[..., None]]:
        """What it overrides, by moment."""
        return {
            moment: getattr(observer, moment)
            for moment in self._listeners
            if getattr(type(observer), moment) is not getattr(self._base, moment)
        }

    def start(self) -> None:
        """Tell hosts' observers that it begins, and from now on of every moment."""
        for observer in self._hosts:
            guarded(observer.open)()
            if observer.is_idle:
                continue
            if observer.is_quick:
                self.add(observer)
            else:
                self._threads.append(thread := _Thread(observer))
                for moment, method in self._methods(observer).items():
                    self._listeners[moment].append(thread.telling(method))
                thread.start()

    def close(self) -> None:
        """Let hosts' observers take what waits for them, for two seconds at most. Blocks."""
        give_up_at = time.monotonic() + _FLUSH_SECONDS
        for thread in self._threads:
            thread.close(give_up_at)
        for observer in self._hosts:
            guarded(observer.close)()

    @property
    def dropped(self) -> int:
        """How many moments observers were too slow for."""
        return sum(thread.dropped for thread in self._threads)

    def hear(self, moment: str) -> bool:
        """Whether anybody listens to it."""
        return bool(self._listeners[moment])

    def tell(self, moment: str, *facts: Any) -> None:
        """Tell whoever listens to it. What one raises is logged."""
        for tell in self._listeners[moment]:
            try:
                tell(*facts)
            except (Exception, asyncio.CancelledError):  # a future that it looked at was cancelled
                log.exception(_FAILED, _named(tell))


def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same, but what it raises is logged, and the answer is then None."""

    def tell(*facts: Any) -> Any:
        try:
            return method(*facts)
        except (Exception, asyncio.CancelledError):
            log.exception(_FAILED, _named(method))
            return None

    return tell


def _named(method: Callable[..., None]) -> str:
    return getattr(method, "__qualname__", repr(method))


class _Thread:
    """Tells one observer of a host, in order, on a thread of its own."""

    def __init__(self, observer: object) -> None:
        self._name = type(observer).__qualname__
        self._waiting: queue.Queue[tuple[Callable[..., None], Iterable[Any]] | None]
        self._waiting = queue.Queue(_WAITING_AT_MOST)
        self._drops = itertools.count(1)
        self.dropped = 0
        """How many moments it was too slow for."""
        self._thread: threading.Thread | None = None

    def telling(self, method: Callable[..., None]) -> Callable[..., None]:
        """What hands a moment over, and returns at once."""
        told = guarded(method)

        def tell(*facts: Any) -> None:
            try:
                self._waiting.put_nowait((told, facts))
            except queue.Full:
                self.dropped = dropped = next(self._drops)
                if dropped & (dropped - 1) == 0:  # 1, 2, 4, 8 ...: said, and not for ever
                    log.error("observer_too_slow observer=%s dropped=%d", self._name, dropped)

        return tell

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
            except BaseException:  # sys.exit() here would end nothing but this thread
                log.exception(_FAILED, self._name)

"""Holds a flood of reports back, and counts what it held back."""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable

_KEYS_REMEMBERED = 1_000


class _Bucket:
    """Tokens that come back over a minute."""

    __slots__ = ("_at", "_left", "_size")

    def __init__(self, size: int, now: float) -> None:
        self._size = size
        self._left = float(size)
        self._at = now

    def refill(self, now: float) -> bool:
        """Whether there is one."""
        self._left = min(self._size, self._left + (now - self._at) * self._size / 60.0)
        self._at = now
        return self._left >= 1.0

    def take(self) -> None:
        self._left -= 1.0


class Throttle:
    """Lets so many a minute through of each key, and so many in all. From any thread."""

    def __init__(
        self, *, of_each: int, in_all: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._of_each = of_each
        self._clock = clock
        self._all = _Bucket(in_all, clock())
        self._keys: OrderedDict[Hashable, _Bucket] = OrderedDict()
        self._held_back: Counter[Hashable] = Counter()
        self._lock = threading.Lock()

    def admits(self, key: Hashable) -> bool:
        """Whether this one goes through; else it is counted."""
        now = self._clock()
        with self._lock:
            bucket = self._keys.pop(key, None) or _Bucket(self._of_each, now)
            self._keys[key] = bucket
            if len(self._keys) > _KEYS_REMEMBERED:
                self._keys.popitem(last=False)
            if bucket.refill(now) & self._all.refill(now):
                bucket.take()
                self._all.take()
                return True
            if len(self._held_back) < _KEYS_REMEMBERED or key in self._held_back:
                self._held_back[key] += 1
            return False

    def held_back(self, key: Hashable) -> int:
        """How many of a key were held back since this was asked last."""
        with self._lock:
            return self._held_back.pop(key, 0)

    def all_held_back(self) -> int:
        """How many were held back of keys that nobody has asked for, and are now forgotten."""
        with self._lock:
            held = self._held_back.total()
            self._held_back.clear()
            return held

"""Limits the rate of reports, and counts those that were suppressed."""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable

_KEYS_REMEMBERED = 1_000


class _Bucket:
    """A token bucket that refills within a minute."""

    __slots__ = ("_at", "_left", "_size")

    def __init__(self, size: int, now: float) -> None:
        self._size = size
        self._left = float(size)
        self._at = now

    def refill(self, now: float) -> bool:
        """Refill the bucket; return whether it has a token."""
        self._left = min(self._size, self._left + (now - self._at) * self._size / 60.0)
        self._at = now
        return self._left >= 1.0

    def take(self) -> None:
        self._left -= 1.0


class Throttle:
    """Admits up to `of_each` reports a minute per key, and `in_all` in total. Thread-safe."""

    def __init__(
        self, *, of_each: int, in_all: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._of_each = of_each
        self._clock = clock
        self._all = _Bucket(in_all, clock())
        self._keys: OrderedDict[Hashable, _Bucket] = OrderedDict()
        self._suppressed: Counter[Hashable] = Counter()
        self._lock = threading.Lock()

    def admits(self, key: Hashable) -> bool:
        """Whether a report may be sent; if not, it is counted."""
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
            if len(self._suppressed) < _KEYS_REMEMBERED or key in self._suppressed:
                self._suppressed[key] += 1
            return False

    def suppressed(self, key: Hashable) -> int:
        """How many reports of a key were suppressed since the last call; resets the count."""
        with self._lock:
            return self._suppressed.pop(key, 0)

    def all_suppressed(self) -> int:
        """How many suppressed reports `suppressed` has not returned yet; resets the counts."""
        with self._lock:
            count = self._suppressed.total()
            self._suppressed.clear()
            return count

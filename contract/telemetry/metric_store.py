"""What metrics count in, and how the numbers of several processes or dispatchers become one.

Each has a sheet of its own and writes it without a lock: a number is one cell of memory. Where that
memory is shared, it outlives a process that is killed. A book adds sheets up; of one that ended it
keeps what was counted, so that no counter goes back.
"""

import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from mmap import mmap
from typing import NamedTuple, TypeVar, cast

import msgspec

SHEET_BYTES = 1 << 22
"""Enough for all that is capped below; of it only what is written to takes memory."""
TOOLS_AT_MOST = 200
OTHER = "other"
"""A label in place of any beyond what is counted apart."""
UNKNOWN_TOOL = "(unknown)"
"""A label in place of a name that a model made up."""
OK = "ok"

SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0, 1800.0, 7200.0, 28800.0,
)  # fmt: skip
"""From a millisecond to eight hours."""
LAG_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
CALLS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)

_SPARE_CELLS = 64
_STEP = 16
_Item = TypeVar("_Item")


class Kind(Enum):
    """What a number does: only grow, go up and down, or count what it saw in buckets."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    SUM = "a gauge whose values are added up"
    MOST = "a gauge of which the largest value counts"
    SINCE = "a gauge of the seconds since the time that is noted, beyond `grace`"


class Family(NamedTuple):
    """A metric. `name` is what Prometheus calls it, a counter's with `_total`."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    grace: float = 0.0

    @property
    def cells(self) -> int:
        """How many numbers a series takes: for each bucket, for what is beyond, and their sum."""
        return len(self.buckets) + 2 if self.kind is Kind.HISTOGRAM else 1

    @property
    def stays(self) -> bool:
        """Whether what was counted holds when whoever counted it is gone."""
        return self.kind in (Kind.COUNTER, Kind.HISTOGRAM)


Series = dict[tuple[str, ...], list[float]]
"""The cells of a family by the values of its labels."""


class MetricShard:
    """The numbers of one process or dispatcher. Each series is to be written by one thread.

    The first cell says how many are in use. A series is its length in bytes of name, its count of
    cells, its name, its cells; it is there for a reader once the first cell says so.
    """

    def __init__(self, memory: bytearray | mmap | None = None) -> None:
        whole = memoryview(memory if memory is not None else bytearray(SHEET_BYTES))
        self._bytes = whole.cast("B")
        self.cells = whole.cast("d")
        """To be added to at what `place` answers."""
        self._most = len(self.cells) - _SPARE_CELLS
        self._places: dict[tuple[str, tuple[str, ...]], int] = {}
        if not self.cells[0]:
            self.cells[0] = 1.0

    def place(self, family: Family, *labels: str) -> int:
        """Where the first cell of a series is. One that has no room is counted nowhere."""
        key = (family.name, labels)
        known = self._places.get(key)
        if known is None:
            known = self._places[key] = self._new(family, labels)
        return known

    def _new(self, family: Family, labels: tuple[str, ...]) -> int:
        name = msgspec.json.encode([family.name, *labels])
        at = int(self.cells[0])
        first = at + 2 + -(-len(name) // 8)
        end = first + family.cells
        if end > self._most:
            return self._most
        self.cells[at], self.cells[at + 1] = float(len(name)), float(family.cells)
        self._bytes[(at + 2) * 8 : (at + 2) * 8 + len(name)] = name
        self.cells[0] = float(end)
        return first

    def observe(self, at: int, buckets: tuple[float, ...], value: float) -> None:
        """Add a value to a histogram whose first cell is at `at`."""
        self.cells[at + bisect_left(buckets, value)] += 1.0
        self.cells[at + len(buckets) + 1] += value

    def series(self) -> Iterator[tuple[str, tuple[str, ...], list[float]]]:
        """Every series: its family's name, the values of its labels, its cells."""
        at, end = 1, int(self.cells[0])
        while at < end:
            length, count = int(self.cells[at]), int(self.cells[at + 1])
            start = (at + 2) * 8
            name, *labels = msgspec.json.decode(bytes(self._bytes[start : start + length]))
            at += 2 + -(-length // 8)
            yield name, tuple(labels), cast("list[float]", self.cells[at : at + count].tolist())
            at += count


class MetricAggregate:
    """Adds sheets up. From any thread; whoever writes a sheet waits for nobody."""

    def __init__(self, families: Sequence[Family]) -> None:
        self.families = tuple(families)
        self._named = {family.name: family for family in families}
        self._shards: list[MetricShard] = []
        self._ended: dict[str, Series] = {}
        self._lock = threading.Lock()

    def add(self, shard: MetricShard) -> None:
        """Count a sheet from now on."""
        with self._lock:
            self._shards.append(shard)

    def end(self, shard: MetricShard) -> None:
        """Nobody writes it any more: keep what it counted, forget how it stood. Idempotent."""
        with self._lock:
            if shard in self._shards:
                self._shards.remove(shard)
                self._add(self._ended, shard, only_what_stays=True)

    def totals(self) -> dict[str, Series]:
        """The series of every family, by its name."""
        with self._lock:
            totals = {
                name: {labels: list(cells) for labels, cells in series.items()}
                for name, series in self._ended.items()
            }
            for shard in self._shards:
                self._add(totals, shard, only_what_stays=False)
        return totals

    def _add(self, totals: dict[str, Series], shard: MetricShard, *, only_what_stays: bool) -> None:
        now = time.monotonic()
        for name, labels, cells in in_steps(shard.series()):
            family = self._named.get(name)
            if family is None or (only_what_stays and not family.stays):
                continue
            if family.kind is Kind.SINCE:
                cells = [max(0.0, now - cells[0] - family.grace)]
            known = totals.setdefault(name, {}).setdefault(labels, [0.0] * len(cells))
            if family.kind in (Kind.MOST, Kind.SINCE):
                known[0] = max(known[0], cells[0])
            else:
                known[:] = map(float.__add__, known, cells)


def in_steps(items: Iterable[_Item]) -> Iterator[_Item]:
    """The same, letting other threads of this process go first every now and then.

    Else an event loop beside this thread waits five milliseconds, Python's switch interval, each
    time that it comes back from waiting.
    """
    for number, item in enumerate(items):
        if number % _STEP == 0:
            time.sleep(0)
        yield item


class ToolNames:
    """The label of each tool, of so many at most."""

    def __init__(self, at_most: int = TOOLS_AT_MOST) -> None:
        self._at_most = at_most
        self._labels: dict[str, str] = {}

    def of(self, tool: str) -> str:
        """Its name, or `other` where there are too many before it."""
        if tool not in self._labels and len(self._labels) >= self._at_most:
            return OTHER
        return self._labels.setdefault(tool, tool)

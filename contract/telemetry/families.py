"""Declares metrics, and those that dispatchers and workers share. Imports no Prometheus."""

import time
from enum import Enum
from typing import NamedTuple

from toolpool.contract.observer_dispatch import PULSE_SECONDS

TOOLS_AT_MOST = 200
OTHER = "other"
"""The label for all values beyond a `LabelLimit`."""
UNKNOWN_TOOL = "(unknown)"
"""The label for a tool name that a model made up."""
OK = "ok"
DIRECTORY_PREFIX = "toolpool-metrics-"
"""The prefix of the directory that worker processes write their metrics to."""

SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0, 1800.0, 7200.0, 28800.0,
)  # fmt: skip
"""From a millisecond to eight hours."""
LAG_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Kind(Enum):
    """The type of a metric, and how gauges of several dispatchers or processes are merged."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    SUM = "a gauge whose values are added up"
    MOST = "a gauge whose largest value is shown"
    SINCE = "a gauge of seconds, computed on each scrape; see `stall_seconds`"


class Family(NamedTuple):
    """A metric. `name` is its Prometheus name, which ends in `_total` for a counter."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


BUILD = Family(
    "toolpool_build_info", Kind.MOST, "Always 1; its label says which version runs.", ("version",)
)
LAG = Family(
    "toolpool_event_loop_lag_seconds",
    Kind.HISTOGRAM,
    "Seconds by which the event loop was late, measured four times a second.",
    buckets=LAG_SECONDS,
)
STALL = Family(
    "toolpool_event_loop_stall_seconds",
    Kind.SINCE,
    "Seconds for which the event loop has not turned, when it is read.",
)
DROPPED = Family(
    "toolpool_observer_drops_total",
    Kind.COUNTER,
    "Notifications that were dropped because an observer was too slow.",
)


def stall_seconds(turned_at: float) -> float:
    """The seconds by which an event loop, which last turned at `turned_at` (monotonic), is late."""
    return max(0.0, time.monotonic() - turned_at - 2 * PULSE_SECONDS)


class LabelLimit:
    """Limits the values of a label: the first `at_most` are kept, any other becomes `other`."""

    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self._values: set[str] = set()

    def of(self, value: str) -> str:
        """The label for this value."""
        if value not in self._values:
            if len(self._values) >= self._at_most:
                return OTHER
            self._values.add(value)
        return value

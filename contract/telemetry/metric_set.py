"""The counters and histograms of a dispatcher or worker, as `prometheus_client` objects.

Imported only if metrics are on.
"""

from collections.abc import Iterable

from prometheus_client import Counter, Histogram
from prometheus_client.values import MutexValue

from toolpool.contract.telemetry.families import Family, Kind


# The library's own `_metric_init` uses one class of values for the whole process.
class _MemoryCounter(Counter):
    def _metric_init(self) -> None:
        self._value = _memory_value()
        self._created = 0.0


class _MemoryHistogram(Histogram):
    def _metric_init(self) -> None:
        self._created = 0.0
        self._sum = _memory_value()
        self._buckets = [_memory_value() for _ in self._upper_bounds]


class MetricSet:
    """Counters and histograms, which are not in a registry.

    `in_memory` keeps their values in the memory of this process even if `prometheus_client` is in
    multiprocess mode, as under Gunicorn or in a worker: its files belong to the host.
    """

    def __init__(self, families: Iterable[Family], *, in_memory: bool) -> None:
        counter = _MemoryCounter if in_memory else Counter
        histogram = _MemoryHistogram if in_memory else Histogram
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for name, kind, text, labels, buckets in families:
            if kind is Kind.COUNTER:
                self._counters[name] = counter(name, text, labels, registry=None)
            elif kind is Kind.HISTOGRAM:
                self._histograms[name] = histogram(
                    name, text, labels, registry=None, buckets=buckets
                )

    def counter(self, family: Family, *labels: str) -> Counter:
        """The counter of a family, for these values of its labels."""
        counter = self._counters[family.name]
        return counter.labels(*labels) if labels else counter

    def histogram(self, family: Family, *labels: str) -> Histogram:
        """The histogram of a family, for these values of its labels."""
        histogram = self._histograms[family.name]
        return histogram.labels(*labels) if labels else histogram


def _memory_value() -> MutexValue:
    return MutexValue("", "", "", (), (), "")  # type: ignore[no-untyped-call]

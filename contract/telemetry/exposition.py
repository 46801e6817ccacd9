"""The page that Prometheus reads, from a book of figures. Imported only where metrics are on."""

import threading
import time
from collections.abc import Iterable, Iterator
from itertools import accumulate
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from toolpool.contract.telemetry.metric_store import Family, Kind, MetricAggregate, Series, in_steps

_SAME_PAGE_SECONDS = 0.5
"""However many ask, and however often, a page is made at most twice a second."""


class _InSteps(list[Sample]):
    """Samples that are written a few at a time."""

    def __iter__(self) -> Iterator[Sample]:
        return in_steps(super().__iter__())


class BookCollector(Collector):
    """Gives a registry what stands in a book."""

    def __init__(self, aggregate: MetricAggregate) -> None:
        self._aggregate = aggregate

    def collect(self) -> Iterator[Metric]:
        """A metric for each family, with no series where nothing happened yet."""
        totals = self._aggregate.totals()
        for family in self._aggregate.families:
            metric = _metric(family, totals.get(family.name, {}))
            metric.samples = _InSteps(metric.samples)
            yield metric


class Page:
    """A registry as text. From any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._made: dict[str, tuple[float, bytes]] = {}
        self._lock = threading.Lock()

    def of(self, accepted: str) -> tuple[str, bytes]:
        """Its content type and its bytes, in a form that the header `Accept` asks for."""
        encode, content_type = choose_encoder(accepted)
        with self._lock:
            made_at, page = self._made.get(content_type, (float("-inf"), b""))
            if time.monotonic() - made_at > _SAME_PAGE_SECONDS:
                page = encode(self._registry)
                self._made[content_type] = (time.monotonic(), page)
        return content_type, page


_books: "WeakKeyDictionary[CollectorRegistry, MetricAggregate]" = WeakKeyDictionary()
_books_lock = threading.Lock()


def aggregate_in(registry: CollectorRegistry, families: Iterable[Family]) -> MetricAggregate:
    """The one book of these families whose totals are in a registry."""
    with _books_lock:
        aggregate = _books.get(registry)
        if aggregate is None:
            aggregate = MetricAggregate(tuple(families))
            registry.register(BookCollector(aggregate))
            _books[registry] = aggregate
        return aggregate


def _metric(family: Family, series: Series) -> Metric:
    if family.kind is Kind.HISTOGRAM:
        histogram = HistogramMetricFamily(family.name, family.text, labels=family.labels)
        ends = [*(str(end) for end in family.buckets), "+Inf"]
        for labels, cells in in_steps(series.items()):
            counts = list(zip(ends, accumulate(cells[:-1]), strict=True))
            histogram.add_metric(labels, buckets=counts, sum_value=cells[-1])
        return histogram
    if family.kind is Kind.COUNTER:
        counter = CounterMetricFamily(family.name, family.text, labels=family.labels)
        for labels, cells in in_steps(series.items()):
            counter.add_metric(labels, cells[0])
        return counter
    gauge = GaugeMetricFamily(family.name, family.text, labels=family.labels)
    for labels, cells in in_steps(series.items()):
        gauge.add_metric(labels, cells[0])
    return gauge

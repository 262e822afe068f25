"""Tell of the whole fleet: a collector that looks into store and broker at each scrape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from celery_reliable.contrib.fleet_numbers import Values, numbers_of
from celery_reliable.contrib.metrics import METRICS, PREFIX
from celery_reliable.fleet import Lookout

if TYPE_CHECKING:
    from celery import Celery
    from prometheus_client.core import Metric as Family

    from celery_reliable.fleet import Fleet


class FleetCollector(Collector):
    """Look at each scrape: one look at a time, and ``up`` 0 with nothing else while store or broker are away."""

    def __init__(self, app: Celery) -> None:
        """Take the app; connects at the first look."""
        self._lookout = Lookout(app)

    def look(self) -> Fleet | None:
        """Return the fleet; None when store or broker are away."""
        return self._lookout.look()

    def describe(self) -> Iterator[Family]:
        """Name the metrics without a look: a registry asks when it takes a collector."""
        return (_family(name, {}) for name, metric in METRICS.items() if metric.source == "fleet")

    def collect(self) -> Iterator[Family]:
        """Yield every metric of the fleet."""
        return (_family(name, values) for name, values in numbers_of(self.look()).items())


def _family(name: str, values: Values) -> Family:
    metric = METRICS[name]
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(PREFIX + name, metric.meaning, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family

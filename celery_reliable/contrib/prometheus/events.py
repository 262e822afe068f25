"""Count what events change, and tell it: an event hook and its collector."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from celery_reliable.contrib.counting import Change, Counting
from celery_reliable.contrib.metrics import BUCKETS, METRICS, PREFIX
from celery_reliable.contrib.prometheus.cells import Cells, Name
from celery_reliable.events import EVENTS
from celery_reliable.runtime import runtime_of

if TYPE_CHECKING:
    from celery import Celery
    from prometheus_client.core import Metric as Family


class EventMetrics:
    """An event hook that counts; ``reliable_metrics_port`` adds it.

    Guarantee: every label is of a closed set, as `Counting` has it. What pool children count reaches their parent's
    endpoint, also after they died.
    """

    def __init__(self, app: Celery) -> None:
        """Take the app, whose tasks and queues are the labels."""
        self._cells = Cells()
        self._counting = Counting(app)
        self._server: Any = None

    def __call__(self, event: str, fields: Mapping[str, Any]) -> None:
        """Count one event."""
        self._cells.add(*(cell for change in self._counting.changes(event, fields) for cell in _cells_of(change)))

    # --- telling

    def share(self) -> None:
        """Count pool children that are forked from now on, too."""
        self._cells.share()

    def collector(self) -> Collector:
        """Return what a registry of prometheus-client takes."""
        return _EventCollector(self._cells)

    def serve(self, host: str, port: int) -> None:
        """Answer scrapes in a thread. Raises OSError when the address is not free."""
        if self._server is None and not self._cells.is_shared_by_another:
            registry = CollectorRegistry()
            registry.register(self.collector())
            self._server, _ = start_http_server(port, host, registry=registry)

    def close(self) -> None:
        """Stop to answer, and remove what was shared. May be called twice, and by a child."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        self._cells.close()


def metrics_of(app: Celery) -> EventMetrics:
    """Return what counts an app's events in this process. Raises LookupError when nothing does."""
    found: EventMetrics | None = runtime_of(app).metrics
    if found is None:
        raise LookupError("no metrics are kept: set reliable_metrics_port")
    return found


class _EventCollector(Collector):
    """Tell the numbers of all processes of this worker."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells

    def collect(self) -> Iterator[Family]:
        """Yield every metric of a process, those without a value included."""
        by_metric: dict[str, dict[Name, float]] = {name: {} for name in METRICS}
        for (first, *labels), value in sorted(self._cells.total().items()):
            by_metric.get(first, {})[tuple(labels)] = value
        for name, metric in METRICS.items():
            if metric.source == "process":
                yield _FAMILIES[metric.kind](name, by_metric[name])


def _counter(name: str, values: Mapping[Name, float]) -> Family:
    family = CounterMetricFamily(PREFIX + name, METRICS[name].meaning, labels=METRICS[name].labels)
    known: dict[Name, float] = {(event,): 0.0 for event in EVENTS} if name == "events" else {}
    for labels, value in {**known, **values}.items():
        family.add_metric(labels, value)
    return family


def _gauge(name: str, values: Mapping[Name, float]) -> Family:
    return GaugeMetricFamily(
        PREFIX + name,
        METRICS[name].meaning,
        value=values.get((), 0.0),
    )


def _histogram(name: str, values: Mapping[Name, float]) -> Family:
    family = HistogramMetricFamily(PREFIX + name, METRICS[name].meaning, labels=METRICS[name].labels)
    bounds = [*(f"{bound:g}" for bound in BUCKETS), "+Inf"]
    for label in sorted({label for label, _ in values}):
        counts, total = [], 0.0
        for number, bound in enumerate(bounds):
            total += values.get((label, str(number)), 0.0)
            counts.append((bound, total))
        family.add_metric([label], counts, values.get((label, "sum"), 0.0))
    return family


_FAMILIES: Final = {"counter": _counter, "gauge": _gauge, "histogram": _histogram}


def _cells_of(change: Change) -> tuple[tuple[Name, float], ...]:
    name, labels, amount = change
    if METRICS[name].kind != "histogram":
        return (((name, *labels), amount),)
    bucket = str(bisect.bisect_left(BUCKETS, amount))
    return ((name, *labels, bucket), 1.0), ((name, *labels, "sum"), amount)

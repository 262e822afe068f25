"""Turn events into numbers: an event hook, and the collector that tells them."""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from celery import current_task
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from celery_reliable.contrib.prometheus.catalogue import BUCKETS, METRICS, PREFIX
from celery_reliable.contrib.prometheus.cells import Cells, Name
from celery_reliable.events import EVENTS
from celery_reliable.keys import HEADER
from celery_reliable.runtime import runtime_of

if TYPE_CHECKING:
    from celery import Celery
    from prometheus_client.core import Metric as Family

Changes = list[tuple[Name, float]]

_OTHER: Final = "other"
_MOST_RUNS: Final = 10_000  # whose beginning is remembered

_OUTCOMES: Final[Mapping[str, str]] = {
    "done": "done",
    "retried": "retried",
    "snoozed": "snoozed",
    "interrupted": "interrupted",
    "buried": "dead",
    "skipped": "skipped",
    "stale": "stale",
    "over": "duplicate",
    "replayed_outcome": "duplicate",
    "reported_again": "duplicate",
}


class EventMetrics:
    """An event hook that counts; ``reliable_metrics_port`` adds it.

    Guarantee: every label is of a closed set: the app's tasks and queues, the names of events, outcomes and reasons; any
    other value is ``other``. What pool children count reaches their parent's endpoint, also after they died.
    """

    def __init__(self, app: Celery) -> None:
        """Take the app, whose tasks and queues are the labels."""
        self._app = app
        self._cells = Cells()
        self._began: dict[str, float] = {}
        self._handlers: dict[str, Callable[[Mapping[str, Any]], Changes]] = {
            "submitted": self._on_submitted,
            "claimed": self._on_claimed,
            **{event: partial(self._on_outcome, event) for event in _OUTCOMES},
            **{event: partial(self._on_leadership, event) for event in ("leading", "standing_by")},
        }
        self._server: Any = None

    def __call__(self, event: str, fields: Mapping[str, Any]) -> None:
        """Count one event."""
        handler = self._handlers.get(event)
        changes = handler(fields) if handler else []
        self._cells.add((("events", event), 1.0), *changes)

    def _on_submitted(self, fields: Mapping[str, Any]) -> Changes:
        return [(("submitted", self._task(fields)), 1.0)]

    def _on_claimed(self, fields: Mapping[str, Any]) -> Changes:
        if len(self._began) >= _MOST_RUNS:  # runs whose end nobody told
            self._began.clear()
        self._began[fields["task_id"]] = time.monotonic()
        request: Any = current_task.request if current_task else None
        since = _due(request)
        if since is None:
            return []
        info = request.delivery_info or {}
        queue = str(info.get("routing_key") or "")
        label = queue if queue in self._app.amqp.queues else _OTHER
        return _observed("latency_seconds", label, max(fields["fence"] / 1e6 - since, 0.0))

    def _on_outcome(self, event: str, fields: Mapping[str, Any]) -> Changes:
        task = self._task(fields)
        changes: Changes = [(("runs", task, _OUTCOMES[event]), 1.0)]
        if event == "buried":
            changes.append((("dead_letters", task, str(fields["reason"])), 1.0))
        began = self._began.pop(fields["task_id"], None)
        if began is not None:
            changes += _observed("runtime_seconds", task, time.monotonic() - began)
        return changes

    @staticmethod
    def _on_leadership(event: str, _fields: Mapping[str, Any]) -> Changes:
        """Let the gauge be the difference of two numbers that only grow: elections and ends."""
        return [(("leads", event), 1.0)]

    def _task(self, fields: Mapping[str, Any]) -> str:
        task = str(fields.get("task") or "")
        return task if task in self._app.tasks else _OTHER

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
        value=values.get(("leading",), 0.0) - values.get(("standing_by",), 0.0),
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


def _observed(name: str, label: str, seconds: float) -> Changes:
    return [((name, label, str(bisect.bisect_left(BUCKETS, seconds))), 1.0), ((name, label, "sum"), seconds)]


def _due(request: Any) -> float | None:
    """Return since when the message of a request has been due; None when it does not say."""
    stamp = (getattr(request, HEADER, None) or {}).get("s")
    if not stamp:
        return None
    eta = getattr(request, "eta", None)
    if not eta:
        return float(stamp) / 1e6
    found = datetime.fromisoformat(eta)
    return max(float(stamp) / 1e6, (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp())

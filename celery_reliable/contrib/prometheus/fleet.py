"""Tell of the whole fleet: a collector that looks into store and broker at each scrape."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from celery_reliable import internals
from celery_reliable.contrib.metrics import METRICS, PREFIX
from celery_reliable.errors import StoreError
from celery_reliable.fleet import Fleet, QueueSight, look, sight_of

if TYPE_CHECKING:
    from celery import Celery
    from prometheus_client.core import Metric as Family

Values = Mapping[tuple[str, ...], float]

_STATES: Final = ("consuming", "idle", "busy", "draining", "stuck", "silent", "broker_down", "store_down")


class FleetCollector(Collector):
    """Look at each scrape: one look at a time, and ``up`` 0 with nothing else while store or broker are away."""

    def __init__(self, app: Celery) -> None:
        """Take the app; connects at the first look."""
        self._app = app
        self._lock = threading.Lock()
        self._sight: QueueSight | None = None

    def look(self) -> Fleet | None:
        """Return the fleet; None when store or broker are away."""
        with self._lock:
            try:
                self._sight = self._sight or sight_of(self._app)
                return look(self._app, sight=self._sight)
            except _away():
                self._forget()
                return None

    def _forget(self) -> None:
        sight, self._sight = self._sight, None
        if sight is not None:
            try:
                sight.close()
            except _away():
                return

    def describe(self) -> Iterator[Family]:
        """Name the metrics without a look: a registry asks when it takes a collector."""
        return (_family(name, {}) for name, metric in METRICS.items() if metric.source == "fleet")

    def collect(self) -> Iterator[Family]:
        """Yield every metric of the fleet."""
        fleet = self.look()
        values: dict[str, Values] = {} if fleet is None else _values(fleet)
        yield _family("up", {(): float(fleet is not None)})
        for name, found in values.items():
            yield _family(name, found)


def _away() -> tuple[type[Exception], ...]:
    return (StoreError, *internals.away())


def _family(name: str, values: Values) -> Family:
    metric = METRICS[name]
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(PREFIX + name, metric.meaning, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _values(fleet: Fleet) -> dict[str, Values]:
    states = Counter(worker.state for worker in fleet.workers)
    counts = fleet.deaths.counts
    late = [fleet.at - one.next for one in fleet.schedule if one.next is not None and one.next < fleet.at]
    return {
        **_of_queues(fleet),
        "held": {} if fleet.held is None else {(): fleet.held},
        "workers": {(state,): states.get(state, 0) for state in _STATES},
        "slots": {(): fleet.slots},
        "running": {(): fleet.running},
        "beats": {(): len(fleet.followers) + (fleet.leader is not None)},
        "leaders": {(): float(fleet.leader is not None)},
        "slot_overdue_seconds": {(): max(late, default=0.0)},
        "letters": {(): counts.get("kept", 0)},
        "letters_open": {(reason,): count for reason, count in fleet.deaths.reasons.items()},
        **{f"letters_{name}": {(): counts.get(name, 0)} for name in ("buried", "replayed", "discarded", "trimmed")},
    }


def _of_queues(fleet: Fleet) -> dict[str, Values]:
    queues = fleet.queues
    running = {one.name: fleet.running_in(one.name) for one in queues}
    known = [one for one in queues if one.waiting is not None]
    ages: Values = {
        (one.name,): 0.0 if one.oldest is None else one.oldest for one in queues if one.oldest or one.waiting == 0
    }
    return {
        "queue_waiting": {(one.name,): one.waiting or 0 for one in known},
        "queue_oldest_seconds": ages,
        "queue_running": {(name,): count for name, count in running.items()},
        "queue_load": {(one.name,): (one.waiting or 0) + running[one.name] for one in known},
        "queue_workers": {(one.name,): fleet.consumers_of(one.name) for one in queues},
    }

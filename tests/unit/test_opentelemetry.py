"""What is counted for OpenTelemetry is what is counted for Prometheus, by one table."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExporter, MetricExportResult
from prometheus_client import CollectorRegistry

from celery_reliable import Permanent, ReliableTask, Transient
from celery_reliable.contrib.metrics import METRICS, PREFIX
from celery_reliable.contrib.opentelemetry import EventMeter, FleetMeter, Reader
from celery_reliable.contrib.prometheus import EventMetrics, FleetCollector
from celery_reliable.dead_letters import DeadLetter
from celery_reliable.runtime import forget_runtime, runtime_of
from celery_reliable.testing import in_memory

if TYPE_CHECKING:
    from collections.abc import Iterator


class Meter(EventMeter):
    """Keeps the numbers of each process in its memory."""

    def provider(self) -> MeterProvider:
        """See `EventMeter.provider`."""
        self.reader = InMemoryMetricReader()
        return MeterProvider([self.reader])

    def told(self) -> dict[tuple[str, ...], Any]:
        """Return the points by metric and labels, each named as Prometheus names what OTLP brings it."""
        found = self.reader.get_metrics_data()
        assert found is not None
        return {
            (_as_prometheus_has_it(metric), *(str(value) for value in (point.attributes or {}).values())): point
            for resource in found.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        }


def _as_prometheus_has_it(metric: Any) -> str:
    return str(metric.name).replace(".", "_") + {"s": "_seconds", "": ""}[metric.unit]


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app with a task that may fail."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.config_from_object("celery_reliable.presets")
    app.conf.reliable_store_url = "memory://"

    @app.task(base=ReliableTask, bind=True, name="job", shared=False)
    def job(self: Any, ends: str) -> None:
        if ends == "badly":
            raise Permanent("no")
        if ends == "late" and self.attempt == 1:
            raise Transient("not yet")

    yield app
    forget_runtime(app)


class Exported(MetricExporter):
    """Keeps what it is given to export."""

    def __init__(self) -> None:
        """Begin with nothing."""
        super().__init__()
        self.exported: list[dict[tuple[str, ...], float]] = []

    def export(self, metrics_data: Any, *_: Any, **__: Any) -> MetricExportResult:
        """See `MetricExporter.export`."""
        self.exported.append(
            {
                (str(metric.name).replace(".", "_"), *map(str, (point.attributes or {}).values())): point.value
                for resource in metrics_data.resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
                for point in metric.data.data_points
            }
        )
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 0) -> bool:
        """See `MetricExporter.force_flush`."""
        return True

    def shutdown(self, timeout_millis: float = 0, **_: Any) -> None:
        """See `MetricExporter.shutdown`."""


def test_both_exporters_tell_the_same_of_the_fleet(app: Celery) -> None:
    """One look for each export; here at a dead letter, and a queue of which nothing is known."""
    letter = DeadLetter.of(None, envelope=None, reason="permanent", now=1.0, letter_id="a" * 16)
    runtime_of(app).store.keep_letter(letter.id, letter=letter.to_bytes(), letter_ttl=60.0, letter_max=9)
    sent = Exported()
    FleetMeter(app, exporter=sent).close()
    samples = [one for family in FleetCollector(app).collect() for one in family.samples]
    [told] = sent.exported
    assert told == {(one.name.removesuffix("_total"), *one.labels.values()): one.value for one in samples}
    assert (told["celery_reliable_up",], told["celery_reliable_letters",]) == (1.0, 1)


def test_fleet_that_cannot_be_looked_at_is_not_up() -> None:
    """And nothing else is told: what was true before may not be now."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.config_from_object("celery_reliable.presets")
    app.conf.reliable_store_url = "redis://127.0.0.1:1/0"
    sent = Exported()
    FleetMeter(app, exporter=sent).close()
    assert sent.exported == [{("celery_reliable_up",): 0.0}]


def test_both_exporters_tell_the_same(app: Celery) -> None:
    """The same series with the same values: every outcome, elections of a beat, tasks that nobody knows."""
    meter, prometheus = Meter(app), EventMetrics(app)
    with in_memory(app, hooks=(meter, prometheus)) as bench:
        for ends in ("well", "badly", "late"):
            app.tasks["job"].delay(ends)
        bench.drain_all()
        events = runtime_of(app).events
        events.emit("submitted", task="job", task_id="1", key="1")
        for event in ("leading", "standing_by", "leading"):
            events.emit(event, epoch=1, entries=0, reason="")
        events.emit("over", task="shop.unknown", task_id="1", key="1", state="dead")

    told = meter.told()
    registry = CollectorRegistry()
    registry.register(prometheus.collector())
    for (name, *labels), point in told.items():
        metric = METRICS[name.removeprefix(PREFIX)]
        keys = dict(zip(metric.labels, labels, strict=True))
        sample = metric.samples(name.removeprefix(PREFIX))[-1]  # of a histogram, how many there were
        assert registry.get_sample_value(sample, keys) == getattr(point, "count", None) or point.value, (name, labels)
    assert {name.removeprefix(PREFIX) for name, *_ in told} == {
        name for name, metric in METRICS.items() if metric.source == "process"
    }
    assert told[f"{PREFIX}leads",].value == 1
    assert told[f"{PREFIX}runs", "other", "duplicate"].value == 1
    assert told[f"{PREFIX}dead_letters", "job", "permanent"].value == 1


def test_class_named_as_a_hook_is_made_with_the_app(app: Celery) -> None:
    """Its labels are the tasks of that app."""
    app.conf.reliable_event_hooks = [Meter]
    runtime_of(app).events.emit("submitted", task="job", task_id="1", key="1")
    [hook] = [hook for hook in runtime_of(app).events._hooks["submitted"] if isinstance(hook, Meter)]
    assert hook.told()[f"{PREFIX}submitted", "job"].value == 1


def test_child_does_not_count_what_its_parent_counted(app: Celery) -> None:
    """A fork begins with nothing, and its parent goes on as if it were alone."""
    meter = Meter(app)
    meter("submitted", {"task": "job"})
    child = os.fork()
    if child == 0:
        meter("submitted", {"task": "job"})
        meter("submitted", {"task": "job"})
        os._exit(int(meter.told()[f"{PREFIX}submitted", "job"].value))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert meter.told()[f"{PREFIX}submitted", "job"].value == 1


def test_end_of_a_child_does_not_wait_for_a_collector_that_is_away(app: Celery) -> None:
    """What it has not sent is lost then; a drain is not late for it."""
    meter, back, sent = Meter(app), threading.Event(), threading.Event()
    meter.patience = 0.01
    meter("submitted", {"task": "job"})

    def hang() -> None:
        back.wait(10)
        sent.set()

    meter._provider = SimpleNamespace(force_flush=hang)  # type: ignore[assignment]  # all that is asked of it
    meter._flush()
    assert not sent.is_set()
    back.set()


class Kept(MetricExporter):
    """Keeps whether something came, and fails at first."""

    def __init__(self) -> None:
        """Begin with nothing."""
        super().__init__()
        self.calls = 0
        self.came, self.ended = threading.Event(), False

    def export(self, metrics_data: Any, timeout_millis: float = 10_000, **_: Any) -> MetricExportResult:
        """See `MetricExporter.export`."""
        self.calls += 1
        if self.calls == 1:
            raise ConnectionError
        self.came.set()
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """See `MetricExporter.force_flush`."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        """See `MetricExporter.shutdown`."""
        self.ended = True


def test_reader_sends_every_interval_until_it_is_shut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exporter that raises does not end it."""
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "5")
    kept = Kept()
    provider = MeterProvider([Reader(kept)])
    provider.get_meter("m").create_counter("c").add(1)
    assert kept.came.wait(20)
    provider.shutdown()
    assert kept.ended

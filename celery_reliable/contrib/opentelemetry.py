"""Send what is counted and timed to OpenTelemetry: the metrics that Prometheus would scrape.

    app.conf.reliable_event_hooks = ["celery_reliable.contrib.opentelemetry:EventMeter"]

does so in workers and beats; ``celery -A proj reliable exporter --otlp`` sends those of the fleet. Needs opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from celery import signals
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, attach, detach, set_value
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, Resource

from celery_reliable.contrib.counting import Counting
from celery_reliable.contrib.fleet_numbers import Values, numbers_of
from celery_reliable.contrib.metrics import BUCKETS, METRICS, Metric
from celery_reliable.fleet import Lookout

if TYPE_CHECKING:
    from celery import Celery
    from opentelemetry.metrics import Meter
    from opentelemetry.metrics import MeterProvider as AnyProvider
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricsData

__all__ = ["EventMeter", "FleetMeter", "Reader"]

logger = logging.getLogger("celery_reliable.opentelemetry")

SCOPE: Final = "celery_reliable"
_SECONDS: Final = "_seconds"
_INTERVAL: Final = 60.0  # seconds, as the specification has it

Record = Callable[..., None]


class EventMeter:
    """An event hook that counts; ``reliable_event_hooks`` names the class, or one derived from it.

    Guarantee: every label is of a closed set, as `Counting` has it. Each process has a provider of its own, made at its first
    event: a pool child neither sends its parent's numbers again nor loses its own when it ends by itself. Limits: what a
    killed process has not sent is lost; while the collector is away cumulative sums lose nothing.

    .. versionadded:: 0.1
    """

    patience = 2.0
    """Seconds that the end of a pool child waits for the collector."""

    def __init__(self, app: Celery) -> None:
        """Take the app, whose tasks and queues are the labels; nothing is made yet."""
        self._app = app
        self._making = threading.Lock()
        self._pid = 0
        self._counting = Counting(app)
        self._records: Mapping[str, Record] = {}
        self._provider: AnyProvider | None = None

    def __call__(self, event: str, fields: Mapping[str, Any]) -> None:
        """Count one event."""
        if self._pid != os.getpid():
            self._begin()
        for name, labels, amount in self._counting.changes(event, fields):
            self._records[name](amount, dict(zip(METRICS[name].labels, labels, strict=True)))

    def provider(self) -> AnyProvider:
        """Make the provider of this process. Override it to send elsewhere, or return ``get_meter_provider()``.

        This one sends by OTLP over HTTP, as ``OTEL_EXPORTER_OTLP_*`` and ``OTEL_METRIC_EXPORT_INTERVAL`` say, each process
        as an instance of ``OTEL_SERVICE_NAME``.
        """
        return MeterProvider([Reader(OTLPMetricExporter())], resource=_instance())

    def _begin(self) -> None:
        """Make what this process needs, once."""
        with self._making:
            if self._pid == os.getpid():
                return
            self._provider = self.provider()
            self._records = records_of(self._provider.get_meter(SCOPE))
            self._counting = Counting(self._app)
            signals.worker_process_shutdown.connect(self._flush, weak=True)
            self._pid = os.getpid()

    def _flush(self, **_: Any) -> None:
        """Send the last numbers of a pool child, which ends without what Python does at an exit (billiard 4.3)."""
        flush = getattr(self._provider, "force_flush", None)
        if flush is None or self._pid != os.getpid():
            return
        thread = threading.Thread(target=flush, name="reliable-otel-leaving", daemon=True)
        thread.start()
        thread.join(self.patience)


def records_of(meter: Meter) -> dict[str, Record]:
    """Make the instruments of all metrics that a process tells, by the names of `METRICS`."""
    return {name: _record_of(meter, name, metric) for name, metric in METRICS.items() if metric.source == "process"}


def _record_of(meter: Meter, name: str, metric: Metric) -> Record:
    called, meaning = f"{SCOPE}.{name.removesuffix(_SECONDS)}", metric.meaning
    if metric.kind == "counter":
        return meter.create_counter(called, description=meaning).add
    if metric.kind == "gauge":
        return meter.create_up_down_counter(called, description=meaning).add
    return meter.create_histogram(called, "s", meaning, explicit_bucket_boundaries_advisory=BUCKETS).record


def _instance() -> Resource:
    return Resource.create({SERVICE_INSTANCE_ID: f"{socket.gethostname()}:{os.getpid()}"})


class FleetMeter:
    """Send what one look at the fleet tells, at each export. One process of a fleet is enough.

    While store or broker are away, ``celery_reliable.up`` is 0, and nothing else is sent.

    .. versionadded:: 0.1
    """

    def __init__(self, app: Celery, *, exporter: MetricExporter | None = None) -> None:
        """Begin to send: by OTLP over HTTP unless another exporter is given."""
        self._lookout = Lookout(app)
        self._numbers: Mapping[str, Values] = {}
        self._reader = Reader(exporter or OTLPMetricExporter(), before=self._look)
        self._provider = MeterProvider([self._reader], resource=_instance())
        meter = self._provider.get_meter(SCOPE)
        for name, metric in METRICS.items():
            if metric.source == "fleet":
                make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
                make(f"{SCOPE}.{name}", [partial(self._told, name)], description=metric.meaning)

    def close(self) -> None:
        """Send once more, and stop. May be called twice."""
        self._reader.shutdown()
        self._lookout.close()

    def _look(self) -> None:
        self._numbers = numbers_of(self._lookout.look())

    def _told(self, name: str, _: CallbackOptions) -> Iterator[Observation]:
        for labels, value in self._numbers.get(name, {}).items():
            yield Observation(value, dict(zip(METRICS[name].labels, labels, strict=True)))


class Reader(MetricReader):
    """Collect and export every ``OTEL_METRIC_EXPORT_INTERVAL`` milliseconds.

    OpenTelemetry's own reader (1.45) starts again in each forked child, and sends the parent's numbers once more from there.
    """

    def __init__(self, exporter: MetricExporter, *, before: Callable[[], object] | None = None) -> None:
        """Take the exporter, and what is called before each export; start the thread."""
        self._before = before
        super().__init__(
            preferred_temporality=exporter._preferred_temporality,  # noqa: SLF001  # as the SDK's own reader does
            preferred_aggregation=exporter._preferred_aggregation,  # noqa: SLF001
        )
        self._exporter = exporter
        self._exporting = threading.Lock()
        self._stopped = threading.Event()
        seconds = float(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL") or _INTERVAL * 1000) / 1000
        me = weakref.ref(self)
        threading.Thread(
            target=_export_often, args=(me, self._stopped, seconds), name="reliable-otel", daemon=True
        ).start()

    def export(self, timeout_millis: float = 10_000) -> None:
        """Collect, and export."""
        if self._before is not None:
            self._before()
        self.collect(timeout_millis=timeout_millis)

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> None:
        token = attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))  # noqa: FBT003  # no trace of this request
        try:
            with self._exporting:
                self._exporter.export(metrics_data, timeout_millis=timeout_millis)
        finally:
            detach(token)

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        """Export once more, and stop. May be called twice."""
        if not self._stopped.is_set():
            self._stopped.set()
            self.export(timeout_millis)
            self._exporter.shutdown(timeout_millis=timeout_millis)


def _export_often(me: Callable[[], Reader | None], stopped: threading.Event, seconds: float) -> None:
    while not stopped.wait(seconds):
        reader = me()
        if reader is None:
            return
        try:
            reader.export()
        except Exception:  # an exporter of the project's own; the next round may be better
            logger.exception("metrics not sent")

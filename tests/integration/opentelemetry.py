"""A collector of the tests' own: takes OTLP over HTTP, and keeps the last value of every series of every process."""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.integration.receiver import Receiver

Labels = frozenset[tuple[str, str]]


class Collector:
    """Decode what is sent. Sums and counts are cumulative, so that of each series the last value holds."""

    def __init__(self) -> None:
        """Listen on a free port; `close` ends it."""
        self._points: dict[tuple[str, str, Labels], Any] = {}
        self._receiver = Receiver(self._keep)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to send here."""
        url = f"http://{self._receiver.address}"
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_SERVICE_NAME": "shop"}

    def points(self, metric: str, **labels: str) -> dict[str, Any]:
        """Return the last value of one series by the instance that sent it."""
        wanted = frozenset(labels.items())
        with self._receiver.lock:
            return {
                instance: point
                for (instance, name, has), point in self._points.items()
                if (name, has) == (metric, wanted)
            }

    def names(self) -> set[str]:
        """Return the names of all metrics that came."""
        with self._receiver.lock:
            return {name for _, name, _ in self._points}

    def close(self) -> None:
        """Stop listening."""
        self._receiver.close()

    def _keep(self, body: bytes) -> None:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            facts = {one.key: one.value.string_value for one in resource.resource.attributes}
            assert facts["service.name"] == "shop"
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in getattr(metric, metric.WhichOneof("data")).data_points:
                        labels = frozenset((one.key, one.value.string_value) for one in point.attributes)
                        self._points[facts["service.instance.id"], metric.name, labels] = point

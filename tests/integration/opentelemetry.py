"""A collector of the tests' own: takes OTLP over HTTP, and keeps the last value of every series of every process."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

Labels = frozenset[tuple[str, str]]


class Collector:
    """Decode what is sent. Sums and counts are cumulative, so that of each series the last value holds."""

    def __init__(self) -> None:
        """Listen on a free port; `close` ends it."""
        self._points: dict[tuple[str, str, Labels], Any] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to send here."""
        url = f"http://127.0.0.1:{self._server.server_port}"
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_SERVICE_NAME": "shop"}

    def points(self, metric: str, **labels: str) -> dict[str, Any]:
        """Return the last value of one series by the instance that sent it."""
        wanted = frozenset(labels.items())
        with self._lock:
            return {
                instance: point
                for (instance, name, has), point in self._points.items()
                if (name, has) == (metric, wanted)
            }

    def names(self) -> set[str]:
        """Return the names of all metrics that came."""
        with self._lock:
            return {name for _, name, _ in self._points}

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        keep = self._keep

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                keep(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        return Handler

    def _keep(self, body: bytes) -> None:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            facts = {one.key: one.value.string_value for one in resource.resource.attributes}
            assert facts["service.name"] == "shop"
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in getattr(metric, metric.WhichOneof("data")).data_points:
                        labels = frozenset((one.key, one.value.string_value) for one in point.attributes)
                        with self._lock:
                            self._points[facts["service.instance.id"], metric.name, labels] = point

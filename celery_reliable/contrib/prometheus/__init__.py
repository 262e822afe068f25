"""Count and time what happens, for Prometheus: in workers with all their pool children, in beats, and of the whole fleet.

    app.conf.reliable_metrics_port = 9187

starts an endpoint in each worker and beat; ``celery -A proj reliable exporter`` is one for the fleet. Needs
prometheus-client. A process that has an endpoint of its own registers ``metrics_of(app).collector()`` there.
"""

from __future__ import annotations

from celery_reliable.contrib.metrics import METRICS, Metric
from celery_reliable.contrib.prometheus.events import EventMetrics, metrics_of
from celery_reliable.contrib.prometheus.fleet import FleetCollector

__all__ = ["METRICS", "EventMetrics", "FleetCollector", "Metric", "metrics_of"]

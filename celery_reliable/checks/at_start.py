"""Say at the start of a worker, once and in short, what is dangerous about its configuration."""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from celery_reliable.checks.configuration import configuration_findings
from celery_reliable.runtime import runtime_of


class Findings(bootsteps.StartStopStep):
    """Emit one event ``finding`` for each error; warnings, and the servers, are for ``celery reliable check``."""

    requires = ("celery_reliable.worker.preflight:Preflight",)

    def start(self, parent: Any) -> None:
        """Look once. Nothing is connected to."""
        events = runtime_of(parent.app).events
        for finding in configuration_findings(parent.app):
            if finding.severity == "error":
                events.emit("finding", finding=f"{finding.code}: {finding.message}")

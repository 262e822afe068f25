"""Find what can be found without connecting to anything: in settings, tasks and schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_reliable.checks.clocks import clock_findings
from celery_reliable.checks.configuration import configuration_findings
from celery_reliable.checks.options import option_findings
from celery_reliable.checks.retention import retention_findings
from celery_reliable.checks.sizes import size_findings
from celery_reliable.errors import ConfigurationError

if TYPE_CHECKING:
    from datetime import datetime

    from celery import Celery

    from celery_reliable.checks.findings import Finding


def static_findings(app: Celery, *, now: datetime) -> list[Finding]:
    """Return the list that the command, Django's system checks and the start of a worker have in common."""
    found = [*configuration_findings(app), *option_findings(app), *clock_findings(app, now=now)]
    try:
        return [*found, *retention_findings(app), *size_findings(app)]
    except ConfigurationError:
        return found  # wrong settings are a finding, where the app uses them

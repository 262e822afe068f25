"""Find what is wrong with a configuration before production does.

Each check is a function that returns findings: values, which nobody has acted on yet. ``celery -A proj reliable check``
shows them.
"""

from __future__ import annotations

from celery_reliable.checks.clocks import clock_findings, row_findings
from celery_reliable.checks.configuration import configuration_findings
from celery_reliable.checks.findings import Finding, Severity, worst_first
from celery_reliable.checks.grace import Budget, budget_of, fit
from celery_reliable.checks.manifests import ManifestError, Supervised, read_manifest
from celery_reliable.checks.retention import retention_findings
from celery_reliable.checks.sizes import size_findings
from celery_reliable.checks.static import static_findings

__all__ = [
    "Budget",
    "Finding",
    "ManifestError",
    "Severity",
    "Supervised",
    "budget_of",
    "clock_findings",
    "configuration_findings",
    "fit",
    "read_manifest",
    "retention_findings",
    "row_findings",
    "size_findings",
    "static_findings",
    "worst_first",
]

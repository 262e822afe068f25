"""Say at ``manage.py check`` what is wrong with the configuration of celery_reliable.

The id of a message is ``celery_reliable.`` and the code that ``celery reliable check`` gives it, which is stable: ``SILENCED_SYSTEM_CHECKS`` may
name it. Celery runs the checks too, when a worker imports its tasks, so nothing here raises, and only ``--deploy``
connects.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from django.apps import apps
from django.core import checks

from celery_reliable.checks import Finding, row_findings, static_findings
from celery_reliable.checks.catalogue import link
from celery_reliable.checks.of_stores import store_finding
from celery_reliable.django.project import NO_APP
from celery_reliable.errors import ConfigurationError, StoreError
from celery_reliable.internals import loaded_app

TAG: Final = "celery_reliable"


def register() -> None:
    """Register the checks with Django; twice is once."""
    checks.register(check_configuration, TAG)
    checks.register(check_store, TAG, deploy=True)
    checks.register(check_rows, TAG, deploy=True)


def check_configuration(**_: Any) -> list[Any]:
    """Judge settings and schedule, without connecting to anything."""
    return [_message(finding) for finding in _of_configuration()]


def check_store(**_: Any) -> list[Any]:
    """Ask the store what is wrong with it: eviction, persistence, tables that are not there."""
    return [_message(finding) for finding in _of_store()]


def check_rows(**_: Any) -> list[Any]:
    """Look for rows of django-celery-beat that a change of the clock skips or repeats."""
    app = loaded_app()
    found = [] if app is None else row_findings(app, now=datetime.now().astimezone())
    return [_message(finding) for finding in found]


def _of_configuration() -> Iterator[Finding]:
    app = loaded_app()
    if app is None:
        yield Finding(code="no_app", severity="warning", message=f"{NO_APP}.")
        return
    yield from static_findings(app, now=datetime.now().astimezone())


def _of_store() -> Iterator[Finding]:
    if loaded_app() is None:
        return
    try:
        found = apps.get_app_config(TAG).project.store.findings()
    except ConfigurationError:
        return  # the other check says so
    except StoreError as exc:
        yield Finding(code="store_down", severity="error", message=str(exc))
        return
    yield from map(store_finding, found)


def _message(finding: Finding) -> Any:
    kinds = {"error": checks.Error, "warning": checks.Warning, "info": checks.Info}
    return kinds[finding.severity](finding.message, hint=link(finding.code), id=f"{TAG}.{finding.code}")

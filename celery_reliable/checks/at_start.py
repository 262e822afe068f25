"""Say soon after the start of a worker, once and in short, what is dangerous about its configuration and its store."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from celery import bootsteps

from celery_reliable.checks.findings import Finding, worst_first
from celery_reliable.checks.of_stores import server_findings
from celery_reliable.checks.static import static_findings
from celery_reliable.errors import StoreError
from celery_reliable.runtime import runtime_of
from celery_reliable.worker.background import Background
from celery_reliable.worker.forks import AFTER_FORKS

if TYPE_CHECKING:
    from celery import Celery

    from celery_reliable.events import Events

logger = logging.getLogger("celery_reliable")

MOST: Final = 10
"""Findings that are told, errors first; of the rest, how many there are."""


class Findings(bootsteps.StartStopStep):
    """Emit one event ``finding`` for each error and warning, from a thread: no worker is ready later for it.

    Broker and fleet are for ``celery reliable check --live``: while workers start, what is found there is no danger.
    """

    requires = AFTER_FORKS

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        """Take the worker's app."""
        super().__init__(parent, **kwargs)
        self._app = parent.app
        self._background = Background(self._look, name="reliable-findings")

    def start(self, parent: Any) -> None:
        """Look once."""
        self._background.begin()

    def _look(self) -> None:
        try:
            tell(runtime_of(self._app).events, found_by(self._app))
        except Exception:  # a check that fails is a bug of ours, and no trouble of a worker's
            logger.exception("the configuration could not be checked", extra={"reliable_event": "finding"})


def found_by(app: Celery) -> list[Finding]:
    """Look at settings, tasks, schedule, and the store's server; of a store that is away others tell."""
    found = static_findings(app, now=datetime.now().astimezone())
    with suppress(StoreError):
        found += server_findings(app)
    return found


def tell(events: Events, findings: Iterable[Finding]) -> None:
    """Emit what is serious."""
    serious = [one for one in worst_first(findings) if one.severity != "info"]
    for one in serious[:MOST]:
        events.emit("finding", code=one.code, severity=one.severity, finding=f"{one.code}: {one.brief}")
    if len(serious) > MOST:
        events.emit("findings_left_out", count=len(serious) - MOST)

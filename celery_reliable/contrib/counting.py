"""Turn events into changes of metrics, whoever exports them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from celery import current_task

from celery_reliable.keys import HEADER

if TYPE_CHECKING:
    from celery import Celery

Change = tuple[str, tuple[str, ...], float]
"""The metric of `metrics.METRICS`, the values of its labels, and what is added to it; of a histogram, what was observed."""

_OTHER: Final = "other"
_MOST_RUNS: Final = 10_000  # whose beginning is remembered

_OUTCOMES: Final[Mapping[str, str]] = {
    "done": "done",
    "retried": "retried",
    "snoozed": "snoozed",
    "interrupted": "interrupted",
    "buried": "dead",
    "skipped": "skipped",
    "stale": "stale",
    "over": "duplicate",
    "replayed_outcome": "duplicate",
    "reported_again": "duplicate",
}


class Counting:
    """What the events of one app mean, in one process.

    Guarantee: every label is of a closed set: the app's tasks and queues, the names of events, outcomes and reasons; any
    other value is ``other``.
    """

    def __init__(self, app: Celery) -> None:
        """Take the app, whose tasks and queues are the labels."""
        self._app = app
        self._began: dict[str, float] = {}
        self._handlers: dict[str, Callable[[Mapping[str, Any]], list[Change]]] = {
            "submitted": self._on_submitted,
            "claimed": self._on_claimed,
            **{event: partial(self._on_outcome, event) for event in _OUTCOMES},
            "leading": lambda _: [("leads", (), 1.0)],
            "standing_by": lambda _: [("leads", (), -1.0)],
        }

    def changes(self, event: str, fields: Mapping[str, Any]) -> list[Change]:
        """Return what one event changes."""
        handler = self._handlers.get(event)
        return [("events", (event,), 1.0), *(handler(fields) if handler else ())]

    def _on_submitted(self, fields: Mapping[str, Any]) -> list[Change]:
        return [("submitted", (self._task(fields),), 1.0)]

    def _on_claimed(self, fields: Mapping[str, Any]) -> list[Change]:
        if len(self._began) >= _MOST_RUNS:  # runs whose end nobody told
            self._began.clear()
        self._began[fields["task_id"]] = time.monotonic()
        request: Any = current_task.request if current_task else None
        since = _due(request)
        if since is None:
            return []
        info = request.delivery_info or {}
        queue = str(info.get("routing_key") or "")
        label = queue if queue in self._app.amqp.queues else _OTHER
        return [("latency_seconds", (label,), max(fields["fence"] / 1e6 - since, 0.0))]

    def _on_outcome(self, event: str, fields: Mapping[str, Any]) -> list[Change]:
        task = self._task(fields)
        found: list[Change] = [("runs", (task, _OUTCOMES[event]), 1.0)]
        if event == "buried":
            found.append(("dead_letters", (task, str(fields["reason"])), 1.0))
        began = self._began.pop(fields["task_id"], None)
        if began is not None:
            found.append(("runtime_seconds", (task,), time.monotonic() - began))
        return found

    def _task(self, fields: Mapping[str, Any]) -> str:
        task = str(fields.get("task") or "")
        return task if task in self._app.tasks else _OTHER


def _due(request: Any) -> float | None:
    """Return since when the message of a request has been due; None when it does not say."""
    stamp = (getattr(request, HEADER, None) or {}).get("s")
    if not stamp:
        return None
    eta = getattr(request, "eta", None)
    if not eta:
        return float(stamp) / 1e6
    found = datetime.fromisoformat(eta)
    return max(float(stamp) / 1e6, (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp())

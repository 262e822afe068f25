"""Tell Sentry of each final failure once, and of nothing else.

    sentry_sdk.init(dsn=..., integrations=[CeleryIntegration()])
    app.conf.reliable_event_hooks = ["celery_reliable.contrib.sentry:report"]

Guarantee: a job that becomes a dead letter is one event, with the reason, attempts, deliveries and the letter's id, in
the group of the letter's fingerprint. Retries, snoozes, drains and duplicates are breadcrumbs. The event's id is made
from the letter's, so that a worker killed between letter and report, whose successor reports again, adds none.
Limits: an event that never reaches Sentry is not sent later; the letter is the record. Needs sentry-sdk 2.

The arguments of the call go through ``reliable_redact``; the local variables of stack frames, which Sentry sends too, do not
(its own ``include_local_variables`` and ``event_scrubber`` rule these). Keys may name people: unless ``send_default_pii`` is on they are hashed.

Importing this module silences two loggers in Sentry, the one exception to "nothing happens at import": their errors come
before the first event and would be events of their own. That is our log, and billiard's of a dead child, whose task is
not dead yet.
"""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Any

import sentry_sdk
from celery import current_task
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.integrations.logging import ignore_logger
from sentry_sdk.scope import Scope, should_send_default_pii

from celery_reliable import events
from celery_reliable.dead_letters.redaction import arguments
from celery_reliable.internals import loaded_app
from celery_reliable.runtime import runtime_of

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["report"]

_DEATHS = ("buried", "reported_again")


def report(event: str, fields: dict[str, Any]) -> None:
    """Take one event of celery_reliable; for the setting ``reliable_event_hooks``."""
    if event == "saved":  # a thousand of one job would drive out what else was on its way
        return
    if event not in _DEATHS:
        _leave_crumb(event, fields)
    elif _will_be_captured():
        Scope.get_isolation_scope().add_event_processor(lambda found, _hint: _described(found, fields))
    else:
        sentry_sdk.capture_event(_described({"level": "error", "message": _headline(fields)}, fields))


def _will_be_captured() -> bool:
    """Tell whether the failure passes through Sentry's own wrapper of the task, in a scope that ends with it."""
    return bool(current_task) and sentry_sdk.get_client().get_integration(CeleryIntegration) is not None


def _leave_crumb(event: str, fields: dict[str, Any]) -> None:
    told = events.EVENTS[event]
    data = {**fields, "key": _shown_key(fields["key"])} if "key" in fields else fields
    level = logging.getLevelName(told.level).lower()
    sentry_sdk.add_breadcrumb(
        category="celery_reliable", message=told.message, level=level, data={"event": event, **data}
    )


def _described(found: Any, fields: dict[str, Any]) -> Any:  # Any: sentry-sdk's own type of an event
    """Put the letter's facts on the event of its failure; leave transactions alone."""
    if found.get("type") == "transaction":
        return found
    _hide_arguments(found)
    letter_id = fields["letter_id"]
    found["event_id"] = hashlib.blake2b(letter_id.encode(), digest_size=16).hexdigest()
    if fields["fingerprint"]:
        found["fingerprint"] = ["celery_reliable", fields["fingerprint"]]
    found.setdefault("tags", {}).update({"reliable.reason": fields["reason"], "reliable.task": fields["task"]})
    link = _link_to(letter_id)
    found.setdefault("contexts", {})["dead letter"] = {
        "id": letter_id,
        **({"link": link} if link else {}),
        "reason": fields["reason"],
        "attempts": fields["attempts"],
        "deliveries": fields["deliveries"],
        "task_id": fields["task_id"],
        "key": _shown_key(fields["key"]),
        "show": f"celery -A PROJECT reliable dlq show {letter_id}",
        "replay": f"celery -A PROJECT reliable dlq replay {letter_id}",
    }
    return found


def _link_to(letter_id: str) -> str:
    app = _app()
    return "" if app is None else runtime_of(app).settings.letter_link(letter_id)


def _app() -> Celery | None:
    return current_task.app if current_task else loaded_app()


def _hide_arguments(found: Any) -> None:  # Any: as above
    """Put what ``reliable_redact`` lets pass in the place of the arguments, which Sentry's integration may have added."""
    job: Any = (found.get("extra") or {}).get("celery-job")
    app = _app() if isinstance(job, dict) else None
    redact = runtime_of(app).redact if app is not None else None
    if redact is not None:
        task, args, kwargs = str(job.get("task_name")), job.get("args") or [], job.get("kwargs") or {}
        job["args"], job["kwargs"] = arguments(task, args, kwargs, redact)


def _headline(fields: dict[str, Any]) -> str:
    return f"{fields['task']}: {fields['error'] or fields['reason']}"


def _shown_key(key: str) -> str:
    return key if should_send_default_pii() else hashlib.blake2b(key.encode(), digest_size=8).hexdigest()


for _logger in (events.logger.name, "multiprocessing"):
    ignore_logger(_logger)

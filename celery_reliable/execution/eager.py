"""Run a body eagerly, with the verdicts of a worker and no store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Reject, Retry

from celery_reliable.retries import judge

if TYPE_CHECKING:
    from celery_reliable.task import ReliableTask


def run_eagerly(task: ReliableTask, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the body; a retry or a snooze follows at once, as often as ``max_retries`` allows."""
    try:
        return task.run(*args, **kwargs)
    except (Ignore, Reject, Retry):
        raise
    except Exception as exc:
        settings = task.reliable_settings
        verdict = judge(
            exc,
            retry_on=settings.retry_on,
            fail_on=settings.fail_on,
            classify=task.classify,
            on_unknown_error=settings.on_unknown_error,  # type: ignore[arg-type]  # a closed set, validated
        )
        if verdict.action == "fail":
            raise
        raise task.retry(exc=exc, countdown=0) from exc

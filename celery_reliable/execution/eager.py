"""Run a body eagerly, with the verdicts of a worker and no store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Reject, Retry

from celery_reliable.retries import Verdict, judge

if TYPE_CHECKING:
    from celery_reliable.task import ReliableTask


def run_eagerly(task: ReliableTask, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the body with the verdicts of a worker and no store: a retry follows at once, and so does a snooze's next run."""
    snoozes = 0
    while True:
        try:
            return task.run(*args, **kwargs)
        except (Ignore, Reject, Retry):
            raise
        except Exception as exc:
            action = _judged(task, exc).action
            if action == "retry":
                raise task.retry(exc=exc, countdown=0) from exc
            if action == "fail" or snoozes >= task.reliable_settings.max_snoozes:
                raise
            snoozes += 1


def _judged(task: ReliableTask, exc: Exception) -> Verdict:
    settings = task.reliable_settings
    return judge(
        exc,
        retry_on=settings.retry_on,
        fail_on=settings.fail_on,
        classify=task.classify,
        on_unknown_error=settings.on_unknown_error,  # type: ignore[arg-type]  # a closed set, validated
    )

"""Call a dependency only while its breaker lets calls pass, in a task or anywhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from celery import current_app, current_task

from celery_reliable.errors import BreakerOpen
from celery_reliable.flow.breakers import Closed
from celery_reliable.retries import Verdict, judge
from celery_reliable.runtime import runtime_of

if TYPE_CHECKING:
    from celery import Celery


@contextmanager
def breaker(name: str, *, app: Celery | None = None) -> Iterator[None]:
    """Run the block if the dependency ``name`` may be called; tell the whole fleet how it went.

    Raises `BreakerOpen`, and runs nothing, while the breaker is open: a task that lets it pass is snoozed, without an
    attempt spent; a web view answers 503 with its ``seconds``. Only errors that another attempt may cure count, by the
    rules of the task that runs, elsewhere by the built-in ones. ``app``: not given, it is that of the running task, else
    Celery's current one. Do not use it in a task with the option ``breaker`` of the same name: each failure would count
    twice.

    .. versionadded:: 0.1
    """
    breakers = runtime_of(app or _app()).breakers
    answer = breakers.enter(name)
    if isinstance(answer, Closed):
        raise BreakerOpen(name, answer.seconds)
    well: bool | None = None
    try:
        yield
        well = True
    except Exception as exc:
        well = None if _judged(exc).action != "retry" else False
        raise
    finally:
        breakers.leave(answer, well=well)


def _app() -> Any:  # Any: Celery's proxies
    return current_task.app if current_task else current_app._get_current_object()  # noqa: SLF001  # the app itself, which has the runtime (5.7)


def _judged(exc: Exception) -> Verdict:
    settings = getattr(current_task, "reliable_settings", None) if current_task else None
    if settings is None:
        return judge(exc)
    return judge(
        exc,
        retry_on=settings.retry_on,
        fail_on=settings.fail_on,
        classify=current_task.classify,
        on_unknown_error=settings.on_unknown_error,
    )

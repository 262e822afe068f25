"""Tell the result backend, and through it a chord, how a run ended.

The tracer would do it after us. But Celery (5.7, ``celery/app/trace.py``) takes a backend that refuses for a failure of
the task: it stores FAILURE over an outcome that is committed already, and acks; when that is refused too, the error
leaves the tracer, and on threads and green pools the request stays open and its slot is lost. So the backend is told
here, where a message can still be made to wait, and the tracer is left nothing to tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from kombu.exceptions import EncodeError

from celery_reliable import internals
from celery_reliable.chords import keep_chord
from celery_reliable.execution import outcomes
from celery_reliable.execution.delivery import SHORTEST_WAIT, Delivery
from celery_reliable.submission import carried

_T = TypeVar("_T")
_OWN_FAULT = (EncodeError, TypeError, ValueError)
"""What says that the outcome cannot be carried: no wait cures it, and Celery knows what to do."""


def success(delivery: Delivery, result: Any) -> None:
    """Store the result and count the member of a chord; what the backend refuses makes the message wait.

    The next delivery finds the job done and comes here again.
    """
    task, request = delivery.task, delivery.request
    kept = delivery.kept is not None
    stored = _tell(delivery, "success", lambda: outcomes.told(delivery, result)) if kept else result
    with chord_told(delivery) as chord:
        _tell(delivery, "success", lambda: internals.store_success(task, result, stored=stored, chord=chord))
    if request.chord:
        delivery.end_entry()
    _leave_nothing(request)


def failure(delivery: Delivery, exc: Exception) -> None:
    """Store the failure, before those are told who may ask for it."""
    _tell(delivery, "failure", lambda: internals.store_failure(delivery.task, exc))


def failed_part(delivery: Delivery, exc: Exception) -> None:
    """Fail the chord and the rest of the chain, once the failure is stored and the errbacks are sent."""
    request = delivery.request
    if request.chord or request.chain:
        with chord_told(delivery) as chord:
            _tell(delivery, "failure", lambda: internals.fail_what_follows(delivery.task, exc, chord=chord))
    if request.chord:
        delivery.end_entry()
    _leave_nothing(request)


@contextmanager
def chord_told(delivery: Delivery) -> Iterator[Any]:
    """Lend the backend that tells the chord of the present request, or of what follows it in its chain.

    The message waits while that backend or the broker is away, and while another worker sends the chord's body or fails it.
    """
    backend, request = delivery.task.backend, delivery.request
    if not (request.chord or request.chain):
        yield backend
        return
    try:
        with carried():
            yield keep_chord(backend)
    except internals.ChordBusy:
        delivery.hold("busy", SHORTEST_WAIT)
    except internals.ChordNotRead as exc:
        delivery.wait_to_tell("chord", exc.__cause__)
    except internals.ChordNotSent as exc:
        delivery.wait_to_publish("chord", exc.__cause__)


def retry(delivery: Delivery, exc: Exception | None) -> None:
    """Show that a retry is on its way, if the backend can be told: nothing depends on it."""
    try:
        internals.store_retry(delivery.task, exc)
    except Exception:  # noqa: BLE001  # whatever a backend raises; the retry is published already
        delivery.emit("backend_unavailable", what="retry", wait=0.0)
    delivery.request.ignore_result = True


def _tell(delivery: Delivery, what: str, call: Callable[[], _T]) -> _T:
    try:
        return call()
    except _OWN_FAULT:
        raise
    except Exception as exc:  # noqa: BLE001  # every backend has its own errors
        delivery.wait_to_tell(what, exc)


def _leave_nothing(request: Any) -> None:
    request.ignore_result = True
    request.chord = request.chain = None

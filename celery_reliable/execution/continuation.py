"""Send what is chained to a job that has ended.

By Celery itself the tracer sends it: again at each redelivery under new ids, and a refused publish would turn a
finished task into a failed one, or lose the errbacks of a failed one. So callbacks, the next step of a chain and
errbacks are sent here, after the done marker or the letter, and taken out of the request. The chord is left to the
tracer, which counts a member once per id.
"""

from __future__ import annotations

from typing import Any

from celery.canvas import maybe_signature

from celery_reliable import internals, keys
from celery_reliable.chords import with_ids
from celery_reliable.execution.delivery import Delivery
from celery_reliable.submission import carried


def is_expected(delivery: Delivery) -> bool:
    """Tell whether anything follows this job."""
    request = delivery.request
    return bool(request.callbacks or request.chain or request.chord)


def send(delivery: Delivery, result: Any) -> None:
    """Send callbacks and the next step of the chain under ids that a second sending repeats, then end the entry.

    What the broker refuses makes the message wait; its next delivery finds the job done and comes here again.
    """
    request, app = delivery.request, delivery.task.app
    for position, callback in enumerate(request.callbacks or ()):
        signature = maybe_signature(callback, app=app, clone=True)
        _send(delivery, with_ids(signature, delivery.job.key, "link", str(position)), result, what="link")
    if request.chain:
        signature = maybe_signature(request.chain[-1], app=app, clone=True)
        _send(delivery, signature, result, what="chain", chain=request.chain[:-1])
    request.callbacks = request.chain = None
    if not request.chord:
        delivery.end_entry()


def tell(delivery: Delivery) -> None:
    """Send the errbacks of a failed job. Its result is stored already: they may ask for it.

    Those that take the request, the exception and the traceback are left in the request: the tracer calls them in this
    process, again if the failure is reported again.
    """
    request, task = delivery.request, delivery.task
    waiting: list[Any] = []
    called: list[Any] = []
    for position, errback in enumerate(request.errbacks or ()):
        signature = maybe_signature(errback, app=task.app, clone=True)
        with_ids(signature, delivery.job.key, "errback", str(position))
        (called if internals.is_called_in_place(task.backend, signature) else waiting).append(signature)
    for signature in waiting:
        _send(delivery, signature, request.id, what="errback")
    request.errbacks = called


def _send(delivery: Delivery, signature: Any, result: Any, *, what: str, **options: Any) -> None:
    request = delivery.request
    if delivery.task.app.conf.task_inherit_parent_priority:
        options["priority"] = (request.delivery_info or {}).get("priority")
    try:
        with keys.within(None), carried():
            signature.apply_async((result,), parent_id=request.id, root_id=request.root_id or request.id, **options)
    except Exception as exc:  # noqa: BLE001  # whatever stops it, the message must come back and try again
        delivery.wait_to_publish(what, exc)

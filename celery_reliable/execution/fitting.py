"""Give a body its arguments as it takes them now: lifted when the message is older, without what newer code added.

The message stays as it was: a retry, a dead letter and a replay carry it on unchanged, to whatever code comes next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from celery.exceptions import Reject

from celery_reliable import signature_versions
from celery_reliable.execution import overlapping
from celery_reliable.payloads import VERSION_HEADER, Envelope
from celery_reliable.submission import arguments_in
from celery_reliable.worker.waiting import GiveBack

if TYPE_CHECKING:
    from celery_reliable.execution.delivery import Delivery
    from celery_reliable.upgrades import Fitted

_CANVAS = ("callbacks", "errbacks", "chain", "chord")
_WAIT = 5.0  # seconds until newer arguments look for a newer worker again


def date_canvas(delivery: Delivery) -> None:
    """Note in the signatures that came with a message that their arguments are of the first version, where it is so."""
    request = delivery.request
    canvas = [getattr(request, name) for name in _CANVAS if getattr(request, name)]
    if canvas:
        signature_versions.write_first(canvas, version_of=delivery.task.version_of)


def take_replaced(delivery: Delivery, raw: bytes) -> None:
    """Take the arguments of a later submission in the message's place (``on_conflict="replace"``)."""
    envelope, request = Envelope.from_bytes(raw), delivery.request
    version = (envelope.options.get("headers") or {}).get(VERSION_HEADER) or 1
    if version > delivery.task.payload_version:
        _leave_to_newer(delivery)
    args, kwargs = arguments_in(envelope, accept=delivery.task.app.conf.accept_content)
    request.args, request.kwargs = delivery.args, delivery.kwargs = tuple(args), dict(kwargs)
    delivery.version = version
    request.headers = {**(request.headers or {}), VERSION_HEADER: version}


def fitted(delivery: Delivery) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments for the body. Raises `IncompatiblePayload`, and what an upgrade raises to be tried again."""
    task, version = delivery.task, delivery.version
    shape, known = task.shape, task.payload_version
    if shape.takes(delivery.kwargs, version=version, known=known):
        return delivery.args, delivery.kwargs
    found = shape.fitted(delivery.args, delivery.kwargs, version=version, known=known)
    if version < known:
        delivery.emit("upgraded", from_version=version, version=known)
    if found.dropped:
        _tell_dropped(delivery, found)
    return found.args, found.kwargs


def _tell_dropped(delivery: Delivery, found: Fitted) -> None:
    """Tell of each job, and warn of each argument once in this process."""
    runtime, task = delivery.runtime, delivery.task.name
    delivery.emit("arguments_dropped", arguments=found.dropped)
    for name in found.dropped:
        if (task, name) not in runtime.warned and len(runtime.warned) < _MOST_WARNINGS:
            runtime.warned.add((task, name))
            runtime.events.emit("argument_unknown", task=task, argument=name)


_MOST_WARNINGS = 1000  # names come from messages: whoever sends them must not fill this process's memory


def _leave_to_newer(delivery: Delivery) -> NoReturn:
    """Give claim and message back: newer code has replaced the arguments, and this worker cannot know what they mean."""
    if not delivery.release():
        overlapping.leave(delivery)
        delivery.drop("revoked")
    delivery.emit("not_yet", wait=_WAIT)
    raise Reject(GiveBack("the arguments are newer than this worker's code", after=_WAIT), requeue=True)

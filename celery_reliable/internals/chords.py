"""Have the body of a chord sent by a later delivery of a member, where Celery would give it up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any

from celery.canvas import maybe_signature

if TYPE_CHECKING:
    from celery import Task

Cured = Callable[[], tuple[type[Exception], ...]]
"""Says what is raised by things that time cures."""


class ChordNotSent(BaseException):
    """The body of a chord could not be published just now; ``__cause__`` says why. A later delivery of a member sends it.

    A ``BaseException`` on purpose: Celery takes every ``Exception`` there for the end of the chord.
    """


class ChordNotRead(ChordNotSent):
    """The result backend was away while a chord was told, which its member had counted in."""


def keep_chord(task: Task, cured: Cured) -> Any:
    """Return a backend that tells the chord of the present request, or raises `ChordNotSent` where it cannot do so just now.

    ``on_chord_part_return`` of the Redis backend (5.7) fails a chord for good when its five tries to publish the body were
    refused, with what is ``cured`` by time, and when Redis refuses anything after the member was counted. So it is called on
    a copy of the backend, with a client of its own: the backend may be all threads'. Nothing that other backends do then
    can be taken back.
    """
    backend, request = task.backend, task.request
    if not _is_counted_by_redis(task):
        return backend
    patient = _PatientClient(backend.client)
    claim = backend.get_key_for_group(request.group, ".c")
    body = maybe_signature(request.chord, app=task.app, clone=True)
    request.chord = _kept(body, cured, before=lambda exc: patient.give_up(exc, claim))
    copied = object.__new__(type(backend))  # not by copy: a backend is pickled as what makes a new one
    copied.__dict__.update(backend.__dict__, client=patient)
    return copied


class _PatientClient:
    """A client of Redis with which nothing is done any more after the first error, so that the chord stays as it is.

    What Celery would do then, it does to end the chord: it fails the body, and removes the chord's size or marks it as done.
    """

    def __init__(self, client: Any) -> None:
        """Take the client itself."""
        self._client = client
        self._cause: BaseException | None = None
        self._end: type[ChordNotSent] = ChordNotRead

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        return self._patiently(found) if callable(found) else found

    def pipeline(self, *args: Any, **kwargs: Any) -> Any:
        """Commands that are sent together, as patient as the client."""
        pipe = self._client.pipeline(*args, **kwargs)
        pipe.execute = self._patiently(pipe.execute)
        return pipe

    def give_up(self, cause: BaseException, claim: str) -> None:
        """Do nothing more, as the body was refused, but give the claim to send it back: else the next waits until it is over."""
        self._cause, self._end = cause, ChordNotSent
        with suppress(Exception):
            self._client.delete(claim)

    def _patiently(self, call: Callable[..., Any]) -> Callable[..., Any]:
        from redis.exceptions import NoScriptError, RedisError  # noqa: PLC0415  # the driver is imported where it is used

        def patiently(*args: Any, **kwargs: Any) -> Any:
            if self._cause is not None:
                raise self._end from self._cause
            try:
                return call(*args, **kwargs)
            except NoScriptError:  # redis-py loads the script then
                raise
            except (RedisError, OSError) as exc:
                self._cause = exc
                raise ChordNotRead from exc

        return patiently


def keep_unlocked_chord(unlock: type[Task], cured: Cured) -> None:
    """Have Celery's task that sends the body of a chord raise `ChordNotSent`, too: ``unlock_chord`` (5.7) fails it for good."""
    run = unlock.run

    @wraps(run)
    def kept(self: Task, group_id: str, callback: Any, *args: Any, **kwargs: Any) -> Any:
        body = maybe_signature(callback, app=self.app, clone=True)
        return run(self, group_id, _kept(body, cured, before=lambda _: None), *args, **kwargs)

    unlock.run = kept


def _kept(body: Any, cured: Cured, *, before: Callable[[BaseException], object]) -> Any:
    send = body.delay

    def delay(*args: Any, **kwargs: Any) -> Any:
        try:
            return send(*args, **kwargs)
        except cured() as exc:
            before(exc)
            raise ChordNotSent from exc

    body.delay = delay
    return body


def is_chord_open(task: Task) -> bool:
    """Tell whether the chord of the present request is complete, and its body neither sent nor failed.

    ``on_chord_part_return`` of the Redis backend (5.7) lets one worker claim to send the body, and all others go on as if it were
    done. If that worker dies, only a member that comes again when the claim is over sends the body: also one that came just
    before that, and asks here just after.
    """
    backend, group = task.backend, task.request.group
    if not _is_counted_by_redis(task):
        return False
    claim, size, more, members = (backend.get_key_for_group(group, end) for end in (".c", ".s", ".t", ".j"))
    with backend.client.pipeline() as pipe:
        pipe.get(claim).get(size).get(more)
        (pipe.zcard if backend._chord_zset else pipe.llen)(members)  # noqa: SLF001
        claimed, size, more, ready = pipe.execute()
    if size is None or claimed == b"done":
        return False
    return claimed is not None or bool(ready == int(size) + int(more or 0))


def joins_under_claim(task: Task) -> bool:
    """Tell whether the present request's result is read while its chord's body is waited for by a claim of some seconds.

    ``on_chord_part_return`` of the Redis backend (5.7) sends no body when its claim has run out, and nobody sends it then. It has
    the results of members in a list of the chord; those of a header with groups in it, which it has saved before, it joins.
    """
    backend = task.backend
    return _is_counted_by_redis(task) and bool(backend.client.exists(backend.get_key_for_group(task.request.group)))


def _is_counted_by_redis(task: Task) -> bool:
    """Tell whether the present request is of a chord whose members the Redis backend (5.7) counts by a script of its own."""
    return bool(task.request.group) and hasattr(task.backend, "_chord_part_return_script")

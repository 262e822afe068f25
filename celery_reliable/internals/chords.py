"""Have the body of a chord sent by a later delivery of a member, where Celery would give it up."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any

from celery import states
from celery.canvas import maybe_signature
from celery.utils.functional import maybe_list

if TYPE_CHECKING:
    from celery import Task

Cured = Callable[[], tuple[type[Exception], ...]]
"""Says what is raised by things that time cures."""
Named = Callable[..., Any]
"""Gives a signature an id that follows from names."""


class ChordNotSent(BaseException):
    """The body of a chord, or its errbacks, could not be published just now; ``__cause__`` says why. A later delivery sends it.

    A ``BaseException`` on purpose: Celery takes every ``Exception`` there for the end of the chord.
    """


class ChordNotRead(ChordNotSent):
    """The result backend was away while a chord was told."""


class ChordBusy(ChordNotSent):
    """Another worker sends the body of a chord, or fails it. It may be dead, or have died just now."""


def keep_chord(backend: Any, cured: Cured, named: Named) -> Any:
    """Return a backend that tells the chord of a request, or raises `ChordNotSent` where it is not over for the chord.

    ``on_chord_part_return`` of the Redis backend (5.7) fails a chord for good when its five tries to publish the body were
    refused, with what is ``cured`` by time, and when Redis refuses anything after the member was counted; of a chord that has
    failed it tells the errbacks once, under new ids. It counts a member once, however often it is told. ``_fail_chain`` does not
    tell a chord of an element whose failure is stored; that may have been all.

    So each is called on a copy of the backend: that may be all threads'. Nothing that other backends do then can be taken back.
    """
    if not _counts_by_script(backend):
        return backend

    def tell(request: Any, *args: Any, **kwargs: Any) -> Any:
        patient = _patient(backend, request, cured, named) if request.group and request.chord else backend
        told = patient.on_chord_part_return(request, *args, **kwargs)
        if is_chord_open(backend, request):
            raise ChordBusy
        return told

    return _copied(backend, on_chord_part_return=tell, get_state=lambda _: states.PENDING)


def _patient(backend: Any, request: Any, cured: Cured, named: Named) -> Any:
    patient = _PatientClient(backend.client, claim=backend.get_key_for_group(request.group, ".c"))
    body = maybe_signature(request.chord, app=backend.app, clone=True)
    body.delay = _put_off(body.delay, cured, ChordNotSent, patient.give_up)
    request.chord = body
    fail = _put_off(_failing(backend, request, cured, named, patient.give_up), cured, ChordNotRead, patient.give_up)
    return _copied(backend, client=patient, chord_error_from_stack=fail)


def _failing(
    backend: Any, request: Any, cured: Cured, named: Named, before: Callable[[ChordNotSent], None]
) -> Callable[..., Any]:
    """Return what fails a chord, unless none of its members has failed: what was raised is Redis's, and cured by time.

    A header with groups in it is joined (``on_chord_part_return``, 5.7), and what is raised then may be a member's. What
    follows the body is failed first, as nothing asks for it when the chord is over.
    """
    errbacks = _put_off(backend._call_task_errbacks, cured, ChordNotSent, before)  # noqa: SLF001
    failing = _copied(backend, _call_task_errbacks=errbacks)

    def fail(body: Any, exc: BaseException) -> Any:
        found = sys.exc_info()[1]
        if isinstance(found, cured()) and not joins_under_claim(backend, request):
            raise found
        body = body.clone()
        chain = body.options.pop("chain", None)
        _name_errbacks(body, named, request.group)
        try:
            keep_chord(backend, cured, named)._fail_chain(chain, exc)  # noqa: SLF001
        except ChordNotSent as end:
            before(end)
            raise
        return failing.chord_error_from_stack(body, exc)

    return fail


def _name_errbacks(body: Any, named: Named, group: str) -> None:
    given = maybe_list(body.options.get("link_error")) or ()
    errbacks = [maybe_signature(errback, app=body.app, clone=True) for errback in given]
    body.options["link_error"] = [named(one, group, "errback", str(number)) for number, one in enumerate(errbacks)]


def _copied(backend: Any, **changes: Any) -> Any:
    """Not by copy: a backend is pickled as what makes a new one."""
    copied = object.__new__(type(backend))
    copied.__dict__.update(backend.__dict__, **changes)
    return copied


def _put_off(
    call: Callable[..., Any], cured: Cured, end: type[ChordNotSent], before: Callable[[ChordNotSent], None]
) -> Callable[..., Any]:
    """Return a call that raises ``end`` for what is cured by time, after ``before``."""

    def put_off(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except cured() as exc:
            raised = end()
            before(raised)
            raise raised from exc

    return put_off


class _PatientClient:
    """A client of Redis with which nothing is done any more after the first error, so that the chord stays as it is.

    What Celery would do then, it does to end the chord: it fails the body, and removes the chord's size or marks it as done.
    """

    def __init__(self, client: Any, *, claim: str) -> None:
        """Take the client itself, and where it lies who may send the body."""
        self._client, self._claim = client, claim
        self._end: ChordNotSent | None = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        return self._patiently(found) if callable(found) else found

    def pipeline(self, *args: Any, **kwargs: Any) -> Any:
        """Commands that are sent together, as patient as the client."""
        pipe = self._client.pipeline(*args, **kwargs)
        pipe.execute = self._patiently(pipe.execute)
        return pipe

    def give_up(self, end: ChordNotSent) -> None:
        """Do nothing more, but give the claim to send the body back: else the next waits until it is over."""
        self._end = end
        with suppress(Exception):
            self._client.delete(self._claim)

    def _patiently(self, call: Callable[..., Any]) -> Callable[..., Any]:
        from redis.exceptions import NoScriptError, RedisError  # noqa: PLC0415  # the driver is imported where it is used

        def patiently(*args: Any, **kwargs: Any) -> Any:
            if self._end is not None:
                raise self._end
            try:
                return call(*args, **kwargs)
            except NoScriptError:  # redis-py loads the script then
                raise
            except (RedisError, OSError) as exc:
                self._end = ChordNotRead()
                raise self._end from exc

        return patiently


def keep_unlocked_chord(unlock: type[Task], cured: Cured) -> None:
    """Have Celery's task that sends the body of a chord raise `ChordNotSent`, too: ``unlock_chord`` (5.7) fails it for good."""
    run = unlock.run

    @wraps(run)
    def kept(self: Task, group_id: str, callback: Any, *args: Any, **kwargs: Any) -> Any:
        body = maybe_signature(callback, app=self.app, clone=True)
        body.delay = _put_off(body.delay, cured, ChordNotSent, lambda _: None)
        return run(self, group_id, body, *args, **kwargs)

    unlock.run = kept


def is_chord_open(backend: Any, request: Any) -> bool:
    """Tell whether the chord of a request is complete, and its body neither sent nor failed.

    ``on_chord_part_return`` of the Redis backend (5.7) lets one worker claim to send the body, and all others go on as if it were
    done. If that worker dies, only a member that comes again when the claim is over sends the body, or fails it: also one that
    came just before that, and asks here just after.
    """
    if not request.group or not _counts_by_script(backend):
        return False
    claim, size, more, members = (backend.get_key_for_group(request.group, end) for end in (".c", ".s", ".t", ".j"))
    with backend.client.pipeline() as pipe:
        pipe.get(claim).get(size).get(more)
        (pipe.zcard if backend._chord_zset else pipe.llen)(members)  # noqa: SLF001
        claimed, size, more, ready = pipe.execute()
    if size is None or claimed == b"done":  # done, and counted anew under the same id
        return False
    return claimed is not None or bool(ready == int(size) + int(more or 0))


def joins_under_claim(backend: Any, request: Any) -> bool:
    """Tell whether the results of a request's chord are read one by one, by who has a claim of some seconds to send its body.

    The Redis backend (5.7) has the results of members in a list of the chord; a header with groups in it, which it has saved
    before, it joins, and one that cannot be read fails the chord.
    """
    if not request.group or not _counts_by_script(backend):
        return False
    return bool(backend.client.exists(backend.get_key_for_group(request.group)))


def _counts_by_script(backend: Any) -> bool:
    """Tell whether a backend is that of Redis (5.7), which counts the members of a chord by a script of its own."""
    return hasattr(backend, "_chord_part_return_script")

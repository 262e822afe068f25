"""Know what is to be known about one delivery, and talk to the store about it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from celery.exceptions import Ignore, Reject

from celery_reliable import internals, keys, overlap
from celery_reliable.errors import StoreError, StoreUnavailable
from celery_reliable.keys import HEADER, TOKEN, Identity
from celery_reliable.payloads import ARGUMENTS_HEADER, VERSION_HEADER
from celery_reliable.publishing import LIVE_RECORD_TTL
from celery_reliable.runtime import Runtime, runtime_of
from celery_reliable.stores.base import Job, ReleaseOutcome, Run, Settled, Stale
from celery_reliable.waits import with_expiry_of
from celery_reliable.worker.flags import draining
from celery_reliable.worker.waiting import GiveBack, Hold

if TYPE_CHECKING:
    from celery_reliable.blobs import BlobRef
    from celery_reliable.retries import Verdict
    from celery_reliable.task import ReliableTask

_T = TypeVar("_T")
_NOT_CLAIMED = Run(0, 0, 0, 0)
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_LONGEST_WAIT = 15.0
_SHARE_OF_WAIT = 5  # of the wait, when the message is given back after it
SHORTEST_WAIT = 1.0
"""Seconds: at most one claim a second for each waiting message."""


class Delivery:
    """One delivery of one job: the task, its request, whose job it is, and the claim once there is one."""

    keyless: Exception | None = None
    """Why the task's rule gives no key for this call; it must not run."""
    kept: BlobRef | None = None
    """Where the result is kept aside."""

    def __init__(self, task: ReliableTask, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take the bound task, whose request is the delivery, and the arguments of the message."""
        self.task, self.args, self.kwargs = task, args, kwargs
        self.request = task.request
        self.version = int(getattr(self.request, VERSION_HEADER, None) or 1)
        """The payload version of the arguments."""
        self.aside_header: Any = None
        """Where the arguments are that the message does not carry."""
        self.whole = args, kwargs
        """All arguments, once those that are kept aside were read."""
        self.given = args, kwargs, self.version
        """The arguments in the message and their version, whatever replaces them later."""
        self.runtime: Runtime = runtime_of(task.app)
        self.settings = task.reliable_settings
        self.overlap: str = overlap.policy_in(self.request, default=self.settings.overlap)
        self.identity = self._identity()
        self.token: str = getattr(self.request, TOKEN, None) or keys.new_token()
        self.run = _NOT_CLAIMED
        self.verdict: Verdict | None = None
        """What is to become of a body that raised."""
        self._began = time.monotonic()

    def _identity(self) -> Identity:
        request = self.request
        nesting = int(request.replaced_task_nesting or 0)
        found = keys.identity_of(getattr(request, HEADER, None), task_id=request.id, nesting=nesting)
        if found is not None:  # beside another message's identity, what it says of arguments is that message's, too
            self.aside_header = getattr(request, ARGUMENTS_HEADER, None)
            if request.headers is not None and HEADER not in request.headers:
                request.headers = internals.whole_headers(request)
            return found
        task, version = self.task, self.version
        identity, self.keyless = task.identity_without_header(
            request.id, nesting, self.args, self.kwargs, version=version
        )
        return identity

    @property
    def job(self) -> Job:
        """The job of this delivery."""
        return self.identity.job

    def header(self) -> dict[str, Any]:
        """Return our header for the next message of this life."""
        job, identity = self.job, self.identity
        stamped = Job(job.key, job.kind, job.stamp or self.run.fence)
        life = self.run.life or identity.life
        header = Identity(stamped, identity.task_id, identity.fingerprint, life, identity.nesting).to_header()
        return with_expiry_of(getattr(self.request, HEADER, None), header)

    @property
    def elapsed(self) -> float:
        """Seconds since just before the claim was asked for."""
        return time.monotonic() - self._began

    def now(self) -> int:
        """Return the server's clock in microseconds, as far as the claim has told it."""
        return self.run.fence + int(self.elapsed * 1e6)

    def age(self) -> float:
        """Seconds since the submission, as far as it is known, by the server's clock."""
        return (self.now() - (self.job.stamp or self.run.fence)) / 1e6

    def emit(self, event: str, **fields: Any) -> None:
        """Emit an event about this job."""
        events = self.runtime.events
        if events.hears(event):
            events.emit(event, task=self.task.name, task_id=self.identity.task_id, key=self.job.key, **fields)

    # --- the store

    def insist(self, verb: str, call: Callable[[], _T]) -> _T:
        """Call until the store answers or this worker must stop; then the message goes back and its lease runs out.

        An outcome is not lost for want of patience: the store accepts it as long as no later claim was made.
        """
        pause = _FIRST_PAUSE
        while True:
            try:
                return call()
            except StoreUnavailable as exc:
                if draining():
                    raise Reject(GiveBack(f"{verb}: {exc}"), requeue=True) from exc
                self.emit("store_unavailable", verb=verb, wait=pause)
            except StoreError as exc:
                self.wait_for_store(verb, exc)
            time.sleep(self.runtime.random.uniform(pause / 2, pause))
            pause = min(pause * 2, _LONGEST_PAUSE)

    def check(self, answer: Settled | Stale, *, verb: str) -> Settled:
        """Return an accepted answer; give the message back for a refused one."""
        if isinstance(answer, Stale):
            self.stale(verb)
        if answer.lost_writes:
            self.emit("lost_writes")
        return answer

    def release(self, outcome: ReleaseOutcome = "interrupted", *, delay: float = 0.0) -> bool:
        """Give the claim back; ``interrupted`` spends neither an attempt nor a delivery. False: revoked, so it has ended."""
        answer = self.insist(
            "release",
            lambda: self.runtime.store.release(
                self.job,
                fence=self.run.fence,
                token=self.token,
                outcome=outcome,
                delay=delay,
                record_ttl=LIVE_RECORD_TTL + delay,
            ),
        )
        return not self.check(answer, verb="release").revoked

    def end_entry(self) -> None:
        """End this submission's ledger entry. Best effort: an entry that stays costs one more message later."""
        if not self.runtime.ledger:
            return
        try:
            self.runtime.store.settle(self.job, task_id=self.identity.task_id, state="sent", ttl=1.0)
        except StoreError:
            self.emit("store_unavailable", verb="settle", wait=0.0)

    # --- ways to end or keep the message

    def drop(self, state: str) -> NoReturn:
        """Ack a message whose life has ended, and say so."""
        self.emit("over", state=state)
        self.end_entry()
        raise Ignore

    def hold(self, why: str, seconds: float, *, moment: int = 0, **facts: Any) -> NoReturn:
        """Let the message wait in this worker, in no pool slot. See `Hold` for ``moment``."""
        self.emit(why, wait=seconds, **facts)
        raise Reject(Hold(seconds, why, moment=moment), requeue=True)

    def wait_for_store(self, verb: str, exc: StoreError) -> NoReturn:
        """Let the message wait; the prefetch count does not rise, so a worker without a store stops by itself."""
        wait = self.runtime.random.uniform(SHORTEST_WAIT, _LONGEST_WAIT)
        self.emit("store_unavailable", verb=verb, wait=wait)
        if self.settings.on_store_down == "reject":
            # Not at once: it is received again at once, by a worker that meets the same outage.
            raise Reject(GiveBack(str(exc), after=max(wait / _SHARE_OF_WAIT, SHORTEST_WAIT)), requeue=True) from exc
        raise Reject(Hold(wait, f"store away: {exc}", counted=False), requeue=True) from exc

    def wait_to_publish(self, what: str, exc: BaseException | None) -> NoReturn:
        """Let the message wait: what follows it could not be published, its next delivery tries again."""
        wait = self.runtime.random.uniform(SHORTEST_WAIT, _LONGEST_WAIT)
        self.emit("publish_failed", what=what, wait=wait)
        raise Reject(Hold(wait, f"{what} not published: {exc}"), requeue=True) from exc

    def wait_to_tell(self, what: str, exc: BaseException | None) -> NoReturn:
        """Let the message wait: the result backend could not be told, its next delivery tries again."""
        wait = self.runtime.random.uniform(SHORTEST_WAIT, _LONGEST_WAIT)
        self.emit("backend_unavailable", what=what, wait=wait)
        raise Reject(Hold(wait, f"{what} not stored in the result backend: {exc}"), requeue=True) from exc

    def stale(self, verb: str) -> NoReturn:
        """Another claim took over. Never ack: on Redis the tag may be the live holder's. The copy finds Done."""
        self.emit("stale", fence=self.run.fence, verb=verb)
        raise Reject(GiveBack("stale"), requeue=True)

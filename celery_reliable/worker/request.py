"""The worker's side of a delivery: its token, its waiting, and what only the parent sees."""

from __future__ import annotations

import json
import re
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import Ignore, Reject, Terminated, TimeLimitExceeded, WorkerLostError
from celery.worker.request import Request
from celery.worker.state import revoked as revoked_tasks
from celery.worker.state import task_ready

from celery_reliable import internals, keys
from celery_reliable.errors import Draining, StoreError
from celery_reliable.keys import HEADER, MOMENT, TOKEN, Identity
from celery_reliable.overlap import KEY_HEADER, policy_in
from celery_reliable.payloads import VERSION_HEADER
from celery_reliable.processes import resident_memory
from celery_reliable.publishing import LIVE_RECORD_TTL
from celery_reliable.runtime import Runtime, runtime_of
from celery_reliable.stores.base import Job
from celery_reliable.waits import expiry_in
from celery_reliable.worker.waiting import GiveBack, Hold, Snoozed

if TYPE_CHECKING:
    from celery_reliable.settings import Settings


_TELL_AGAIN = 5.0  # seconds


class ReliableRequest(Request):
    """A request that can wait in the worker, be given back at the near end, and outlive the child that ran it.

    ``execute_using_pool`` and ``on_success`` are not here: Celery's ``create_request_cls`` (5.7) overrides both.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Give this delivery its token; it travels to the pool child in the request."""
        super().__init__(*args, **kwargs)
        self._request_dict[TOKEN] = self._marked() or self.runtime.new_token()
        self.held_for = 0.0
        self.accepted_at = 0.0
        """When the run began, by the monotonic clock: ``time_start`` jumps with the wall clock."""
        self._ended = False
        self.memory: int | None = None
        """Bytes of memory that the child which runs this had when it was last looked at."""

    def _marked(self) -> str | None:
        """Return the token that the message was marked with when this process received it; see `Reconnecting`."""
        mark = str(self.message.properties.get(TOKEN) or "")
        return mark if mark.startswith(f"{self.runtime.owner}.") else None

    @property
    def token(self) -> str:
        """The token of this delivery's claim."""
        token: str = self._request_dict[TOKEN]
        return token

    @property
    def runtime(self) -> Runtime:
        """The runtime of this worker's app."""
        return runtime_of(self._app)

    @property
    def settings(self) -> Settings:
        """The settings of this task."""
        settings: Settings = self.task.reliable_settings
        return settings

    @property
    def overlap(self) -> str:
        """What this message does when another of its kind runs."""
        return policy_in(self._request_dict, default=self.settings.overlap)

    @cached_property
    def overlap_name(self) -> str | None:
        """The key under which it must not overlap others, as its run computes it; None when that fails."""
        args, kwargs = tuple(self._args or ()), dict(self._kwargs or {})
        try:
            rule = self._request_dict.get(KEY_HEADER)
            found: str = self.task.overlap_name(args, kwargs, rule=rule, version=self.version)
        except Exception:  # noqa: BLE001  # a project's callable may raise anything; the run says so
            return None
        return found

    @cached_property
    def identity(self) -> Identity:
        """What the message says about its job; see `Execution` for messages without our header."""
        nesting = int(self._request_dict.get("replaced_task_nesting") or 0)
        found = keys.identity_of(self._request_dict.get(HEADER), task_id=self.id, nesting=nesting)
        if found is not None:
            return found
        args, kwargs = tuple(self._args or ()), dict(self._kwargs or {})
        computed: Identity
        computed, _ = self.task.identity_without_header(self.id, nesting, args, kwargs, version=self.version)
        return computed

    @property
    def version(self) -> int:
        """The payload version of the arguments."""
        return int(self._request_dict.get(VERSION_HEADER) or 1)

    @property
    def job(self) -> Job:
        """The job of this message."""
        return self.identity.job

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """Note when the run began."""
        self.accepted_at = time_accepted
        if self.overlap != "allow" and self.runtime.keep_rights is not None:
            self.runtime.keep_rights()
        super().on_accepted(pid, time_accepted)

    def maybe_expire(self) -> bool | None:
        """Tell whether nobody wants it any more: by the store's clock, where both ends know that and a time was given."""
        moment = expiry_in(self._request_dict)
        store_now = None if moment is None else self.runtime.store.known_now()
        if moment is None or store_now is None:
            told: bool | None = super().maybe_expire()
            return told
        if store_now <= moment:
            return None
        revoked_tasks.add(self.id)
        return True

    def look_at_memory(self) -> None:
        """Note what the child has in use: evidence, should it be killed for it."""
        if self.worker_pid:
            self.memory = resident_memory(self.worker_pid) or self.memory

    def on_failure(self, exc_info: Any, **options: bool) -> Any:
        """Wait, give back, or account for a child that is gone; everything else is Celery's."""
        exc = exc_info.exception
        if isinstance(exc, ExceptionWithTraceback):
            exc = exc.exc
        if isinstance(exc, Reject) and isinstance(exc.reason, Hold):
            return self._wait(exc.reason)
        if isinstance(exc, Draining):
            return self._interrupted()
        if isinstance(exc, Reject) and isinstance(exc.reason, GiveBack):
            return self._return(exc.reason)
        gone = isinstance(exc, TimeLimitExceeded | WorkerLostError)
        if gone and self.task.acks_late and not self._ended_on_purpose():
            return self._lost(exc)
        if isinstance(exc, Ignore | Snoozed | Terminated):
            self._ended = True  # says nothing of its task
        self._note_run(failed=True)
        return super().on_failure(exc_info, **options)

    def acknowledge(self) -> None:
        """Note a run that ended well, unless it was noted before."""
        self._note_run(failed=False)
        super().acknowledge()

    def _note_run(self, *, failed: bool, by_itself: bool = True) -> None:
        """Note, once, how a run went: for the kill switch of its queue, and for who looks how long runs take.

        A message that is acked before its run says nothing of it.
        """
        if self._ended or not self.accepted_at or not self.task.acks_late or self._ended_on_purpose():
            return
        self._ended = True
        runs, place = self.runtime.runs, internals.place_of(self.message)
        queue = runs.places.get(place) or runs.learn(place, self._origin())
        seconds = time.monotonic() - self.accepted_at if by_itself else None
        runs.note(queue, self.name, seconds=seconds, failed=failed)

    def _origin(self) -> str:
        """Return the queue that this message was received from; that of its lane, if it has lanes."""
        holding, lanes = self.runtime.holding, self.runtime.lanes
        queue = internals.queue_of(self.message, holding.consumer.task_consumer if holding is not None else None)
        return lanes.queue_of(queue) if lanes is not None else queue

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001  # Celery's signature
        """Account for a child that the hard time limit kills; billiard reports it a second time as a failure."""
        if soft or not self.task.acks_late:
            super().on_timeout(soft, timeout)
            return
        self.look_at_memory()
        self._lost(TimeLimitExceeded(timeout))

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:  # noqa: FBT001
        """Free the key and end the ledger entry of a job that Celery (5.7) revokes, expires or terminates, then say so.

        Whoever was told may submit the key at once: by then it has to be free. A result backend that refuses to be told would
        end a plain worker: here the message comes back, to be told of again.
        """
        self._free_key(terminated=terminated, expired=expired)
        try:
            super()._announce_revoked(reason, terminated, signum, expired)
        except Exception:  # noqa: BLE001  # every backend has its own errors
            facts = {"task": self.name, "task_id": self.id, "key": self.job.key}
            self.runtime.events.emit("backend_unavailable", **facts, what=reason, wait=_TELL_AGAIN)
            self.runtime.holding.give_back(self, after=_TELL_AGAIN)

    def _free_key(self, *, terminated: bool, expired: bool) -> None:
        store, job = self.runtime.store, self.job
        try:
            if not expired:  # another worker may hold it, or have died with it: no further run, and the key is free
                store.revoke(job, task_id=self.id, ttl=LIVE_RECORD_TTL)
            if terminated:
                store.free(job, token=self.token, evidence=b'{"cause": "revoked"}', keep=LIVE_RECORD_TTL)
            store.settle(job, task_id=self.id, state="expired" if expired else "revoked", ttl=LIVE_RECORD_TTL)
        except StoreError:
            self._store_was_away("settle")

    def _store_was_away(self, verb: str) -> None:
        facts = {"task": self.name, "task_id": self.id, "key": self.job.key}
        self.runtime.events.emit("store_unavailable", **facts, verb=verb, wait=0.0)

    def _ended_on_purpose(self) -> bool:
        return bool(self._already_revoked or self._already_cancelled)

    def _wait(self, hold: Hold) -> None:
        task_ready(self)
        self._apply_result = None  # it is in no pool any more: a drain, or the stop of its queue, may give it back
        if hold.moment:
            self._request_dict[MOMENT] = hold.moment
        self.runtime.holding.hold(self, hold)

    def _return(self, give_back: GiveBack) -> None:
        task_ready(self)
        self.runtime.holding.give_back(self, after=give_back.after)

    def _interrupted(self) -> None:
        """Give back a message whose run was interrupted beside its body. A run that had ended keeps its outcome."""
        try:
            self.runtime.store.release(
                self.job, fence=None, token=self.token, outcome="interrupted", delay=0.0, record_ttl=LIVE_RECORD_TTL
            )
        except StoreError:
            self._store_was_away("release")
        self._return(GiveBack("interrupted"))

    def _lost(self, exc: BaseException) -> None:
        """Free the lease of a child seen to die and give the message back: the next claim judges by count."""
        task_ready(self)
        if self.acknowledged:  # early ack, or reported already
            return
        self._note_run(failed=True, by_itself=False)
        evidence = _evidence(exc, pid=self.worker_pid) | {"rss": self.memory}
        self.runtime.events.emit("evidence", task=self.name, task_id=self.id, key=self.job.key, cause=evidence["cause"])
        try:
            known = json.dumps(evidence).encode()
            self.runtime.store.free(self.job, token=self.token, evidence=known, keep=LIVE_RECORD_TTL)
        except StoreError:
            self._store_was_away("free")
        self.runtime.holding.give_back(self)


def _evidence(exc: BaseException, *, pid: int | None) -> dict[str, Any]:
    if isinstance(exc, TimeLimitExceeded):
        return {"cause": "time_limit", "detail": f"hard time limit: {exc}", "pid": pid}
    signal = re.search(r"signal (\d+)", str(exc))
    code = re.search(r"exitcode (-?\d+)", str(exc))
    found = {"signal": int(signal[1]) if signal else None, "exitcode": int(code[1]) if code else None}
    return {"cause": "worker_lost", "detail": str(exc), "pid": pid, **found}

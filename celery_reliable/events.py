"""Name every event once: one table behind the log, the hooks and the metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger("celery_reliable")

Hook = Callable[[str, dict[str, Any]], None]
"""Called as ``hook(name, fields)``. One that has an attribute ``events``, a set of names, is called for these only."""


@dataclass(frozen=True, slots=True)
class Event:
    """One kind of event: its level, its constant log message and the facts that come with it.

    ``shown`` is a fact that the log line has, too, for who reads it without the others.
    """

    level: int
    message: str
    fields: tuple[str, ...]
    shown: str = ""


_JOB = ("task", "task_id", "key")
_LETTER = ("reason", "error", "letter_id", "attempts", "deliveries", "fingerprint")
_SLOT = ("entry", "slot")

EVENTS: dict[str, Event] = {
    # submit
    "submitted": Event(logging.DEBUG, "submission accepted", _JOB),
    "existing": Event(logging.INFO, "submission joined an existing job", (*_JOB, "existing_id", "state")),
    "child_known": Event(logging.INFO, "child submission of a repeated run is the same job", _JOB),
    "withdrawn": Event(logging.WARNING, "publish failed, submission withdrawn", _JOB),
    "withdraw_failed": Event(logging.ERROR, "publish failed and so did the withdrawal: the task may still run", _JOB),
    "outside": Event(
        logging.WARNING,
        "submitted at once, since the open transaction is not one on the store's database: it may run before the commit, "
        "or after a rollback",
        (*_JOB, "database"),
    ),
    "relay_waits": Event(logging.WARNING, "broker away after a commit, submissions wait in the outbox", ("error",)),
    "undelivered": Event(logging.WARNING, "not published after its commit, a relay will do it", ("count", "error")),
    "unpublishable": Event(
        logging.WARNING, "refused while others were published, tried again five times", ("task_id", "times", "error")
    ),
    "relayed": Event(logging.INFO, "submission that waited in the outbox published", _JOB),
    # claim
    "claimed": Event(logging.DEBUG, "claimed", (*_JOB, "fence", "attempt", "delivery")),
    "claimed_again": Event(
        logging.INFO,
        "claimed, and not for the first time",
        (*_JOB, "fence", "attempt", "delivery", "submitted", "saves"),
    ),
    "busy": Event(logging.INFO, "another run holds the key, message waits", (*_JOB, "wait")),
    "not_yet": Event(logging.INFO, "not due yet, message waits", (*_JOB, "wait")),
    "replayed_outcome": Event(logging.INFO, "already done, stored outcome returned", _JOB),
    "already_committed": Event(logging.INFO, "effect already committed, its result returned", (*_JOB, "fence")),
    "queue_waits": Event(
        logging.DEBUG, "the job before it under its key has not ended, message waits", (*_JOB, "wait")
    ),
    "overlap_waits": Event(logging.DEBUG, "another job has the right to run, message waits", (*_JOB, "wait")),
    "overlap_lost": Event(logging.ERROR, "another job took the right to run meanwhile", (*_JOB, "overlap_key")),
    "skipped": Event(logging.WARNING, "skipped: another job of its kind runs or waits", (*_JOB, "policy", "reason")),
    "over": Event(logging.WARNING, "message of an ended life dropped", (*_JOB, "state")),
    "quarantined": Event(logging.WARNING, "last delivery, moved to the quarantine queue", (*_JOB, "queue", "delivery")),
    "poisoned": Event(logging.ERROR, "claimed too often without a verdict", (*_JOB, "delivery")),
    "mismatch": Event(logging.ERROR, "same key with other arguments", _JOB),
    "store_unavailable": Event(logging.WARNING, "store unavailable, message waits", (*_JOB, "verb", "wait")),
    # run and settle
    "upgraded": Event(logging.DEBUG, "arguments of an older payload lifted", (*_JOB, "from_version", "version")),
    "arguments_dropped": Event(logging.INFO, "arguments that this code does not know left out", (*_JOB, "arguments")),
    "argument_unknown": Event(
        logging.WARNING,
        "newer code sends an argument that this code does not know; it is left out",
        ("task", "argument"),
    ),
    "saved": Event(logging.DEBUG, "checkpoint or step saved", (*_JOB, "saves")),
    "done": Event(logging.DEBUG, "done", (*_JOB, "attempt")),
    "recovered": Event(logging.INFO, "done, though not by the first run", (*_JOB, "attempt", "delivery")),
    "retried": Event(logging.INFO, "attempt failed, retry scheduled", (*_JOB, "attempt", "delay", "rule", "error")),
    "snoozed": Event(logging.INFO, "snoozed, no attempt spent", (*_JOB, "delay")),
    "interrupted": Event(logging.WARNING, "run interrupted, message given back", _JOB),
    "buried": Event(logging.ERROR, "dead-lettered", (*_JOB, *_LETTER)),
    "reported_again": Event(logging.INFO, "dead already, its failure is reported once more", (*_JOB, *_LETTER)),
    "stale": Event(logging.ERROR, "another claim took over, this outcome was refused", (*_JOB, "fence", "verb")),
    "lost_writes": Event(logging.ERROR, "the store lost writes, outcome accepted by its higher fence", _JOB),
    "publish_failed": Event(logging.WARNING, "publish failed, message waits", (*_JOB, "what", "wait")),
    "backend_unavailable": Event(
        logging.WARNING, "result backend unavailable, message waits to tell it", (*_JOB, "what", "wait")
    ),
    "result_oversized": Event(logging.WARNING, "large result kept beside the done marker", (*_JOB, "size", "limit")),
    "blob_failed": Event(logging.ERROR, "payload kept aside could not be written or read", (*_JOB, "what", "error")),
    "evidence": Event(logging.ERROR, "the process that ran the task is gone", (*_JOB, "cause")),
    # flow
    "queue_full": Event(logging.INFO, "queue is full, submission refused", ("queue", "depth", "age", "retry_after")),
    "shed": Event(logging.WARNING, "queue is full, best-effort call dropped", (*_JOB, "queue", "depth", "age")),
    "no_fairness_key": Event(
        logging.WARNING, "no fairness key could be made, the call went into the queue itself", (*_JOB, "queue", "error")
    ),
    "breaker_waits": Event(logging.DEBUG, "its dependency fails, message waits", (*_JOB, "breaker", "wait")),
    "limit_waits": Event(
        logging.DEBUG, "as many as may run at a time run, message waits", (*_JOB, "limit_key", "wait")
    ),
    "rate_waits": Event(logging.DEBUG, "as many as may begin have begun, message waits", (*_JOB, "limit_key", "wait")),
    "budget_waits": Event(logging.INFO, "enough retries ran in the last minute, postponed", (*_JOB, "budget", "wait")),
    "breaker_opened": Event(
        logging.WARNING, "dependency fails, its tasks wait in the whole fleet", ("breaker", "failures", "wait")
    ),
    "breaker_closed": Event(logging.WARNING, "dependency may be called again", ("breaker", "by")),
    "breaker_unknown": Event(
        logging.WARNING, "store unavailable: a breaker is taken for what it was last seen as", ("breaker", "error")
    ),
    "queue_stopped": Event(
        logging.ERROR,
        "too many of its runs failed, or an operator said so: the fleet consumes this queue no longer",
        ("queue", "by", "failed", "runs", "wait"),
    ),
    "queue_resumed": Event(logging.WARNING, "queue is consumed again", ("queue", "by")),
    "kill_switch_unknown": Event(
        logging.WARNING, "store unavailable: queues are consumed as they were last seen", ("queues", "error")
    ),
    # worker
    "finding": Event(
        logging.WARNING, "the configuration endangers a promise", ("code", "severity", "finding"), shown="finding"
    ),
    "findings_left_out": Event(
        logging.WARNING,
        "more was found than a start tells, `celery reliable check` tells all",
        ("count",),
        shown="count",
    ),
    # messages that cannot run here
    "parked": Event(
        logging.WARNING,
        "cannot run in this worker, parked until one comes that can",
        (*_JOB, "queue", "reason", "times"),
    ),
    "unparked": Event(logging.INFO, "parked message is back in its queue", (*_JOB, "queue", "waited")),
    "refused": Event(logging.ERROR, "can run nowhere", (*_JOB, "queue", "reason")),
    "unsigned": Event(
        logging.WARNING,
        "not signed by a key of reliable_signing_keys, run all the same: reliable_signing is 'warn'",
        (*_JOB, "reason"),
    ),
    "not_told": Event(logging.ERROR, "failure of a refused message could not be reported", (*_JOB, "error")),
    # leases
    "lease_lost": Event(logging.ERROR, "lease lost while the task runs", _JOB),
    "renew_failed": Event(logging.WARNING, "leases could not be renewed", ("held",)),
    "runtime_exceeded": Event(logging.ERROR, "lease given up: the task ran longer than any limit", _JOB),
    "extend_failed": Event(logging.WARNING, "messages held here could not be kept invisible on SQS", ("held",)),
    # recovery
    "restored": Event(logging.DEBUG, "its worker fell silent, message back in its queue", _JOB),
    "worker_silent": Event(
        logging.WARNING, "a worker fell silent, its messages are back in their queues", ("messages",)
    ),
    "consumer_timeout": Event(
        logging.WARNING,
        "a task may run, or waits for its time, longer than RabbitMQ's consumer_timeout: raise that, or x-consumer-timeout of "
        "its queue",
        ("task", "limit", "timeout"),
    ),
    "queue_unconsumed": Event(
        logging.WARNING, "messages wait in a queue that no worker consumes: start one, or purge it", ("queue",)
    ),
    "rescued": Event(
        logging.WARNING,
        "predecessor of this node is gone, its work is taken over",
        ("node", "pids", "claims", "messages"),
    ),
    "node_name_taken": Event(logging.WARNING, "another worker of this node name is alive", ("node", "pid")),
    "stolen": Event(
        logging.WARNING, "another consumer's shorter visibility timeout took a message that is held here", _JOB
    ),
    "published_again": Event(logging.WARNING, "submission vanished from the broker, published again", _JOB),
    "lost": Event(logging.ERROR, "published again and again, never settled: dead-lettered", _JOB),
    # heartbeat
    "worker_state": Event(logging.WARNING, "worker changed its state", ("node", "state", "before")),
    "heartbeat_withheld": Event(
        logging.ERROR, "consumer loop stands still: no sign of life until it turns", ("node", "still")
    ),
    "heartbeat_shared": Event(
        logging.ERROR, "another worker keeps this heartbeat file: give each its own, by %n", ("place", "node", "keeper")
    ),
    "heartbeat_unwritten": Event(
        logging.ERROR, "heartbeat file not written, probes will fail: make its folder writable", ("place", "error")
    ),
    "healthz_failed": Event(logging.ERROR, "HTTP probes are not answered: address not free", ("place", "error")),
    "metrics_unserved": Event(logging.ERROR, "scrapes are not answered: address not free", ("place", "error")),
    "purged": Event(logging.WARNING, "messages dropped by an operator, their submissions ended", ("queue", "count")),
    # blobs
    "blobs_swept": Event(logging.INFO, "payloads that nobody can refer to any more removed", ("count",)),
    # beat
    "leading": Event(logging.INFO, "this beat leads", ("epoch", "entries")),
    "standing_by": Event(logging.WARNING, "this beat leads no longer, standing by", ("epoch", "reason")),
    "beat_stalled": Event(logging.ERROR, "the scheduler's loop does not come back, leadership given up", ("overdue",)),
    "beat_slow": Event(
        logging.WARNING,
        "a round of the loop took longer than the lease, and lost it: raise reliable_leader_ttl",
        ("seconds", "ttl"),
    ),
    "leader_renew_failed": Event(logging.WARNING, "the leader's lease could not be renewed", ("left", "error")),
    "beat_failed": Event(logging.ERROR, "beat could not do its work, it tries again", ("what", "error")),
    "slot_fired": Event(logging.INFO, "slot fired", (*_SLOT, "task", "task_id", "again")),
    "slot_refused": Event(logging.ERROR, "slot could not be published, it is tried again", (*_SLOT, "task", "error")),
    "slot_dropped": Event(logging.WARNING, "claimed slot will not fire", (*_SLOT, "reason", "schedule")),
    "slots_missed": Event(logging.WARNING, "missed slots are not caught up", (*_SLOT, "reason")),
    "schedule_failed": Event(logging.ERROR, "an entry's schedule cannot be used", ("entry", "error")),
    "schedule_file_unusable": Event(logging.WARNING, "no schedule file, beat goes on without", ("file", "error")),
    "policy_invalid": Event(logging.ERROR, "an entry's policy is wrong, the default holds", ("entry", "problem")),
    "entry_run": Event(logging.INFO, "entry run by request", ("entry", "task", "task_id")),
    # dead letters
    "letter_replayed": Event(logging.INFO, "dead letter replayed", (*_JOB, "letter_id", "by")),
    "letter_discarded": Event(logging.INFO, "dead letter discarded", (*_JOB, "letter_id", "by")),
    "letters_trimmed": Event(logging.WARNING, "oldest dead letters dropped: the store of letters is full", ("count",)),
}


class Events:
    """Emit named events to the log and to the hooks of one app.

    A hook is called as ``hook(name, fields)`` in the thread that emits. A hook that raises is logged and skipped: it
    never changes the outcome of a task. What nobody listens to costs a look into a table.
    """

    __slots__ = ("_hooks", "_levels")

    def __init__(self, hooks: Iterable[Hook] = ()) -> None:
        """Take the hooks, already imported."""
        given = tuple(hooks)
        self._hooks = {name: tuple(hook for hook in given if _listens(hook, name)) for name in EVENTS}
        self._levels = {name: event.level for name, event in EVENTS.items()}

    def hears(self, name: str) -> bool:
        """Tell whether anybody would notice an event; ask before putting together facts on a busy path."""
        return bool(self._hooks[name]) or logger.isEnabledFor(self._levels[name])

    def emit(self, name: str, **fields: Any) -> None:
        """Log one event and call every hook. Unknown names are a programming error (KeyError)."""
        level = self._levels[name]
        if logger.isEnabledFor(level):
            _log(level, name, fields)
        for hook in self._hooks[name]:
            self._call(hook, hook, name, fields)

    def emit_all(self, name: str, several: Sequence[dict[str, Any]]) -> None:
        """Emit one event of several jobs. A hook that has ``note_all`` takes them in one call."""
        level = self._levels[name]
        for fields in several if logger.isEnabledFor(level) else ():
            _log(level, name, fields)
        for hook in self._hooks[name]:
            together = getattr(hook, "note_all", None)
            for facts in [several] if together else several:
                self._call(hook, together or hook, name, facts)

    @staticmethod
    def _call(hook: Hook, call: Callable[[str, Any], object], name: str, fields: Any) -> None:
        try:
            call(name, fields)
        except Exception:  # a user's hook: it must never decide a task's fate
            logger.exception("event hook failed", extra={"reliable_event": name, "reliable_hook": repr(hook)})


def _log(level: int, name: str, fields: Mapping[str, Any]) -> None:
    extra = {f"reliable_{field}": value for field, value in fields.items()}
    event = EVENTS[name]
    message = f"{event.message}: {fields[event.shown]}" if event.shown else event.message
    logger.log(level, "%s: %s", name, message, extra={"reliable_event": name, **extra})


def _listens(hook: Hook, name: str) -> bool:
    wanted = getattr(hook, "events", None)
    return wanted is None or name in wanted
